"""The broker's metrics: their table, the registry of sources that a scrape reads, and Prometheus' text format.

Hot counters are C integers in `kbroker._core`; `server/measurements.py` reads them. Read `definitions.py` first.
"""
