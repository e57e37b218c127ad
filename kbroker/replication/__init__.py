"""The leader's side of replication. A single broker leads all partitions: `local_replica.py`.

Followers, fetchers and the in-sync set do not exist yet; their place is here.
"""
