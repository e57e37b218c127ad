"""What a producer's engine cannot decide: partitions with a batch that was refused, lost or has waited for too long."""

from libc.stdint cimport int32_t

from kbroker._core.client.producer.accumulator cimport queue_t
from kbroker._core.client.producer.engine cimport ProduceEngine

cdef class Trouble:
    """A partition that Python has to decide about. No batch of it is under way. For the pump's thread."""
    cdef ProduceEngine engine
    cdef queue_t *queue
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly list batches               # TroubledBatch, in the order of their records
    cdef int restore(self, inflate) except -1
