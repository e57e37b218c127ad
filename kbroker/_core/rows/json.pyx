"""Decodes values that are JSON texts (RFC 8259) into typed columns, by the rules of Spark's from_json.

As in from_json, strings may be in single quotes; NaN, Infinity and -Infinity are numbers; a number may be a time in
seconds; a blank value is null. A field of another type than its column becomes null, and so does a list or map that has
a part of another type; the value is bad then, but keeps its other fields. A malformed value is bad as a whole.

Stricter than in from_json, these are errors: bytes behind the text; bytes that are not UTF-8; 128 to 255 for a tinyint
(negative there); "12:30" for a time (today's there); "5" for a date (a number of days there); and short texts of lists
whose wide structs would mostly be nulls.

If a name occurs twice, the last one counts, right or wrong.
"""

cimport cython
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from kbroker._core.rows.json_tokens cimport (
    FALSE,
    MOST_NESTED,
    NO_TOKEN,
    NULL_TOKEN,
    REAL,
    SPECIAL,
    TRUE,
    WHOLE,
    blanks,
    json_t,
    scalar,
    skip,
    text,
    word,
)
from kbroker._core.rows.number_text cimport (
    text_date, text_decimal, text_double, text_float, text_integer, text_timestamp,
)
from kbroker._core.rows.typed_columns cimport (
    FINE,
    KIND_BINARY,
    KIND_BOOL,
    KIND_DATE,
    KIND_DECIMAL,
    KIND_DOUBLE,
    KIND_FLOAT,
    KIND_INT8,
    KIND_INT64,
    KIND_LIST,
    KIND_MAP,
    KIND_NULL,
    KIND_STRING,
    KIND_STRUCT,
    KIND_TIMESTAMP,
    KIND_TIMESTAMP_NTZ,
    LEFT_OVER,
    MALFORMED,
    NO_MEMORY,
    NOT_OF_TYPE,
    TOO_DEEP,
    TOO_SPARSE,
    BinaryRows,
    TypedColumns,
    node_cut,
    node_offset,
    node_row,
    node_t,
    put_bool,
    put_bytes,
    put_double,
    put_fixed,
    put_integer,
    put_null,
    row_is_null,
)
from kbroker._core.wire.cursor cimport writer_free, writer_init, writer_reserve, writer_t

cdef int put_raw(json_t *j, node_t *n) noexcept nogil:
    """Add a value of any kind to a column of strings, as its own text."""
    cdef const uint8_t *start = j.at
    cdef int done = skip(j)
    return put_bytes(n, start, j.at - start) if done == FINE else done


cdef int base64_digit(uint8_t c) noexcept nogil:
    if 0x41 <= c <= 0x5a:
        return c - 0x41
    if 0x61 <= c <= 0x7a:
        return c - 0x61 + 26
    if 0x30 <= c <= 0x39:
        return c - 0x30 + 52
    return 62 if c == b"+" else 63 if c == b"/" else -1


cdef int put_base64(json_t *j, node_t *n, const uint8_t *p, int64_t size) noexcept nogil:
    cdef int64_t left = size // 4 * 3
    cdef uint32_t four
    cdef int i, digit
    cdef uint8_t *q
    cdef writer_t *out = &n.data
    cdef size_t before = out.size
    if size % 4:
        return NOT_OF_TYPE
    if size and p[size - 1] == b"=":
        left -= 2 if p[size - 2] == b"=" else 1
    q = writer_reserve(out, <size_t>left + 2)    # whole groups of three bytes are written
    if q == NULL:
        return NO_MEMORY
    out.size = before
    while left > 0:
        four = 0
        for i in range(4):
            digit = base64_digit(p[i]) if left > i - 1 else 0
            if digit < 0:
                return NOT_OF_TYPE
            four = four << 6 | <uint32_t>digit
        q[0] = <uint8_t>(four >> 16)
        q[1] = <uint8_t>(four >> 8)
        q[2] = <uint8_t>four
        out.size += <size_t>(3 if left > 3 else left)
        p += 4
        q += 3
        left -= 3
    i = node_offset(n, <int64_t>out.size)
    return node_row(n, True) if i == FINE else i


cdef extern from "math.h" nogil:
    float float_nan "NAN"
    float float_infinity "INFINITY"


