"""Topics into a lake of Parquet files, each record once: what `kbroker load` and `kbroker.spark.load` do.

Read `run.py` first: it has the order of things. `plans/` says what there is to load and which task reads it, `tasks/`
reads it and writes files that nobody sees, `commits/` makes them part of the lake with one file and gives them their
names, `lake/` is where the files are, and `verification/` compares a lake with its brokers. The command line is in
`cli/load.py`; consumers for tasks are in `spark/workers/`.
"""
