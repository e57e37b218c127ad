"""ZooKeeper for clients in the manner of Kafka 0.7 and 0.8: `session.py`, `discovery.py` (the brokers).

Only a client with `zookeeper.connect` imports these, which load kazoo. Consumer groups in ZooKeeper are in
`client/connector/`.
"""
