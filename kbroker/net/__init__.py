"""Where connections go and by what rules: addresses, endpoints, transports, the pace of connections.

The connections themselves are in `kbroker._core.server.processor` (the broker's) and `kbroker.client`. Read `endpoints.py`.
"""
