"""What an administrator asks, as coroutines for the client's thread: one module per noun, `items.py` for calls about
several things. `kbroker.client.admin` is what users call.
"""
