"""Brokers for tests: real ones in a process of their own or in this one, and stand-ins that answer as a test says.

Apache Kafka is in `kafka`, what stands between a client and a broker in `proxies`, single parts of a broker in `parts`.
Read `process.py` first for real brokers, `scripted.py` for stand-ins.
"""
