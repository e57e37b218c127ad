"""What the broker counts: the table of metrics, a registry of what is read at a scrape, Prometheus' text.

Hot counters are C integers in `kbroker._core`; `server/measurements.py` reads them. Read `definitions.py` first.
"""
