"""Topics into a lake of Parquet files, each record once: what `kbroker load` and `kbroker.spark.load` do.

`run.py` is the order of things and the file to read first: `brokers.py` says what there is to load, `plan.py` and
`work.py` what is read by which task, `task.py` reads it and writes files that nobody sees (`hour_files.py`),
`commits.py` and `commit_files.py` make them part of the lake with one file, `publish.py` gives them their names.
`lake.py` is where files are; `topic_commits.py` the commits of lakes that are not directories.
"""
