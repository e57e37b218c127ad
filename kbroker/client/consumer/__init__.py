"""The consumer: `consumer.py` (what users call), `options.py`, `fetching.py` (leaders, positions, errors).

Groups: `group.py` (what a consumer has to do with its group), `membership.py` (what every protocol's membership is),
`classic.py` (the one by JoinGroup), `holdings.py` (how partitions come and go), `steps.py` (what polls do for it),
`assignor.py` (what a user's own assignor is). The data plane, which runs without the GIL, is `_core/consumer_fetch` and
`_core/consumer_records`; read their .pxd first.
"""
