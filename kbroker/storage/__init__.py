"""The log: partitions on disk, in Apache Kafka's layout and formats.

`log.py` is one partition's log and the file to read first; `log_manager.py` owns all of them, `open_directory.py` is
one of their directories with its checkpoints.
The hot paths are compiled: `log/partition.pyx` (append), `log/position.pyx` (lookup), `log/flush.pyx`, all in `_core`.
What is not here: who leads a partition and what a topic is called in the cluster.
"""
