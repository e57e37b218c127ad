"""Compares brokers, lake and audit, hour by hour, for `kbroker load --verify`.

Read `verify.py` first. Tasks count in `counting.py`. `audit.py` reads the audit topic, and adds to it what a load has
loaded.
"""
