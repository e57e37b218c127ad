"""Reading the files of a log directory to show or check them; nothing here writes, locks or serves.

Read `entries.py` first: what a file is made of. `partition_check.py` and `directory_check.py` compare files with each
other.
"""
