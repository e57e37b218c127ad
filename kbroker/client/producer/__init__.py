"""The producer: `producer.py` (what users call), `background.py` (what runs on its thread), `sender.py` (what becomes
of batches that a broker refused), `transactions.py`, `options.py`. `calls.py`, `handlers.py` and `encoders.py` treat
records before they are queued; `older.py` is for brokers older than record batches (before Kafka 0.11).

The data plane runs without the GIL: `_core/client/producer/record_sender` and `engine`. Read their .pxd first.
"""
