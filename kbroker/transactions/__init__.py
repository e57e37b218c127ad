"""The transaction coordinator: which producer may use a transactional id, and how its transactions end.

`rules/transaction.py` decides what may happen to an id; it knows no lock, log or clock. Read `coordinator.py` first: it
finds the id, holds the lock and carries out what the rules decide. `endings.py` ends transactions with markers, which
`markers.py` describes. `shard.py` is one partition of `__transaction_state` in memory, `records.py` are its records on
disk, and `replay.py` makes the ids from the records. The files that `groups` has too have the same names there.
"""
