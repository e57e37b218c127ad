"""Clients of a broker: a tiny one on one connection, members of groups, producers with transactions, commands.

The clients of other people are in `tests/compat`. Read `wire.py` first.
"""
