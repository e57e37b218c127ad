"""The coordinator of transactions: who may write as which transactional id, and how its transactions end.

What may happen to an id is decided by `rules/transaction.py`, which knows no lock, log or clock. Read `coordinator.py`
first: it finds the id, holds the lock, and lets what the rules decide happen. `shard.py` is one partition of
`__transaction_state` in memory, `records.py` its records on disk, `replay.py` the way from there to here, `markers.py`
what is written to the partitions of a transaction when it ends.
"""
