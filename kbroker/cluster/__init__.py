"""The cluster's metadata: brokers, topics, partitions, their configs and ids, and the changes to them.

`image.py` is what readers use: immutable, and replaced as a whole. `topics.py` makes changes, each durable in the
coordination store before it is answered. `topic_configs.py` has the settings of a topic. This package does not know the
logs on disk: it tells a `PartitionHost` which logs to have. Read `image.py` first.
"""
