"""One file per API, which opens with the versions served and what is left out. `server/dispatch.py` routes to them.

Produce and Fetch are compiled (`kbroker._core`); their files here serve only the requests that may block.
"""
