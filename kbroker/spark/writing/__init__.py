"""Writing rows to topics: at least once, or exactly once with transactions.

Read `at_least_once_writers.py` first, then `exactly_once_writer.py`. The producers are kept in `workers/`.
"""
