"""Columns of byte strings, of integers and of headers; see given_columns.pxd."""

cimport cython
from cpython.buffer cimport PyBUF_RECORDS_RO, PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from libc.stdlib cimport calloc, free

from kbroker._core.base.field_bytes cimport field_release, field_take
from kbroker._core.wire.cursor cimport writer_reserve
from kbroker._core.wire.varint cimport bytes_size, put_bytes, put_varlong, varlong_size


@cython.final
cdef class Column:
    def __dealloc__(self):
        cdef int i
        self.release_fields()
        free(self.c.fields)
        for i in range(self.view_count):
            PyBuffer_Release(&self.views[i])

    cdef void release_fields(self) noexcept:
        cdef int64_t i
        for i in range(self.taken):
            field_release(&self.c.fields[i])
        self.taken = 0

    cdef Py_buffer *view(self, source, int flags) except NULL:
        cdef Py_buffer *view = &self.views[self.view_count]
        PyObject_GetBuffer(source, view, flags)
        self.view_count += 1
        return view

    cdef int hold_objects(self, items, int64_t count) except -1:
        self.c.kind = COLUMN_OBJECTS
        self.items = items
        self.count = count
        self.c.fields = <field_t *>calloc(OBJECTS_AT_ONCE, sizeof(field_t))
        if self.c.fields == NULL:
            raise MemoryError()
        return 0

    cdef object item(self, int64_t i):
        if self.pointers != NULL:
            return <object>(<PyObject **>(<char *>self.pointers + i * self.c.stride))[0]
        return self.items[i]

    cdef int64_t take_fields(self, int64_t first, int64_t stop, str what) except -1:
        """Fill `fields` with the bytes of objects `first` to `stop` - 1, and return `stop`.

        Valid while the GIL is held.
        """
        cdef int64_t i
        self.release_fields()
        self.c.first = -first
        if self.items is not None and len(self.items) < stop:
            raise ValueError(f"{what} has been made shorter meanwhile")
        for i in range(first, stop):
            field_take(self.item(i), &self.c.fields[i - first], what)
            self.taken += 1
        return stop

# --- what a column is made of -------------------------------------------------------------------------

cdef int hold_validity(Column column, source, str what) except -1:
    """Set the length, the first index and the validity bitmap of an Arrow array.

    Raises ValueError if the bitmap is too short.
    """
    cdef Py_buffer *view
    column.count = len(source)
    column.c.first = source.offset
    if source.null_count and source.buffers()[0] is not None:
        view = column.view(source.buffers()[0], PyBUF_SIMPLE)
        column.c.validity = <const uint8_t *>view.buf
        if view.len * 8 < column.c.first + column.count:
            raise ValueError(f"{what}: the validity bitmap is too short")
    return 0


cdef int from_arrow(Column column, source, str what) except -1:
    cdef str kind = str(source.type)
    cdef int64_t length = len(source)
    cdef int64_t first = source.offset
    cdef int64_t width
    cdef Py_buffer *view
    buffers = source.buffers()
    column.source = source
    hold_validity(column, source, what)
    if kind.startswith("fixed_size_binary["):
        column.c.kind = COLUMN_FIXED
        column.c.size = column.c.stride = source.type.byte_width
        view = column.view(buffers[1], PyBUF_SIMPLE)
        column.c.data = <const uint8_t *>view.buf
        if view.len < (first + length) * column.c.stride:
            raise ValueError(f"{what}: the data are too short")
        return 0
    if kind in ("binary", "string"):
        column.c.kind = COLUMN_OFFSETS_32
        width = 4
    elif kind in ("large_binary", "large_string"):
        column.c.kind = COLUMN_OFFSETS_64
        width = 8
    else:
        raise TypeError(f"{what}: an Arrow array of {kind}; cast it to binary or string")
    if length == 0:
        column.c.kind = COLUMN_NULL
        return 0
    view = column.view(buffers[1], PyBUF_SIMPLE)
    column.c.offsets = <const uint8_t *>view.buf
    if view.len < (first + length + 1) * width:
        raise ValueError(f"{what}: the offsets are too short")
    width = 0
    if buffers[2] is not None:
        view = column.view(buffers[2], PyBUF_SIMPLE)
        column.c.data = <const uint8_t *>view.buf
        width = view.len
    if not offsets_fit(&column.c, length, width):
        raise ValueError(f"{what}: the offsets do not fit the data")
    return 0


cdef bint offsets_fit(const column_t *c, int64_t length, int64_t size) noexcept nogil:
    """Whether the offsets of an Arrow array never fall and stay within its `size` bytes of data.

    Arrow does not check this.
    """
    cdef int64_t i
    cdef int64_t at
    cdef int64_t before = 0
    for i in range(c.first, c.first + length + 1):
        if c.kind == COLUMN_OFFSETS_32:
            at = (<const int32_t *>c.offsets)[i]
        else:
            at = (<const int64_t *>c.offsets)[i]
        if at < before or at > size:
            return False
        before = at
    return True


