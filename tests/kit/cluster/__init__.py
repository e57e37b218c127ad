"""A ZooKeeper and several brokers, Apache Kafka 3.9.1 or kbroker or both, and everything that can happen to them.

`cluster.py` has the cluster and its faults: read it first. `network.py` gives each node a network of its own.
`nodes.py` runs a broker of either kind in it. `tree.py` says what ZooKeeper must hold when all is at rest, and
`replicas.py` compares the replicas' bytes. Load and checks are in tests/crash and tests/oracle.
"""
