"""Engines for tests of the pump and of the producer's queues.

They are compiled in place only; no wheel contains them.
"""
