"""Columns of any type and nesting, filled value by value and cut back to a row when that turns out to be bad. Arrow's layout.

A node is a column: its own validity and values, and its children's. A struct's children have a row for each of its own; a list's child
has the items of all rows one behind the other; a map is a list whose child is a struct of two. While a struct or list is under way its
children are ahead of it, and `node_cut` takes them back.
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
    # What became of a value. FINE and LACKING leave it in its column, the others leave the column to be cut.
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
    TOO_SPARSE = 15              # its lists and maps would have very many nulls that it does not say

cdef enum:
    # Nulls that stand for what a value does not say: what a struct lacks, or one that is null itself.
    NULLS_OF_A_BYTE = 32
    NULLS_OF_A_VALUE = 1024      # and one for each column

cdef struct node_t:
    int kind
    int width                    # bytes of one value; 0 where they differ
    int precision
    int scale
    int index                    # its place when parents are counted before their children
    int64_t rows
    int64_t nulls
    writer_t validity
    writer_t data
    writer_t offsets             # int32, one more than rows
    int child_count
    node_t *children
    int *by_name                 # of a struct: places of children, by size and bytes of their names
    int cells                    # values that a null of it is, its children's with it
    const uint8_t *name          # UTF-8, of the bytes object that TypedColumns keeps
    int32_t name_size


cdef inline int node_row(node_t *n, bint valid) noexcept nogil:
    """One more row, whose value is there already. FINE or NO_MEMORY."""
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
    """Where the next row's part of data or child ends."""
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
    """A value of `n.width` bytes."""
    cdef uint8_t *p = writer_reserve(&n.data, <size_t>n.width)
    if p == NULL:
        return NO_MEMORY
    memcpy(p, value, <size_t>n.width)
    return node_row(n, True)


cdef inline int put_bytes(node_t *n, const uint8_t *data, int64_t size) noexcept nogil:
    """A string's or binary's."""
    cdef uint8_t *p
    cdef int done = node_offset(n, <int64_t>n.data.size + size)
    if done != FINE:
        return done
    if size:                     # of nothing there is no place
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
    """Owns its nodes. Not safe for several threads."""
    cdef node_t root
    cdef list names              # keeps what nodes point to
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
    """An Arrow column of bytes, borrowed: row i is data[ends[i]:ends[i + 1]], null when bit i of `valid`, if there is one, is not set."""
    cdef Py_buffer[3] held
    cdef int held_count
    cdef int64_t start
    cdef int64_t end
    cdef const uint8_t *valid
    cdef const int32_t *ends
    cdef const uint8_t *data


cdef inline bint row_is_null(BinaryRows rows, int64_t row) noexcept nogil:
    return rows.valid != NULL and not rows.valid[row >> 3] >> (row & 7) & 1
