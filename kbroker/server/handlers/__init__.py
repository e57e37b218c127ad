"""One file per API, which opens with the versions served and what is left out. `server/dispatch.py` routes to them.

What several handlers need is in `shared/`. A handler imports nothing else of `kbroker.server`. Produce and Fetch are
compiled (`kbroker._core`); their files here serve only the requests that may block. Read `heartbeat.py` first: it is
the shortest.
"""
