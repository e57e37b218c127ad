"""Where connections go: addresses, listening sockets, transports such as TLS, and the pacing of what is sent.

The connections themselves are in `kbroker._core.server.processor` (the broker's) and `kbroker.client`. Read
`endpoints.py` first.
"""
