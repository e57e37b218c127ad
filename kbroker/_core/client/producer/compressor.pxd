"""Handing batches to a codec and taking them back, for the thread that compresses."""

from kbroker._core.client.producer.accumulator cimport Accumulator
from kbroker._core.client.producer.outgoing cimport outgoing_t

cdef class Compressor:
    """Takes batches and gives them back. For one thread.

    It holds a reference to the batch it has taken; the bytes of the batch stay where they are until it is given back.
    """
    cdef readonly Accumulator accumulator
    cdef outgoing_t *batch
