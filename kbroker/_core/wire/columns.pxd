"""Records of many batches as flat columns, for those who have the bytes at hand; Python's calls are in columns.pyx."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t
from kbroker._core.wire.record_batch cimport batch_info_t

cdef enum:
    OUT_OF_MEMORY = -1
    TOO_LARGE = -2

cdef enum:
    # Which columns are wanted.
    COLUMN_TOPIC = 1
    COLUMN_PARTITION = 2
    COLUMN_OFFSET = 4
    COLUMN_TIMESTAMP = 8
    COLUMN_TIMESTAMP_TYPE = 16
    COLUMN_KEY = 32
    COLUMN_VALUE = 64
    COLUMN_HEADERS = 128
    ALL_COLUMNS = 255

ctypedef struct binary_t:
    # A column of byte strings.
    writer_t data
    writer_t offsets             # int32, one more than rows
    writer_t validity
    int64_t rows
    int64_t nulls

cdef class FlatBuffer:
    """Memory of one column, read through the buffer protocol: `memoryview(column)`. Owns it."""
    cdef writer_t out
    cdef bytes format
    cdef Py_ssize_t item_size
    cdef Py_ssize_t[1] shape

cdef class BinaryColumn:
    """Byte strings: row i is data[offsets[i]:offsets[i + 1]], null when bit i of `validity` is not set."""
    cdef readonly FlatBuffer data
    cdef readonly FlatBuffer offsets
    cdef readonly FlatBuffer validity
    cdef readonly int64_t null_count
    cdef int32_t fixed_size(self) noexcept nogil

cdef class RecordColumns:
    """Collects the records of batches whose offset is in `start_offset` ... `end_offset` - 1. Not safe for several threads."""
    cdef readonly int64_t start_offset
    cdef readonly int64_t end_offset
    cdef readonly int64_t count
    cdef int wanted
    cdef list topics
    cdef int32_t topic_index
    cdef int32_t partition
    cdef writer_t topic_indexes
    cdef writer_t partitions
    cdef writer_t offsets
    cdef writer_t timestamps
    cdef writer_t timestamp_types
    cdef writer_t header_offsets
    cdef binary_t keys
    cdef binary_t values
    cdef binary_t header_names
    cdef binary_t header_values
    # Of a batch's records, `payload` inflated, those behind the first `skipped`, at most `most`. BATCH_OK, a finding,
    # OUT_OF_MEMORY or TOO_LARGE; nothing was added unless it is BATCH_OK.
    cdef int take(self, const uint8_t *payload, int64_t size, const batch_info_t *info, int32_t skipped, int32_t most) noexcept nogil
    cdef int walk(self, const uint8_t *p, const uint8_t *end, const batch_info_t *info, int32_t skipped, int32_t most) noexcept nogil
    cdef int walk_headers(self, const uint8_t *p, const uint8_t *stop, int32_t count, bint wanted) noexcept nogil
    cdef int raise_for(self, int finding, int64_t position) except -1

# The columns that `names` name; all without. ValueError for a name that is none.
cdef int columns_named(names) except -1

# Takes over what `out` holds.
cdef FlatBuffer flat(writer_t *out, bytes format, Py_ssize_t item_size)
