"""The tasks of a load, on Spark's executors, and how the driver runs them.

Read `task.py` first: one task reads ranges of offsets and writes files (`hour_files.py`). `spark_tasks.py` is the
driver's side. A task commits nothing; the driver does, with `commits/`.
"""
