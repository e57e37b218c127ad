"""The producer and the consumer for asyncio: `producer.py`, `consumer.py`. They have the background thread and the
engines of those for threads; what that thread has for an event loop it says by `waiting.py`, once for many things.

The admin client has both its faces in `client/admin.py`.
"""
