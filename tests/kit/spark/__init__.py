"""Spark for tests: sessions, clusters, jobs as programs, loads that are killed, and the stores and registries they use.

The tests are in `tests/spark` and `tests/unit/spark`. Read `session.py` first.
"""
