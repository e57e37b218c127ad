"""Reading the files of a log directory to show them or to judge them; nothing here writes, locks or serves.

`entries.py` first: what a file is made of. `partition_check.py` and `directory_check.py` hold files against each other.
"""
