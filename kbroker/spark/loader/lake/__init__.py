"""Where the files of a lake are, what makes a folder a lake, and the lock on it.

Read `storage.py` first: its docstring lists all folders and files. What the files say is in `commits/`.
"""
