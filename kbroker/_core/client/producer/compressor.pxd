"""Handing batches to a codec and taking them back, for the thread that compresses."""

from kbroker._core.client.producer.accumulator cimport Accumulator
from kbroker._core.client.producer.outgoing cimport outgoing_t

cdef class Compressor:
    """The batches that wait to be compressed, one after the other. For one thread.

    It holds a reference to the batch that `next_batch` returned; its bytes stay where they are until `finish_batch`.
    """
    cdef readonly Accumulator accumulator
    cdef outgoing_t *batch
