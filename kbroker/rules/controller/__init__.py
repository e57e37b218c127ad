"""What the controller of a cluster decides, without I/O.

`values.py` has brokers, assignments and states, `context.py` all that the controller knows, `commands.py` what it wants
done. A rule is a generator: it yields commands, and is sent the result of each. `elections.py` chooses leaders,
`partitions.py` and `replicas.py` are the two state machines, `batch.py` collects what brokers are told. `takeover.py`,
`brokers.py`, `topics.py`, `deletion.py`, `reassignment.py` (and `asked_moves.py`), `shutdown.py`, `leaders.py` and
`in_sync.py` are the flows that events begin. Read `commands.py` first.
"""
