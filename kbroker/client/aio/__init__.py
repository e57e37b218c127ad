"""The producer and the consumer for asyncio: `producer.py`, `consumer.py`.

They use the same background thread and the same engines as those for threads. `waiting.py` wakes the tasks of an event
loop from that thread, with one message for all of them. AsyncAdminClient is in `client/admin/`.
"""
