"""Reference models: what is right, slow and obvious. kbroker's compiled and hand-written code is compared with them.

A module `x_machine` drives a model and the real thing side by side. Read `log.py` first.
"""