cdef int from_buffer(Column column, source, str what) except -1:
    cdef Py_buffer *view = column.view(source, PyBUF_RECORDS_RO)
    cdef str kind = view.format.decode() if view.format != NULL else "B"
    column.source = source
    column.count = view.shape[0] if view.ndim else 0
    if view.ndim == 1 and kind == "O":
        column.hold_objects(None, column.count)
        column.pointers = <PyObject **>view.buf
        column.c.stride = view.strides[0]
        return 0
    column.c.data = <const uint8_t *>view.buf
    if view.ndim == 1 and kind.lstrip("=<>|0123456789") == "s":
        column.c.kind = COLUMN_STRIPPED
        column.c.stride = view.strides[0]
        column.c.size = view.itemsize
    elif view.ndim == 2 and view.itemsize == 1 and kind in ("B", "b", "c"):
        if view.shape[1] > 1 and view.strides[1] != 1:
            raise ValueError(f"{what}: the bytes of a row are not side by side (numpy.ascontiguousarray makes them so)")
        column.c.kind = COLUMN_FIXED
        column.c.stride = view.strides[0]
        column.c.size = view.shape[1]
    elif view.ndim == 1 and kind.lstrip("=<>|0123456789") == "w":
        column.hold_objects(source.tolist(), column.count)
    else:
        raise TypeError(f"{what}: an array of format {kind!r} and {view.ndim} dimensions; S, U, object or uint8 of two "
                        "dimensions is taken")
    return 0


cdef Column column_of(source, str what, int64_t count, encoder):
    """Make a column of byte strings; see given_columns.pxd."""
    cdef Column column = Column.__new__(Column)
    if source is None and count >= 0 and encoder is None:
        column.count = count
        return column
    if isinstance(source, (str, bytes, bytearray)) or source is None:
        raise TypeError(f"{what} must be a list, a NumPy or an Arrow array, not {type(source).__name__}")
    if encoder is not None:
        items = [encoder(item) for item in objects_of(source)]
        column.hold_objects(items, len(items))
    elif isinstance(source, (list, tuple)):
        column.hold_objects(source, len(source))
    elif hasattr(source, "buffers"):
        from_arrow(column, source, what)
    elif PyObject_CheckBuffer(source):
        from_buffer(column, source, what)
    else:
        items = list(source)
        column.hold_objects(items, len(items))
    if count >= 0 and column.count != count:
        raise ValueError(f"{what} has {column.count} items for {count} values")
    return column


cdef object objects_of(source):
    for method in ("to_pylist", "tolist"):
        if hasattr(source, method):
            return getattr(source, method)()
    return list(source)


cdef int from_integers(Column column, source, str what, bint nullable) except -1:
    cdef Py_buffer *view
    if hasattr(source, "buffers"):
        if str(source.type) not in ("int64", "int32", "int16", "int8", "timestamp[ms]") \
                and not str(source.type).startswith("timestamp[ms,"):
            raise TypeError(f"{what}: an Arrow array of {source.type}; int64, int32 or timestamp[ms] is taken")
        if source.null_count and not nullable:
            raise ValueError(f"{what} has nulls")
        hold_validity(column, source, what)
        column.c.size = column.c.stride = source.type.bit_width // 8
        if column.count:
            view = column.view(source.buffers()[1], PyBUF_SIMPLE)
            column.c.data = <const uint8_t *>view.buf
            if view.len < (column.c.first + column.count) * column.c.size:
                raise ValueError(f"{what}: the data are too short")
    else:
        view = column.view(source, PyBUF_RECORDS_RO)
        if view.ndim != 1 or view.format == NULL or view.format.decode() not in ("b", "h", "i", "l", "q"):
            raise TypeError(f"{what} must be signed integers in one dimension")
        column.c.size = view.itemsize
        column.c.stride = view.strides[0]
        column.c.data = <const uint8_t *>view.buf
        column.count = view.shape[0]
    column.source = source
    column.c.kind = COLUMN_FIXED
    return 0


cdef Column integers_of(source, str what, int64_t count, int64_t one, bint nullable):
    cdef Column column = Column.__new__(Column)
    cdef int64_t i
    if source is None:
        column.c.kind = COLUMN_ONE
        column.c.one = one
        return column
    is_list = not hasattr(source, "buffers") and not PyObject_CheckBuffer(source)
    if is_list:
        source = integers_of_list(source, what, nullable)
    from_integers(column, source, what, nullable)
    if column.count != count:
        raise ValueError(f"{what} has {column.count} items for {count} values")
    if not is_list:
        for i in range(count):
            if column_int(&column.c, i) < 0 and not is_null(&column.c, i + column.c.first):
                raise ValueError(f"{what}: {column_int(&column.c, i)} at {i} is negative")
    return column


