"""Decisions without I/O: values in, values out, tested without threads.

`config_values.py` is what the text of a setting may say, `topic_names.py` what a topic may be called, `placement.py`
where replicas go. Nothing here reads a file, a clock or a setting of the broker.
"""
