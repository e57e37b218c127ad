"""A record as a consumer gets it: a view of the memory that it was received in."""

from libc.stdint cimport int32_t, uint8_t

from kbroker._core.client.consumer.chunk cimport fetch_buffer_t
from kbroker._core.wire.record cimport record_t

cdef class RecordSource:
    """Keeps the bytes of records: the response's buffer, and for a compressed batch the decompressed bytes."""
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef fetch_buffer_t *buffer    # a reference; NULL: only `inflated` has bytes
    cdef bytes inflated            # decompressed bytes, or None
    cdef const uint8_t *start      # the bytes that the buffer protocol gives: `inflated`, or all of the buffer
    cdef Py_ssize_t size

cdef class ConsumerRecord:
    cdef RecordSource source
    cdef const uint8_t *header     # the header of the record's batch, in memory that `source` keeps
    cdef record_t record

cdef RecordSource new_source(str topic, int32_t partition, fetch_buffer_t *buffer, bytes inflated)

cdef inline ConsumerRecord new_record(RecordSource source, const uint8_t *header):
    """Make a ConsumerRecord. The caller fills in its `record`."""
    cdef ConsumerRecord made = ConsumerRecord.__new__(ConsumerRecord)
    made.source = source
    made.header = header
    return made
