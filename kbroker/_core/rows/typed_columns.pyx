"""Columns of any type and nesting for decoders of values; see typed_columns.pxd."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport (
    INT8_MAX, INT8_MIN, INT16_MAX, INT16_MIN, INT32_MAX, INT32_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t,
)
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kbroker._core.wire.columns cimport flat
from kbroker._core.wire.cursor cimport is_utf8, writer_free, writer_init, writer_reserve, writer_t

#: The kinds of nodes. A spec names one by its place here.
KINDS = (
    "null", "bool", "int8", "int16", "int32", "int64", "float", "double", "date", "timestamp", "timestamp_ntz",
    "decimal", "string", "binary", "struct", "list", "map",
)
#: What can be wrong with a value. A finding names it by its place here.
REASONS = (
    "", "out of memory", "its column would have more than 2 GiB", "it is not of the column's type", "it is malformed",
    "it is nested too deeply", "it is not UTF-8", "there are bytes behind its end", "it ends too early",
    "it has an impossible length", "a union has no such branch", "an enum has no such symbol",
    "its schema is not known", "it does not begin with a schema's id",
    "its schema cannot be read as the one that is wanted", "its lists and maps are of structs that lack too much",
)

cdef enum:
    MOST_NODES = 10_000
    MOST_LEVELS = 64

cdef int* WIDTHS = [0, 0, 1, 2, 4, 8, 4, 8, 4, 8, 8, 16, 0, 0, 0, 0, 0]


cdef int put_null(node_t *n) noexcept nogil:
    cdef uint8_t *p
    cdef int i, done
    cdef int32_t end
    if n.kind == KIND_STRUCT:
        for i in range(n.child_count):
            done = put_null(&n.children[i])
            if done != FINE:
                return done
    elif n.kind >= KIND_STRING:
        end = <int32_t>n.data.size if n.kind <= KIND_BINARY else <int32_t>n.children[0].rows
        done = node_offset(n, end)
        if done != FINE:
            return done
    elif n.width or (n.kind == KIND_BOOL and n.rows & 7 == 0):
        p = writer_reserve(&n.data, <size_t>n.width or 1)
        if p == NULL:
            return NO_MEMORY
        memset(p, 0, <size_t>n.width or 1)
    return node_row(n, False)


cdef int put_integer(node_t *n, int64_t value) noexcept nogil:
    """Add a row with a whole number. Return NOT_OF_TYPE if it does not fit, or the column is not one of numbers."""
    cdef int8_t one
    cdef int16_t two
    cdef int32_t four
    if n.kind == KIND_INT32 or n.kind == KIND_DATE:
        if not INT32_MIN <= value <= INT32_MAX:
            return NOT_OF_TYPE
        four = <int32_t>value
        return put_fixed(n, &four)
    if n.kind == KIND_INT64 or n.kind == KIND_TIMESTAMP or n.kind == KIND_TIMESTAMP_NTZ:
        return put_fixed(n, &value)
    if n.kind == KIND_INT16:
        if not INT16_MIN <= value <= INT16_MAX:
            return NOT_OF_TYPE
        two = <int16_t>value
        return put_fixed(n, &two)
    if n.kind == KIND_INT8:
        if not INT8_MIN <= value <= INT8_MAX:
            return NOT_OF_TYPE
        one = <int8_t>value
        return put_fixed(n, &one)
    return put_double(n, <double>value)


cdef int put_double(node_t *n, double value) noexcept nogil:
    cdef float half
    if n.kind == KIND_DOUBLE:
        return put_fixed(n, &value)
    if n.kind == KIND_FLOAT:
        half = <float>value
        return put_fixed(n, &half)
    return NOT_OF_TYPE


cdef void bits_cut(writer_t *bits, int64_t rows) noexcept nogil:
    cdef size_t size = <size_t>(rows + 7) // 8
    if bits.size > size:
        bits.size = size
    if rows & 7 and bits.size == size:
        bits.data[size - 1] &= <uint8_t>((1 << (rows & 7)) - 1)


cdef void node_cut(node_t *n, int64_t rows) noexcept nogil:
    """Cut a column, with its children, back to its first `rows` rows.

    Children may have more than that: values of a row that is not finished. These are cut off too.
    """
    cdef int64_t row
    cdef int i
    for row in range(rows, n.rows):
        if not n.validity.data[row >> 3] >> (row & 7) & 1:
            n.nulls -= 1
    if rows < n.rows:
        n.rows = rows
        bits_cut(&n.validity, rows)
    if n.kind == KIND_STRUCT:
        for i in range(n.child_count):
            node_cut(&n.children[i], rows)
    elif n.kind >= KIND_STRING:
        n.offsets.size = <size_t>(n.rows + 1) * 4
        if n.kind <= KIND_BINARY:
            n.data.size = <size_t>(<int32_t *>n.offsets.data)[n.rows]
        else:
            node_cut(&n.children[0], (<int32_t *>n.offsets.data)[n.rows])
    elif n.kind == KIND_BOOL:
        bits_cut(&n.data, n.rows)
    else:
        n.data.size = <size_t>n.rows * <size_t>n.width


cdef int node_begin(node_t *n) except -1:
    """Make a node empty. If its kind has offsets, it gets the first one, 0."""
    cdef uint8_t *p
    writer_init(&n.validity)
    writer_init(&n.data)
    writer_init(&n.offsets)
    n.rows = 0
    n.nulls = 0
    if n.kind >= KIND_STRING and n.kind != KIND_STRUCT:
        p = writer_reserve(&n.offsets, 4)
        if p == NULL:
            raise MemoryError()
        memset(p, 0, 4)
    return 0


cdef void node_free(node_t *n) noexcept nogil:
    cdef int i
    for i in range(n.child_count):
        node_free(&n.children[i])
    free(n.children)
    free(n.by_name)
    n.children = NULL
    n.by_name = NULL
    n.child_count = 0
    writer_free(&n.validity)
    writer_free(&n.data)
    writer_free(&n.offsets)


cdef object node_taken(node_t *n):
    """Take the contents of a node, which is empty then.

    Returns (rows, nulls, validity, offsets, data, children) as in Arrow, with None for what the kind does not have.
    """
    rows, nulls = n.rows, n.nulls
    validity = flat(&n.validity, b"B", 1) if nulls and n.kind != KIND_NULL else None
    offsets = flat(&n.offsets, b"i", 4) if n.kind >= KIND_STRING and n.kind != KIND_STRUCT else None
    data = flat(&n.data, b"B", 1) if KIND_NULL < n.kind <= KIND_BINARY else None
    children = tuple([node_taken(&n.children[i]) for i in range(n.child_count)])
    writer_free(&n.validity)
    node_begin(n)
    return rows, nulls, validity, offsets, data, children


cdef node_t *node_at(node_t *n, int index) noexcept:
    cdef node_t *found
    cdef int i
    if n.index == index:
        return n
    for i in range(n.child_count):
        found = node_at(&n.children[i], index)
        if found != NULL:
            return found
    return NULL


cdef class TypedColumns:
    def __cinit__(self, spec, *_, **__):
        """`spec`: (place in KINDS, precision, scale, name in UTF-8, specs of the children).

        Raises ValueError when it has too many columns or levels, or children that do not fit its kind.
        """
        self.names = []
        writer_init(&self.finding_rows)
        writer_init(&self.finding_reasons)
        writer_init(&self.finding_nodes)
        memset(&self.root, 0, sizeof(node_t))
        self.build(&self.root, spec, 0)

    def __dealloc__(self):
        node_free(&self.root)
        writer_free(&self.finding_rows)
        writer_free(&self.finding_reasons)
        writer_free(&self.finding_nodes)

    cdef int build(self, node_t *n, object spec, int depth) except -1:
        cdef int kind, i
        kind, precision, scale, name, children = spec
        if not 0 <= kind <= KIND_MAP or depth > MOST_LEVELS or self.node_count >= MOST_NODES:
            raise ValueError(f"a schema of more than {MOST_NODES} columns, or nested more than {MOST_LEVELS} times")
        if kind >= KIND_LIST and len(children) != 1:
            raise ValueError("a list has one child")
        if kind == KIND_MAP and (children[0][0] != KIND_STRUCT or len(children[0][4]) != 2):
            raise ValueError("a map's child is a struct of two")
        n.kind = kind
        n.width = WIDTHS[kind]
        n.precision = precision
        n.scale = scale
        n.index = self.node_count
        self.node_count += 1
        self.names.append(name)
        n.name = <const uint8_t *><const char *><bytes>name
        n.name_size = <int32_t>len(name)
        node_begin(n)
        if children:
            n.children = <node_t *>calloc(<size_t>len(children), sizeof(node_t))
            if n.children == NULL:
                raise MemoryError()
            n.child_count = <int>len(children)
            for i in range(n.child_count):
                self.build(&n.children[i], children[i], depth + 1)
        n.cells = kind != KIND_NULL
        if kind == KIND_STRUCT and children:
            for i in range(n.child_count):
                n.cells += n.children[i].cells
            n.by_name = <int *>calloc(<size_t>len(children), sizeof(int))
            if n.by_name == NULL:
                raise MemoryError()
            for i, place in enumerate(sorted(range(n.child_count),
                                             key=lambda place: (len(children[place][3]), children[place][3]))):
                n.by_name[i] = place
        return 0

    cdef node_t *node(self, int index) except NULL:
        cdef node_t *found = node_at(&self.root, index)
        if found == NULL:
            raise ValueError(f"there is no column {index}")
        return found

    cdef int found(self, int64_t row, int reason, int node) noexcept nogil:
        cdef int64_t *rows = <int64_t *>writer_reserve(&self.finding_rows, 8)
        cdef int32_t *reasons = <int32_t *>writer_reserve(&self.finding_reasons, 4)
        cdef int32_t *nodes = <int32_t *>writer_reserve(&self.finding_nodes, 4)
        if rows == NULL or reasons == NULL or nodes == NULL:
            return NO_MEMORY
        rows[0] = row
        reasons[0] = reason
        nodes[0] = node
        return FINE

    cdef int bad_row(self) noexcept nogil:
        """Add the row of a value that could not be decoded: a struct whose fields are all null, or else null."""
        cdef int i, done
        node_cut(&self.root, self.root.rows)
        if self.root.kind != KIND_STRUCT:
            return put_null(&self.root)
        for i in range(self.root.child_count):
            done = put_null(&self.root.children[i])
            if done != FINE:
                return done
        return node_row(&self.root, True)

    cdef int64_t most_nulls(self, int64_t size) noexcept nogil:
        """Return how many nulls a value of `size` bytes may add for fields that it does not have."""
        return size * NULLS_OF_A_BYTE + NULLS_OF_A_VALUE + self.node_count

    def finish(self):
        """Return the columns and the findings. Both are empty again then.

        Columns: (rows, nulls, validity, offsets, data, children), with None for what a kind does not have.
        Findings: three buffers, of rows (int64), places in REASONS (int32) and numbers of columns (int32).
        """
        found = (
            flat(&self.finding_rows, b"q", 8), flat(&self.finding_reasons, b"i", 4), flat(&self.finding_nodes, b"i", 4),
        )
        return node_taken(&self.root), found


@cython.final
cdef class BinaryRows:
    def __cinit__(self, validity, offsets, data, int64_t start, int64_t count):
        """Borrow rows `start` to `start + count` - 1 of an Arrow binary column; `validity` may be None.

        Raises ValueError when the buffers cannot be those of such a column.
        """
        cdef int64_t row
        cdef bint good
        for each in (offsets, b"" if data is None else data, validity):
            if each is not None:
                PyObject_GetBuffer(each, &self.held[self.held_count], PyBUF_SIMPLE)
                self.held_count += 1
        self.ends = <const int32_t *>self.held[0].buf
        self.data = <const uint8_t *>self.held[1].buf
        self.start = start
        self.end = start + count
        good = 0 <= start <= self.end and (count == 0 or self.held[0].len // 4 > self.end)
        if validity is not None:
            self.valid = <const uint8_t *>self.held[2].buf
            good = good and self.held[2].len >= (self.end + 7) // 8
        if good and count:
            for row in range(start, self.end):
                good = good and 0 <= self.ends[row] <= self.ends[row + 1]
            good = good and self.ends[self.end] <= self.held[1].len
        if not good:
            raise ValueError("buffers that are no column of bytes")

    def __dealloc__(self):
        while self.held_count:
            self.held_count -= 1
            PyBuffer_Release(&self.held[self.held_count])

    def not_utf8(self):
        """Return the numbers (int64) of rows that are not UTF-8, counted from the first of these rows."""
        cdef writer_t found
        cdef int64_t row
        cdef int64_t *p
        cdef bint failed = False
        writer_init(&found)
        with nogil:
            for row in range(self.start, self.end):
                if not row_is_null(self, row) \
                        and not is_utf8(self.data + self.ends[row], self.ends[row + 1] - self.ends[row]):
                    p = <int64_t *>writer_reserve(&found, 8)
                    if p == NULL:
                        failed = True
                        break
                    p[0] = row - self.start
        if failed:
            writer_free(&found)
            raise MemoryError()
        return flat(&found, b"q", 8)
