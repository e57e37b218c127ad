"""Logs and log directories on disk, made, read and checked by tests.

Bytes of single batches are in `wire`, file systems that fail in `crash`. Read `home.py` first.
"""
