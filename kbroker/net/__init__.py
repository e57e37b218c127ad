"""Connections as seen from a client: the small blocking client that the commands use.

The broker's own connections are in `kbroker._core.processor`. Read `blocking_client.py`.
"""
