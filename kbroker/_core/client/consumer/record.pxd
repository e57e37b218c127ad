"""A record as a consumer gets it, over the memory that it came in."""

from libc.stdint cimport int32_t, uint8_t

from kbroker._core.client.consumer.chunk cimport fetch_buffer_t
from kbroker._core.wire.record cimport record_t

cdef class RecordSource:
    """What keeps the bytes of records: the response's buffer, and for a compressed batch what it inflates to."""
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef fetch_buffer_t *buffer    # a reference; NULL: `inflated` is all there is
    cdef bytes inflated
    cdef const uint8_t *start      # what the buffer protocol shows
    cdef Py_ssize_t size

cdef class ConsumerRecord:
    cdef RecordSource source
    cdef const uint8_t *header     # of its batch, in `source.buffer`
    cdef record_t record

cdef RecordSource new_source(str topic, int32_t partition, fetch_buffer_t *buffer, bytes inflated)

cdef inline ConsumerRecord new_record(RecordSource source, const uint8_t *header):
    """Its `record` is for the caller to fill in."""
    cdef ConsumerRecord made = ConsumerRecord.__new__(ConsumerRecord)
    made.source = source
    made.header = header
    return made
