"""Reading topics as rows of a DataFrame or a stream.

Read `batch_reader.py` first. The driver plans (`planning.py`), and each task reads one range of offsets
(`range_reader.py`). Values are decoded in `decoding/`; the loader has tasks of its own in `loader/tasks/`.
"""
