"""The producer: `producer.py` (what users call), `background.py` (its thread), `sender.py` (what becomes of refused
batches), `transactions.py`, `options.py`; `calls.py`, `handlers.py` and `encoders.py` around the queue, `older.py` for
brokers of before record batches.

The data plane, which runs without the GIL, is `_core/record_sender` and `_core/produce_engine`; read their .pxd first.
"""
