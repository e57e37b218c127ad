"""The producer: `producer.py` (what users call), `background.py` (what runs on its thread), `sender.py` (what becomes
of batches that a broker refused), `transactions.py`. `calls.py` and `columns.py` treat records before they are queued;
`older.py` is for brokers older than record batches (before Kafka 0.11). Handlers' base is `client/handlers.py`.

The data plane runs without the GIL: `_core/client/producer/record_sender` and `engine`. Read their .pxd first.
"""
