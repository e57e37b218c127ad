"""Compaction over bytes: a segment is copied without the records that later ones replace.

Start with `segment_copy.pyx` (batches); `message_copy.pxd` does the same for magic 0 and 1. `dedupe_map` knows the
newest offset of each key, `cleaned_transactions` what was aborted, `copied_bytes` collects what stays. Which log is
cleaned, and how the copy takes its place, is decided in `kbroker.storage` (`cleaner.py`, `compaction.py`,
`segment_swap.py`).
"""
