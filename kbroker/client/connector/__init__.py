"""Consumers whose group agrees through ZooKeeper, as the high-level consumers of Kafka 0.7 to 0.10 do.

`connector.py` is what users call, `streams.py` is what they read from. `membership.py` rebalances the group,
`assignment.py` decides who gets which partition, `group_nodes.py` knows the nodes below /consumers. Read
`membership.py` first.
"""
