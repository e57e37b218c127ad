"""The columns that send_many is given: lists, NumPy or Arrow arrays, read without a copy. Neither library is imported.

NumPy arrays are read through the buffer protocol, Arrow arrays through `buffers()`: validity as a bitmap, least
significant bit first; then n + 1 offsets and the data, or data of a fixed width. Arrow does not check offsets and
lengths that it is given. They are checked here, so that no byte behind its buffers is read.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.field_bytes cimport field_t
from kbroker._core.wire.cursor cimport writer_t

cdef enum:
    COLUMN_NULL = 0          # None for every record
    COLUMN_FIXED = 1
    COLUMN_STRIPPED = 2      # of fixed width; trailing zeros are not part of the value
    COLUMN_OFFSETS_32 = 3
    COLUMN_OFFSETS_64 = 4
    COLUMN_OBJECTS = 5       # Python objects: `fields` has a share of them, which begins at record -`first`
    COLUMN_ONE = 6           # integers: the value is `one` for every record

    OBJECTS_AT_ONCE = 128
    MOST_VIEWS = 3

ctypedef struct column_t:
    int kind
    const uint8_t *data
    const uint8_t *offsets
    const uint8_t *validity  # NULL: nothing is null
    int64_t stride           # bytes from one item to the next, where the width is fixed
    int64_t size             # bytes of an item, where the width is fixed
    int64_t first            # index in the buffers at which an Arrow array begins
    int64_t one
    field_t *fields

ctypedef struct header_columns_t:
    column_t lists               # offsets: which rows of `names` and `values` belong to a record
    column_t names
    column_t values


cdef class Column:
    """A column of values, and the objects that keep its memory: the buffers of an array, or Python objects."""
    cdef column_t c
    cdef Py_buffer[MOST_VIEWS] views
    cdef int view_count
    cdef object source
    cdef object items            # the list or tuple of a COLUMN_OBJECTS
    cdef PyObject **pointers     # the items of a NumPy array of objects, instead of `items`
    cdef readonly int64_t count
    cdef int64_t taken           # number of fields in use
    cdef void release_fields(self) noexcept
    cdef Py_buffer *view(self, source, int flags) except NULL
    cdef int hold_objects(self, items, int64_t count) except -1
    cdef object item(self, int64_t i)
    # Fills `fields` with the bytes of objects `first` to `stop` - 1, and returns `stop`. Valid while the GIL is held.
    cdef int64_t take_fields(self, int64_t first, int64_t stop, str what) except -1

cdef class HeaderColumns:
    """The headers of each record, from an Arrow array of lists of structs with two fields: a name and a value."""
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
    """The integer at `i`; -1 for null."""
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

# Makes a column of byte strings. `what` is the argument's name, for messages. `count` is the number of records; -1:
# this column determines it. Raises TypeError or ValueError for a source that cannot be read.
cdef Column column_of(source, str what, int64_t count, encoder)
# Makes a column of integers that are not negative; if `source` is None, the value is `one` for every record. With
# `nullable`, null is read as -1. Raises TypeError or ValueError for a source that cannot be read.
cdef Column integers_of(source, str what, int64_t count, int64_t one, bint nullable)
# Makes the columns of headers. Raises TypeError or ValueError for a source that cannot be read.
cdef HeaderColumns headers_of(source, int64_t count)
# Writes the headers of record `i` as they are encoded in a record, count first. Returns 0, or -1 if memory is out.
cdef int put_header_columns(writer_t *out, const header_columns_t *headers, int64_t i) noexcept nogil
# Returns the items as a list of Python objects.
cdef object objects_of(source)
