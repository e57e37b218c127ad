"""The coordinator of consumer groups: members, generations, committed offsets.

What a group does is decided by `rules/group.py` and `rules/group_offsets.py`, which know no lock, log or clock. Read
`coordinator.py` first: it finds the group, holds the lock, and lets what the rules ask for happen. Its parts are
`consumer_groups.py` (the protocol of KIP-848) and `offsets.py` (of groups of both protocols). `shard.py` is one
partition of `__consumer_offsets` in memory, `records.py` its records on disk, `replay.py` the way from there to here.
"""
