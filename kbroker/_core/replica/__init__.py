"""A follower's fetching: an engine on a client's pump above, the append of a partition below.

`fetcher` has the engine: one Fetch under way for each leader, answers appended as they come. `followed` has the
partitions that it fetches, and what Python decides about. Who leads what, and what is done about trouble, is Python's:
`replication/fetchers.py`. Read `followed.pxd` first.
"""
