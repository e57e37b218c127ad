"""What tests share. Each folder holds one kind of thing, and its `__init__` says what is in it.

`models` (what is right, slow and obvious), `brokers` and `proxies` (what a client talks to), `clients` (what talks to a
broker), `parts` (parts of a broker by themselves), `logs` and `wire` (files and bytes), `crash` (what cuts a broker's
life short), `kafka` and `spark` (the real ones). What any test may need lies beside them: whether the compiled core is
current, threads, child processes. What only one test file uses is in that file. Read `models/log.py` first.
"""
