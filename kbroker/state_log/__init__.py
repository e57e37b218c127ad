"""A partition as a state machine: load, replay, append, fence by leader epoch, unload.

`replica.py` is what such a partition is written to and read from, `partition.py` its life, `loader.py` the thread that
replays what is long. What the records mean is the business of who stands on it: groups, transactions.
"""
