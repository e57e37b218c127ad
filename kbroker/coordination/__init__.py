"""The coordination store: a small tree of nodes with the cluster's topics, configs, ids and live brokers.

`store.py` is the interface. `embedded.py` keeps the tree in this process, durable in SQLite;
`zookeeper.py` is a session with a real ZooKeeper (kazoo), and `zookeeper_watches.py` has its watches. `paths.py` has
the paths and formats of the nodes (Kafka's ZooKeeper layout). `cluster/` decides what the nodes mean. Read `store.py`
first.
"""
