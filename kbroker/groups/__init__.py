"""The coordinator of consumer groups: members, generations, committed offsets.

`rules/group.py`, `rules/consumer_group.py` and `rules/group_offsets.py` decide what a group does; they know no lock,
log or clock. Read `coordinator.py` first: it finds the group, holds the lock and carries out what the rules ask for.
Its parts are `consumer_groups.py` (the protocol of KIP-848) and `offsets.py` (offsets of groups of both protocols).
`shard.py` is one partition of `__consumer_offsets` in memory, `records.py` and `consumer_records.py` are its records on
disk, and `replay.py` makes the groups from the records.
"""
