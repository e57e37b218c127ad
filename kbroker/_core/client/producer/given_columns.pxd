"""One column of what send_many is given: a list, a NumPy or an Arrow array, read where it lies. Neither library is imported.

How a column lies in memory: NumPy's by the buffer protocol, Arrow's by `buffers()` (validity as a bitmap, least significant bit
first; n + 1 offsets and the data, or data of a fixed width). Arrow does not check what it is given; here no byte behind its
buffers is read.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.field_bytes cimport field_t
from kbroker._core.wire.cursor cimport writer_t

cdef enum:
    COLUMN_NULL = 0          # None for every record
    COLUMN_FIXED = 1
    COLUMN_STRIPPED = 2      # fixed, without trailing zeros
    COLUMN_OFFSETS_32 = 3
    COLUMN_OFFSETS_64 = 4
    COLUMN_OBJECTS = 5       # Python objects: `fields` has a share of them, from record `first` on
    COLUMN_ONE = 6           # integers: `one` for every record

    OBJECTS_AT_ONCE = 128
    MOST_VIEWS = 3

ctypedef struct column_t:
    int kind
    const uint8_t *data
    const uint8_t *offsets
    const uint8_t *validity  # NULL: nothing is null
    int64_t stride
    int64_t size
    int64_t first            # of Arrow: where the array begins in its buffers
    int64_t one
    field_t *fields

ctypedef struct header_columns_t:
    column_t lists               # which rows of the others are a record's
    column_t names
    column_t values


cdef class Column:
    """One column's memory: holds its buffers, or the objects."""
    cdef column_t c
    cdef Py_buffer[MOST_VIEWS] views
    cdef int view_count
    cdef object source
    cdef object items            # a list or a tuple, of COLUMN_OBJECTS
    cdef PyObject **pointers     # of an array of objects instead of `items`
    cdef readonly int64_t count
    cdef int64_t taken           # fields in use
    cdef void release_fields(self) noexcept
    cdef Py_buffer *view(self, source, int flags) except NULL
    cdef int hold_objects(self, items, int64_t count) except -1
    cdef object item(self, int64_t i)
    # The bytes of some objects from `first` on; returns where it stopped. Valid while the GIL is held.
    cdef int64_t take_fields(self, int64_t first, int64_t stop, str what) except -1

cdef class HeaderColumns:
    """Headers of each record, from an Arrow array of lists of structs of two fields, a name and a value."""
    cdef header_columns_t h
    cdef Column lists
    cdef Column names
    cdef Column values
    cdef readonly int64_t count

cdef inline bint is_null(const column_t *c, int64_t i) noexcept nogil:
    return c.validity != NULL and not c.validity[i >> 3] >> (i & 7) & 1


cdef inline void column_get(const column_t *c, int64_t i, const uint8_t **data, int64_t *size) noexcept nogil:
    cdef int64_t start
    cdef int64_t left
    data[0] = NULL
    size[0] = -1
    if c.kind == COLUMN_NULL:
        return
    i += c.first
    if c.kind == COLUMN_OBJECTS:
        data[0] = c.fields[i].data
        size[0] = c.fields[i].size
        return
    if is_null(c, i):
        return
    if c.kind == COLUMN_OFFSETS_32:
        start = (<const int32_t *>c.offsets)[i]
        size[0] = (<const int32_t *>c.offsets)[i + 1] - start
        data[0] = c.data + start
    elif c.kind == COLUMN_OFFSETS_64:
        start = (<const int64_t *>c.offsets)[i]
        size[0] = (<const int64_t *>c.offsets)[i + 1] - start
        data[0] = c.data + start
    else:
        data[0] = c.data + i * c.stride
        left = c.size
        if c.kind == COLUMN_STRIPPED:
            while left > 0 and data[0][left - 1] == 0:
                left -= 1
        size[0] = left


cdef inline int64_t column_int(const column_t *c, int64_t i) noexcept nogil:
    """-1 for null."""
    cdef const uint8_t *p
    if c.kind == COLUMN_ONE:
        return c.one
    if is_null(c, i + c.first):
        return -1
    p = c.data + (i + c.first) * c.stride
    if c.size == 8:
        return (<const int64_t *>p)[0]
    if c.size == 4:
        return (<const int32_t *>p)[0]
    if c.size == 2:
        return (<const int16_t *>p)[0]
    return (<const int8_t *>p)[0]

# Of byte strings. `count`: of the records, -1 when this column says it.
cdef Column column_of(source, str what, int64_t count, encoder)
# Of integers that are not negative; `one` for every record when `source` is None. `nullable`: of Arrow's, null is -1.
cdef Column integers_of(source, str what, int64_t count, int64_t one, bint nullable)
cdef HeaderColumns headers_of(source, int64_t count)
# What they are in a record: their count and themselves. 0, or -1 when memory is out.
cdef int put_header_columns(writer_t *out, const header_columns_t *headers, int64_t i) noexcept nogil
# The items as Python objects.
cdef object objects_of(source)
