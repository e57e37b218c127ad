"""The administration client: `admin_client.py` (what users call), `results.py` (what its methods return).

Its calls are coroutines for the client's thread, one module for each noun: `brokers.py`, `configs.py`, `groups.py`,
`log_dirs.py`, `offsets.py`, `topics.py`, `transactions.py`. `items.py` has what calls about several things share. Read
`admin_client.py` first.
"""
