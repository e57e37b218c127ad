"""A partition's role on this broker, and what a leader and a follower do about it.

A member of a cluster is told the roles of its partitions by the controller: `partitions.py`, which begins with what it
needs of the rest of the broker: `surroundings.py`. A broker that is alone leads all partitions: `local_replica.py`.
"""
