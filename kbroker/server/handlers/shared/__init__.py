"""What several handlers need: the broker's parts, late answers, and what their requests have in common.

Nothing here serves an API, and nothing here imports the rest of `kbroker.server`. Read `services.py` first: it has the
parts of the broker that a handler may use.
"""
