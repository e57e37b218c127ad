"""What users write: the options of `format("kbroker")`, those of the client, and offsets in them.

Read `format_options.py` first: it has the table of all options. Options are parsed and checked here one by one. What
several of them say together is checked where they are used (`reading/read_options.py`, `decoding/value_formats.py`).
"""