cdef int put_special(node_t *n, const uint8_t *p, int64_t size) noexcept nogil:
    """Add NaN or an infinity, written with or without quotes. Return NOT_OF_TYPE if the text is neither."""
    cdef bint minus = size > 0 and p[0] == b"-"
    cdef bint with_sign = minus or (size > 0 and p[0] == b"+")
    if size == 3 and memcmp(p, b"NaN", 3) == 0:
        return put_double(n, float_nan)
    if with_sign:
        p += 1
        size -= 1
    if (size == 8 and memcmp(p, b"Infinity", 8) == 0) or (with_sign and size == 3 and memcmp(p, b"INF", 3) == 0):
        return put_double(n, -float_infinity if minus else float_infinity)
    return NOT_OF_TYPE


cdef int put_number(json_t *j, node_t *n, const uint8_t *p, int64_t size) noexcept nogil:
    """Add a number to a column of floats or doubles."""
    cdef double value = 0
    cdef float half = 0
    cdef uint8_t *q
    j.scratch.size = 0
    q = writer_reserve(&j.scratch, <size_t>size + 1)
    if q == NULL:
        return NO_MEMORY
    memcpy(q, p, <size_t>size)
    q[size] = 0
    if n.kind == KIND_DOUBLE:
        return put_fixed(n, &value) if text_double(<const char *>q, &value) else NO_MEMORY
    return put_fixed(n, &half) if text_float(<const char *>q, &half) else NO_MEMORY


cdef int put_scalar(json_t *j, node_t *n) noexcept nogil:
    """Decode a value into a column of a simple type: not struct, list, map or string."""
    cdef const uint8_t *p = NULL
    cdef int64_t size = 0, whole = 0
    cdef int kind = n.kind, token, zoned = 0, done
    cdef char[16] decimal
    if j.at[0] == b"{" or j.at[0] == b"[":
        return NOT_OF_TYPE
    if j.at[0] == b'"' or j.at[0] == b"'":
        done = text(j, &p, &size)
        if done != FINE:
            return done
        if kind == KIND_BINARY:
            return put_base64(j, n, p, size)
        if size == 0:
            return NOT_OF_TYPE
        if kind == KIND_FLOAT or kind == KIND_DOUBLE:
            return put_special(n, p, size)
        if kind == KIND_DATE:
            return put_integer(n, whole) if text_date(p, p + size, &whole) else NOT_OF_TYPE
        if kind == KIND_TIMESTAMP or kind == KIND_TIMESTAMP_NTZ:
            if not text_timestamp(p, p + size, &whole, &zoned) or (zoned and kind == KIND_TIMESTAMP_NTZ):
                return NOT_OF_TYPE
            return put_integer(n, whole)
        if kind == KIND_DECIMAL:
            return put_fixed(n, &decimal) if text_decimal(p, p + size, n.precision, n.scale, &decimal) else NOT_OF_TYPE
        return NOT_OF_TYPE
    token = scalar(j, &p, &size)
    if token == NO_TOKEN:
        return MALFORMED
    if token == NULL_TOKEN:
        return put_null(n)
    if kind == KIND_BOOL:
        return put_bool(n, token == TRUE) if token == TRUE or token == FALSE else NOT_OF_TYPE
    if token != WHOLE and token != REAL:
        return put_special(n, p, size) if token == SPECIAL and (kind == KIND_FLOAT or kind == KIND_DOUBLE) \
            else NOT_OF_TYPE
    if kind == KIND_FLOAT or kind == KIND_DOUBLE:
        if token == WHOLE and size == 2 and p[0] == b"-" and p[1] == b"0":
            return put_double(n, 0)  # -0 is a whole number here, and its zero has no sign
        return put_number(j, n, p, size)
    if kind == KIND_DECIMAL:
        return put_fixed(n, &decimal) if text_decimal(p, p + size, n.precision, n.scale, &decimal) else NOT_OF_TYPE
    if token == REAL or not (KIND_INT8 <= kind <= KIND_INT64 or kind == KIND_TIMESTAMP) \
            or not text_integer(p, p + size, &whole):
        return NOT_OF_TYPE
    if kind == KIND_TIMESTAMP:
        if whole > INT64_MAX // 1_000_000 or whole < -(INT64_MAX // 1_000_000):
            return NOT_OF_TYPE
        whole *= 1_000_000
    return put_integer(n, whole)


