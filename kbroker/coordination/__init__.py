"""The small tree of nodes that brokers agree through: topics, configs, ids, who is alive.

`store.py` is the interface (DESIGN D5), `embedded.py` keeps the tree in this process, durable in SQLite, `paths.py`
says which node holds what (Kafka's ZooKeeper layout). What the nodes mean is decided in `cluster/`. Read `store.py`
first.
"""
