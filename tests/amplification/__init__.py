"""Whether a request may cost more than it weighs: every served API and version, from the schemas, on a full broker.

`bounds.py` is the table of what a request may cost; `shapes.py` makes requests, `furnishing.py` what they name,
`figures.py` weighs them. Read `bounds.py` first.
"""
