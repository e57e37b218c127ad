"""What clients of Kafka 0.7 and 0.8 look up in a ZooKeeper: `options.py`, `session.py`, `discovery.py` (the brokers).

Imported only by a client that is given `zookeeper.connect`: kazoo comes with it. The group of consumers that is kept
there is `client/connector/`.
"""
