"""Fields of records as Python objects, and a builder that conversions fill with encoded records without the GIL."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t
from kbroker._core.wire.record cimport record_t

cdef object bytes_or_none(const uint8_t *data, int32_t size)
# Returns the headers as pairs of a name and a value (bytes or None), or None if they do not fill the record.
cdef tuple read_headers(const record_t *record)

cdef class RecordsBuilder:
    """Owns the encoded records."""
    cdef writer_t out
    cdef readonly int32_t count
    cdef readonly int32_t last_offset_delta
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef int write(self, int64_t timestamp, int32_t delta, Py_buffer *key, Py_buffer *value, list headers) except -1
    cdef bytes assemble(self, const uint8_t *payload, int64_t size, int attributes, int64_t base_offset,
                        int32_t leader_epoch, int64_t producer_id, int producer_epoch, int32_t base_sequence,
                        max_timestamp)
