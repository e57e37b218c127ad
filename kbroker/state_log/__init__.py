"""A partition that holds the records of a state machine: load, replay, append, fence by leader epoch, unload.

Read `shards.py` first: it finds the partition of a key. `state_partition.py` is one partition from load to unload,
`replica.py` the log that it is written to, `loader.py` the thread that replays, `deadlines.py` the timer,
`append_errors.py` what clients are told of an append that fails. What the records mean is decided by the users of this
package: `groups` and `transactions`.
"""