cdef int put_value(json_t *j, node_t *n) noexcept nogil:
    """Decode the value that begins at `j.at` into a column. Return FINE, or what is wrong with the value.

    After NOT_OF_TYPE, `j.at` may be anywhere: the caller cuts the column, goes back and skips the value.
    """
    cdef const uint8_t *p = NULL
    cdef int64_t size = 0
    cdef int done
    if n.kind < KIND_STRING or n.kind == KIND_BINARY:
        if n.kind != KIND_NULL:
            return put_scalar(j, n)
        done = skip(j)
        return put_null(n) if done == FINE else done
    if j.at[0] == b"n":
        return put_missing(j, n) if word(j, b"null", 4) else MALFORMED
    if n.kind == KIND_STRING:
        if j.at[0] != b'"' and j.at[0] != b"'":
            return put_raw(j, n)
        done = text(j, &p, &size)
        return put_bytes(n, p, size) if done == FINE else done
    if j.at[0] != b"[" if n.kind == KIND_LIST else j.at[0] != b"{":
        return NOT_OF_TYPE
    if j.depth >= MOST_NESTED:
        return TOO_DEEP
    j.depth += 1
    if n.kind == KIND_STRUCT:
        done = put_struct(j, n)
    elif n.kind == KIND_LIST:
        done = put_list(j, n)
    else:
        done = put_map(j, n)
    j.depth -= 1
    return done


cdef int put_field(json_t *j, node_t *n, int64_t rows) noexcept nogil:
    """Add the value of a field to a struct that has `rows` rows, or null if it is not of the column's type."""
    cdef const uint8_t *start = j.at
    cdef int done, depth = j.depth
    if n.rows > rows:            # its name occurs twice: the last one counts
        node_cut(n, rows)
    done = put_value(j, n)
    if done != NOT_OF_TYPE:
        return done
    if j.wrong == FINE:
        j.wrong = NOT_OF_TYPE
        j.wrong_node = n.index
    node_cut(n, rows)
    j.at = start
    j.depth = depth
    done = skip(j)
    return put_missing(j, n) if done == FINE else done


cdef int next_of(json_t *j, uint8_t closing, bint *first, bint *last) noexcept nogil:
    """Go to the next part of an object or list, or behind its end; `last` says which."""
    blanks(j)
    if j.at == j.end:
        return MALFORMED
    last[0] = j.at[0] == closing
    if last[0]:
        j.at += 1
        return FINE
    if not first[0]:
        if j.at[0] != b",":
            return MALFORMED
        j.at += 1
        blanks(j)
        if j.at == j.end:
            return MALFORMED
    first[0] = False
    return FINE


cdef int name(json_t *j, const uint8_t **start, int64_t *size) noexcept nogil:
    """Read the name of a field, and go to its value."""
    cdef int done
    if j.at[0] != b'"' and j.at[0] != b"'":
        return MALFORMED
    done = text(j, start, size)
    if done != FINE:
        return done
    blanks(j)
    if j.at == j.end or j.at[0] != b":":
        return MALFORMED
    j.at += 1
    blanks(j)
    return FINE if j.at < j.end else MALFORMED


cdef inline int name_order(node_t *child, const uint8_t *start, int64_t size) noexcept nogil:
    """Return 0 if this is the child's name, else a negative number if the child's name sorts before it."""
    if child.name_size != size:
        return -1 if child.name_size < size else 1
    return memcmp(child.name, start, <size_t>size)


cdef int child_named(node_t *n, const uint8_t *start, int64_t size, int likely) noexcept nogil:
    """Return the place of the child with this name, or -1. The place `likely` is tried first."""
    cdef int low = 0, high = n.child_count, middle, order
    if likely < n.child_count and name_order(&n.children[likely], start, size) == 0:
        return likely
    while low < high:
        middle = (low + high) // 2
        order = name_order(&n.children[n.by_name[middle]], start, size)
        if order == 0:
            return n.by_name[middle]
        if order < 0:
            low = middle + 1
        else:
            high = middle
    return -1


cdef inline int put_missing(json_t *j, node_t *n) noexcept nogil:
    """Add a null where the text has no value; for a struct, also in all its fields.

    Returns TOO_SPARSE when the value has added more nulls than its size allows.
    """
    j.nulls_left -= n.cells
    return put_null(n) if j.nulls_left >= 0 else TOO_SPARSE


