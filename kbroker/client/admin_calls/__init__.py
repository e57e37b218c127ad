"""The calls of AdminClient as coroutines for the client's thread: one module for each noun.

`items.py` has what calls about several things share. Users call `kbroker.client.admin`.
"""
