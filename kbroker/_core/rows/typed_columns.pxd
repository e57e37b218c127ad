"""Columns of any type and nesting, in Arrow's layout: filled value by value, and cut back when a value turns out bad.

A node is a column: its own validity and values, and the nodes of its children. A struct's children have a row for each
of its rows. A list's child has the items of all rows, one behind the other. A map is a list whose child is a struct of
two, the key and the value. While a struct or list is being filled, its children are ahead of it; `node_cut` takes them
back.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._core.wire.cursor cimport writer_reserve, writer_t

cdef enum:
    # The order of typed_columns.KINDS.
    KIND_NULL = 0
    KIND_BOOL = 1
    KIND_INT8 = 2
    KIND_INT16 = 3
    KIND_INT32 = 4
    KIND_INT64 = 5
    KIND_FLOAT = 6
    KIND_DOUBLE = 7
    KIND_DATE = 8                # int32, days
    KIND_TIMESTAMP = 9           # int64, microseconds UTC
    KIND_TIMESTAMP_NTZ = 10      # int64, microseconds
    KIND_DECIMAL = 11            # 16 bytes
    KIND_STRING = 12
    KIND_BINARY = 13
    KIND_STRUCT = 14
    KIND_LIST = 15
    KIND_MAP = 16

cdef enum:
    # What became of a value. After FINE it is in its column; after the others the column has to be cut.
    FINE = 0
    NO_MEMORY = 1
    TOO_LARGE = 2                # a column would have more than 2 GiB
    NOT_OF_TYPE = 3              # well-formed, but not what the column holds
    MALFORMED = 4
    TOO_DEEP = 5
    NOT_UTF8 = 6
    LEFT_OVER = 7                # bytes behind the value
    TOO_SHORT = 8
    BAD_COUNT = 9
    NO_BRANCH = 10
    NO_SYMBOL = 11
    NO_SCHEMA = 12
    NO_HEADER = 13
    OTHER_SCHEMA = 14
    TOO_SPARSE = 15              # it would take very many nulls for what it does not say

cdef enum:
    # How many nulls a value may take for what it does not say: fields that a struct lacks, or those of a null struct.
    NULLS_OF_A_BYTE = 32         # for each of its bytes
    NULLS_OF_A_VALUE = 1024      # besides, and one for each column

cdef struct node_t:
    int kind
    int width                    # bytes of one value; 0 if that is no fixed number of bytes
    int precision
    int scale
    int index                    # its number; parents are counted before their children
    int64_t rows
    int64_t nulls
    writer_t validity
    writer_t data
    writer_t offsets             # int32, one more than rows
    int child_count
    node_t *children
    int *by_name                 # of a struct: places of its children, sorted by size and bytes of their names
    int cells                    # how many values one null takes, in a struct's children too
    const uint8_t *name          # UTF-8, borrowed from a bytes object in TypedColumns.names
    int32_t name_size


cdef inline int node_row(node_t *n, bint valid) noexcept nogil:
    """Add a row, whose value is written already. Return FINE or NO_MEMORY."""
    cdef uint8_t *p
    if n.rows & 7 == 0:
        p = writer_reserve(&n.validity, 1)
        if p == NULL:
            return NO_MEMORY
        p[0] = 0
    if valid:
        n.validity.data[n.rows >> 3] |= <uint8_t>(1 << (n.rows & 7))
    else:
        n.nulls += 1
    n.rows += 1
    return FINE


cdef inline int node_offset(node_t *n, int64_t end) noexcept nogil:
    """Add the offset at which the next row's part of `data`, or of the child, ends.

    Returns FINE, TOO_LARGE or NO_MEMORY.
    """
    cdef uint8_t *p
    cdef int32_t small = <int32_t>end
    if end > INT32_MAX:
        return TOO_LARGE
    p = writer_reserve(&n.offsets, 4)
    if p == NULL:
        return NO_MEMORY
    memcpy(p, &small, 4)
    return FINE


cdef inline int put_fixed(node_t *n, const void *value) noexcept nogil:
    """Add a row with a value of `n.width` bytes."""
    cdef uint8_t *p = writer_reserve(&n.data, <size_t>n.width)
    if p == NULL:
        return NO_MEMORY
    memcpy(p, value, <size_t>n.width)
    return node_row(n, True)


cdef inline int put_bytes(node_t *n, const uint8_t *data, int64_t size) noexcept nogil:
    """Add a row with the value of a string or binary."""
    cdef uint8_t *p
    cdef int done = node_offset(n, <int64_t>n.data.size + size)
    if done != FINE:
        return done
    if size:                     # for 0 bytes writer_reserve may return NULL
        p = writer_reserve(&n.data, <size_t>size)
        if p == NULL:
            return NO_MEMORY
        memcpy(p, data, <size_t>size)
    return node_row(n, True)


cdef inline int put_bool(node_t *n, bint value) noexcept nogil:
    cdef uint8_t *p
    if n.rows & 7 == 0:
        p = writer_reserve(&n.data, 1)
        if p == NULL:
            return NO_MEMORY
        p[0] = 0
    if value:
        n.data.data[n.rows >> 3] |= <uint8_t>(1 << (n.rows & 7))
    return node_row(n, True)


cdef int put_null(node_t *n) noexcept nogil
cdef int put_integer(node_t *n, int64_t value) noexcept nogil
cdef int put_double(node_t *n, double value) noexcept nogil
cdef void node_cut(node_t *n, int64_t rows) noexcept nogil


cdef class TypedColumns:
    """A column with all that is nested in it. Owns its nodes. Not safe for several threads."""
    cdef node_t root
    cdef list names              # bytes objects, which nodes point into
    cdef int node_count
    cdef writer_t finding_rows   # int64
    cdef writer_t finding_reasons
    cdef writer_t finding_nodes  # int32 each
    cdef int build(self, node_t *n, object spec, int depth) except -1
    cdef int found(self, int64_t row, int reason, int node) noexcept nogil
    cdef int bad_row(self) noexcept nogil
    cdef int64_t most_nulls(self, int64_t size) noexcept nogil
    cdef node_t *node(self, int index) except NULL


cdef class BinaryRows:
    """Rows `start` to `end` of an Arrow column of bytes. The buffers are borrowed, and held in `held`.

    Row i is data[ends[i]:ends[i + 1]]. It is null if there is a `valid` whose bit i is not set.
    """
    cdef Py_buffer[3] held
    cdef int held_count
    cdef int64_t start
    cdef int64_t end
    cdef const uint8_t *valid
    cdef const int32_t *ends
    cdef const uint8_t *data


cdef inline bint row_is_null(BinaryRows rows, int64_t row) noexcept nogil:
    return rows.valid != NULL and not rows.valid[row >> 3] >> (row & 7) & 1