cdef object integers_of_list(source, str what, bint nullable):
    from array import array
    found = array("q")
    for item in source:
        if item is None and nullable:
            found.append(-1)
        elif not isinstance(item, int):
            raise TypeError(f"{what} must be integers, not {type(item).__name__}")
        elif item < 0:
            raise ValueError(f"{what}: {item} at {len(found)} is negative")
        else:
            found.append(item)
    return found

# --- headers ------------------------------------------------------------------------------------------

@cython.final
cdef class HeaderColumns:
    def __init__(self):
        raise TypeError("made of an Arrow array")


cdef HeaderColumns headers_of(source, int64_t count):
    cdef HeaderColumns made = HeaderColumns.__new__(HeaderColumns)
    cdef str kind = str(source.type)
    if not kind.startswith(("list<", "large_list<")) or not str(source.type.value_type).startswith("struct<") \
            or source.type.value_type.num_fields != 2:
        raise TypeError(f"headers: an Arrow array of {kind}; lists of structs of a name and a value are taken")
    pairs = source.values
    names, values = pairs.field(0), pairs.field(1)
    made.lists = lists_of(source, len(pairs))
    made.count = len(source)
    if made.count != count:
        raise ValueError(f"headers has {made.count} items for {count} values")
    made.names = column_of(names, "names of headers", len(pairs), None)
    made.values = column_of(values, "values of headers", len(pairs), None)
    if (names.null_count or pairs.null_count) and has_null_name(made.lists, names, pairs):
        raise ValueError("the name of a header is null")
    made.h.lists = made.lists.c
    made.h.names = made.names.c
    made.h.values = made.values.c
    return made


cdef Column lists_of(source, int64_t size):
    cdef Column column = Column.__new__(Column)
    cdef int64_t width = 4
    cdef Py_buffer *view
    column.source = source
    hold_validity(column, source, "headers")
    column.c.kind = COLUMN_OFFSETS_32
    if str(source.type).startswith("large_list<"):
        column.c.kind = COLUMN_OFFSETS_64
        width = 8
    if column.count == 0:
        return column
    view = column.view(source.buffers()[1], PyBUF_SIMPLE)
    column.c.offsets = <const uint8_t *>view.buf
    if view.len < (column.c.first + column.count + 1) * width:
        raise ValueError("headers: the offsets are too short")
    if not offsets_fit(&column.c, column.count, size):
        raise ValueError("headers: the offsets do not fit the data")
    return column


cdef bint has_null_name(Column lists, names, pairs) except -1:
    """Whether a header of these lists has a null name.

    The array may be a slice of a larger one, whose other headers may have null names.
    """
    cdef int64_t first = 0
    cdef int64_t end = 0
    cdef int64_t i
    for i in range(lists.count):
        list_get(&lists.c, i, &first, &end)
        if end > first and (names[first:end].null_count or pairs[first:end].null_count):
            return True
    return False


cdef inline void list_get(const column_t *c, int64_t i, int64_t *first, int64_t *end) noexcept nogil:
    """Set `first` and `end` so that rows `first` to `end` - 1 are those of list `i`. A null list has no rows."""
    first[0] = end[0] = 0
    i += c.first
    if is_null(c, i):
        return
    if c.kind == COLUMN_OFFSETS_32:
        first[0] = (<const int32_t *>c.offsets)[i]
        end[0] = (<const int32_t *>c.offsets)[i + 1]
    else:
        first[0] = (<const int64_t *>c.offsets)[i]
        end[0] = (<const int64_t *>c.offsets)[i + 1]


cdef int put_header_columns(writer_t *out, const header_columns_t *headers, int64_t i) noexcept nogil:
    cdef const uint8_t *name = NULL
    cdef const uint8_t *value = NULL
    cdef int64_t name_size = 0
    cdef int64_t value_size = 0
    cdef int64_t at = 0
    cdef int64_t end = 0
    cdef uint8_t *p
    list_get(&headers.lists, i, &at, &end)
    p = writer_reserve(out, <size_t>varlong_size(end - at))
    if p == NULL:
        return -1
    put_varlong(p, end - at)
    while at < end:
        column_get(&headers.names, at, &name, &name_size)
        column_get(&headers.values, at, &value, &value_size)
        p = writer_reserve(out, <size_t>(bytes_size(name_size) + bytes_size(value_size)))
        if p == NULL:
            return -1
        p = put_bytes(p, name, name_size)
        put_bytes(p, value, value_size)
        at += 1
    return 0
