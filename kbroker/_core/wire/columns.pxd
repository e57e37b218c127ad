"""Records of many batches as flat columns: the calls for compiled code. The calls for Python are in columns.pyx."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t

from kbroker._core.wire.cursor cimport writer_t
from kbroker._core.wire.record_batch cimport batch_info_t

cdef enum:
    TOO_LARGE = -2             # besides the findings and OUT_OF_MEMORY

cdef enum:
    # Bits of the columns that are wanted, in the order of COLUMN_NAMES.
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
    writer_t validity            # a bitmap: set for rows that are not null, least significant bit first
    int64_t rows
    int64_t nulls

cdef class FlatBuffer:
    """Owns the memory of one column. It is read through the buffer protocol: `memoryview(column)`."""
    cdef writer_t out
    cdef bytes format
    cdef Py_ssize_t item_size
    cdef Py_ssize_t[1] shape

cdef class BinaryColumn:
    """A column of byte strings: row i is data[offsets[i]:offsets[i + 1]], or null if bit i of `validity` is not set."""
    cdef readonly FlatBuffer data
    cdef readonly FlatBuffer offsets
    cdef readonly FlatBuffer validity
    cdef readonly int64_t null_count
    cdef int32_t fixed_size(self) noexcept nogil

cdef class RecordColumns:
    """Collects from batches the records with offsets from `start_offset` to `end_offset` - 1.

    For one thread at a time.
    """
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
    # Adds records of one batch: those behind the first `skipped` ones, `most` at most. `payload` has the batch's
    # records, decompressed. Returns BATCH_OK, a finding, OUT_OF_MEMORY or TOO_LARGE; unless it is BATCH_OK, nothing was
    # added.
    cdef int add_records(self, const uint8_t *payload, int64_t size, const batch_info_t *info, int32_t skipped,
                         int32_t most) noexcept nogil
    cdef int walk(self, const uint8_t *p, const uint8_t *end, const batch_info_t *info, int32_t skipped,
                  int32_t most) noexcept nogil
    cdef int walk_headers(self, const uint8_t *p, const uint8_t *stop, int32_t count, bint wanted) noexcept nogil
    cdef int raise_for(self, int finding, int64_t position) except -1

# Returns the bits of the columns in `names`, or of all columns if it is None. Raises ValueError for an unknown name.
cdef int columns_named(names) except -1

# Makes a FlatBuffer of the memory of `out`, which is empty afterwards.
cdef FlatBuffer flat(writer_t *out, bytes format, Py_ssize_t item_size)
