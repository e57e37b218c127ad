"""Where connections go and by which rules: addresses, endpoints, transports, pacing.

The connections themselves are in `kbroker._core.server.processor` (the broker's) and `kbroker.client`. Read
`endpoints.py` first.
"""
