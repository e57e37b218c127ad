"""The consumer: `consumer.py` (what users call), `options.py`, `fetching.py` (leaders, positions, errors).

The data plane, which runs without the GIL, is `_core/consumer_fetch` and `_core/consumer_records`; read their .pxd
first.
"""
