"""The consumer: `consumer.py` (what users call), `fetching.py` (leaders, positions, errors); and `simple_consumer.py`,
the one without state.

Groups: `group.py` (a consumer's group), `membership.py` (what both group protocols share), `classic.py` (the protocol
with JoinGroup), `consumer_protocol.py` (KIP-848), `holdings.py` (how partitions come and go), `steps.py` (what polls
run for the group), `coordinator.py`, `offsets.py` and `group_offsets.py` (committed offsets of members, and of a group
without being a member). Assignors are in `client/assignors/`. The data plane runs without the GIL:
`_core/client/consumer/fetch` and `records`. Read their .pxd first.
"""
