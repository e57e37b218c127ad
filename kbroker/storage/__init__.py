"""The log: partitions on disk, in Apache Kafka's layout and formats.

Read `log.py` first: it is one partition's log. `log_manager.py` owns all logs; `open_directory.py` is one log
directory with its checkpoints.
The hot paths are compiled: `log/partition.pyx` (append), `log/position.pyx` (lookup), `log/flush.pyx`, all in `_core`.
What is not here: who leads a partition and what a topic is called in the cluster.
"""
