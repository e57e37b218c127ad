"""Checks that no request costs a full broker far more than its size: for every served API and version.

`bounds.py` is the table of what a request may cost. `shapes.py` makes requests from the schemas, `furnishing.py` makes
the topics and groups that they name, `figures.py` measures what they cost. Read `bounds.py` first.
"""
