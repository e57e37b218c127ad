"""Compaction over bytes: copies a segment without the records that later ones replace.

Start with `segment_copy.pyx` (batches); `message_copy.pxd` does the same for messages of magic 0 and 1. `dedupe_map`
knows the newest offset of each key, `cleaned_transactions` knows the aborted transactions, `copied_bytes` collects the
bytes that stay. `kbroker.storage` decides which log is cleaned and how a copy replaces its segments (`cleaner.py`,
`compaction.py`, `segment_swap.py`).
"""
