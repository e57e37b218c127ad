"""The producer: `producer.py` (what users call), `options.py`, `sender.py` (what becomes of refused batches).

The data plane, which runs without the GIL, is `_core/record_sender` and `_core/produce_engine`; read their .pxd first.
"""
