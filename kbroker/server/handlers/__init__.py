"""One file per API: what it answers, which versions, what it leaves out. `server/dispatch.py` routes to them.

Produce and Fetch are compiled (`kbroker._core`); their files here finish what could not be finished without blocking.
"""