cdef int put_struct(json_t *j, node_t *n) noexcept nogil:
    cdef const uint8_t *start = NULL
    cdef int64_t size = 0, rows = n.rows
    cdef bint first = True, last = False
    cdef int done, place, likely = 0
    j.at += 1
    while True:
        done = next_of(j, b"}", &first, &last)
        if done != FINE:
            return done
        if last:
            break
        done = name(j, &start, &size)
        if done != FINE:
            return done
        place = child_named(n, start, size, likely)
        if place < 0:
            done = skip(j)
        else:
            done = put_field(j, &n.children[place], rows)
            likely = place + 1 if place + 1 < n.child_count else 0
        if done != FINE:
            return done
    for place in range(n.child_count):
        if n.children[place].rows == rows:
            done = put_missing(j, &n.children[place])
            if done != FINE:
                return done
    return node_row(n, True)


cdef int put_list(json_t *j, node_t *n) noexcept nogil:
    cdef node_t *items = &n.children[0]
    cdef bint first = True, last = False
    cdef int done
    j.at += 1
    while True:
        done = next_of(j, b"]", &first, &last)
        if done != FINE:
            return done
        if last:
            break
        done = put_value(j, items)
        if done != FINE:
            return done
    done = node_offset(n, items.rows)
    return node_row(n, True) if done == FINE else done


cdef int put_map(json_t *j, node_t *n) noexcept nogil:
    cdef node_t *entries = &n.children[0]
    cdef const uint8_t *start = NULL
    cdef int64_t size = 0
    cdef bint first = True, last = False
    cdef int done
    j.at += 1
    while True:
        done = next_of(j, b"}", &first, &last)
        if done != FINE:
            return done
        if last:
            break
        done = name(j, &start, &size)
        if done == FINE:
            done = put_bytes(&entries.children[0], start, size)
        if done == FINE:
            done = put_value(j, &entries.children[1])
        if done == FINE:
            done = node_row(entries, True)
        if done != FINE:
            return done
    done = node_offset(n, entries.rows)
    return node_row(n, True) if done == FINE else done


@cython.final
cdef class JsonRows(TypedColumns):
    cdef json_t json

    def __init__(self, spec):
        """Raises ValueError when the keys of a map in `spec` are not strings."""
        writer_init(&self.json.scratch)
        check_keys(&self.root)

    def __dealloc__(self):
        writer_free(&self.json.scratch)

    cdef int row(self, const uint8_t *data, int64_t size) noexcept nogil:
        """Add the row of a value. Return FINE or NO_MEMORY; what is wrong with the value becomes a finding."""
        cdef json_t *j = &self.json
        cdef int64_t rows = self.root.rows
        cdef int done
        j.at = data
        j.end = data + size
        j.wrong = FINE
        j.wrong_node = 0
        j.depth = 0
        j.nulls_left = self.most_nulls(size)
        blanks(j)
        if j.at == j.end:
            return put_null(&self.root)
        if self.root.kind == KIND_STRUCT and word(j, b"null", 4):
            done = NOT_OF_TYPE   # inside of a value null is fine
        else:
            done = put_value(j, &self.root)
        if done == FINE:
            blanks(j)
            if j.at < j.end:
                done = LEFT_OVER
        if done == NO_MEMORY:
            return done
        if done == FINE:
            return FINE if j.wrong == FINE else self.found(rows, j.wrong, j.wrong_node)
        node_cut(&self.root, rows)
        done = self.found(rows, done, 0)
        return self.bad_row() if done == FINE else done

    def decode(self, BinaryRows values not None):
        """Decode these values, and add a row for each to the rows that are there."""
        cdef int64_t row
        cdef int done = FINE
        with nogil:
            for row in range(values.start, values.end):
                if row_is_null(values, row):
                    done = put_null(&self.root)
                else:
                    done = self.row(values.data + values.ends[row], values.ends[row + 1] - values.ends[row])
                if done != FINE:
                    break
        if done != FINE:
            raise MemoryError()


cdef int check_keys(node_t *n) except -1:
    cdef int i
    if n.kind == KIND_MAP and n.children[0].children[0].kind != KIND_STRING:
        raise ValueError("the keys of a map are strings in JSON")
    for i in range(n.child_count):
        check_keys(&n.children[i])
    return 0
