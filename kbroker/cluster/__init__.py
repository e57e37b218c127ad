"""What the cluster agrees on: brokers, topics, partitions, their configs and ids, and who changes them.

`image.py` is what everybody reads (immutable, swapped whole), `topics.py` what changes it (durable in the coordination
store before anybody hears yes), `topic_configs.py` the settings a topic has. Logs on disk are not known here: a
`PartitionHost` is told which ones to have. Read `image.py` first.
"""
