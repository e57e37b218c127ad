"""Connections as seen from a client: the small blocking client of a command and the test kit.

The broker's own connections are in `kbroker._core.processor`. Read `blocking_client.py`.
"""
