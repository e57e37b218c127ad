"""The client for Kafka and kbroker: producers, consumers and administration, for threads and for asyncio.

Importing it loads neither asyncio nor ssl nor numpy: what a client needs is loaded when the first one is made. How one
is built: `thread.py` (its background thread: an asyncio loop whose selector is the compiled pump), `connection.py` (one
connection), `cluster.py` (where everything is). Read `thread.py` first.
"""
