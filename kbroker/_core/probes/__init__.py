"""Engines for tests of the pump and of the producer's queues. Compiled in place only: no wheel has them."""
