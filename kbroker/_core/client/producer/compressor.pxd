"""Batches on their way to a codec and back, for the thread that compresses."""

from kbroker._core.client.producer.accumulator cimport Accumulator
from kbroker._core.client.producer.outgoing cimport outgoing_t

cdef class Compressor:
    """For one thread. Holds a reference to the batch it has taken, whose bytes stay where they are until it gives it back."""
    cdef readonly Accumulator accumulator
    cdef outgoing_t *batch
