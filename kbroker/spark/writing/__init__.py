"""Writing rows to topics: at least once (at_least_once_writers.py), or exactly once with transactions
(exactly_once_writer.py)."""
