"""Parts of a broker by themselves, on stand-ins for what is around them in a broker.

Whole brokers are in `brokers`. Read `processors.py` first.
"""
