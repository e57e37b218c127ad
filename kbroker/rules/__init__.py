"""Decisions without I/O: values in, values out, tested without threads.

`group.py` and `consumer_group.py` are the state machines of groups, `transaction.py` that of a transactional id,
`config_values.py` parses settings, `topic_names.py` checks names, `placement.py` places replicas.
`controller/` is what a controller decides, `in_sync.py` a leader's ISR, `follower.py` truncation,
`incomplete_replica.py` a damaged replica. Nothing here reads a
file, a clock or a setting of the broker.
"""
