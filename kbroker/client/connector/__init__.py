"""Groups of consumers that agree through a ZooKeeper, as those of Kafka 0.7 to 0.10 do.

`connector.py` is what users call, `streams.py` what they read from, `membership.py` when a group is rebalanced and how,
`assignment.py` who gets what, `registry.py` the nodes below /consumers. Read `membership.py` first.
"""
