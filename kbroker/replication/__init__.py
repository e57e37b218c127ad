"""Partitions as their leader sees them. A broker that stands alone leads all of them: `local_replica.py`.

Followers, fetchers and the in-sync set come with clusters and stand here too.
"""
