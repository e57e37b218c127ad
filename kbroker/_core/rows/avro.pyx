"""Decodes values in Avro's binary encoding (specification 1.12) into typed columns, each by the schema of its writer.

For each writer's schema a plan says what is read and to which column it goes. Python makes the plans
(kbroker/spark/decoding/avro_schemas.py); here they are only followed. Every length and count is checked against what is
left of the value.
"""

cimport cython
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kbroker._core.rows.number_text cimport bytes_decimal
from kbroker._core.rows.typed_columns cimport (
    BAD_COUNT,
    FINE,
    KIND_DECIMAL,
    KIND_STRING,
    LEFT_OVER,
    NO_BRANCH,
    NO_HEADER,
    NO_MEMORY,
    NO_SCHEMA,
    NO_SYMBOL,
    NOT_OF_TYPE,
    NOT_UTF8,
    OTHER_SCHEMA,
    TOO_DEEP,
    TOO_SHORT,
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
from kbroker._core.wire.cursor cimport is_utf8, load_u32, writer_free, writer_init, writer_reserve, writer_t
from kbroker._core.wire.varint cimport take_varint, take_varlong

#: The kinds of a plan's steps. A plan names one by its place here.
STEPS = (
    "null", "boolean", "int", "long", "float", "double", "bytes", "string", "fixed", "enum", "array", "map", "record",
    "union", "member", "default", "fail", "again",
)

cdef enum:
    # The order of STEPS.
    STEP_NULL
    STEP_BOOLEAN
    STEP_INT
    STEP_LONG
    STEP_FLOAT
    STEP_DOUBLE
    STEP_BYTES
    STEP_STRING
    STEP_FIXED
    STEP_ENUM
    STEP_ARRAY
    STEP_MAP
    STEP_RECORD
    STEP_UNION
    STEP_MEMBER                  # a member of a union that is a struct: the other members are null
    STEP_DEFAULT                 # the default of a field that was not written: it is encoded in the plan
    STEP_FAIL                    # a value that the column cannot have
    STEP_AGAIN                   # a step around this one comes again: the schema contains itself

cdef enum:
    MOST_EMPTY = 1 << 16         # array items in one value that take no byte
    HEADER_SIZE = 5              # a zero byte and the schema's id
    MOST_AGAIN = 1000            # levels in a value whose schema contains itself
    MOST_UNKNOWN = 64            # unregistered ids that are remembered: there could be any number

cdef struct step_t:
    int step
    node_t *target               # NULL: the value is read and dropped
    int64_t number               # bytes of a fixed, factor of a long, place of a member, or steps outward of an again
    int64_t least                # the least bytes that a value takes
    int child_count
    step_t *children
    step_t *parent               # the step around this one; for STEP_AGAIN the one that comes again
    writer_t data                # an encoded default; or an enum's symbols, one behind the other
    writer_t ends                # two int32 for each symbol, where it begins and ends; -1: the column cannot have it

cdef struct avro_t:
    const uint8_t *at
    const uint8_t *end
    int64_t empty                # array items so far that took no byte
    int64_t nulls_left           # how many nulls, and bytes of defaults, may still be put for what was not written
    int again                    # how many STEP_AGAIN it is in

cdef struct known_t:
    int32_t schema_id
    step_t *plan                 # NULL: its values cannot be read with the schema that is wanted


cdef void step_free(step_t *step) noexcept nogil:
    cdef int i
    for i in range(step.child_count):
        step_free(&step.children[i])
    free(step.children)
    writer_free(&step.data)
    writer_free(&step.ends)


cdef int put_data(node_t *n, const uint8_t *data, int64_t size) noexcept nogil:
    cdef char[16] decimal
    if n.kind == KIND_DECIMAL:
        return put_fixed(n, &decimal) if bytes_decimal(data, size, n.precision, &decimal) else NOT_OF_TYPE
    if n.kind == KIND_STRING and not is_utf8(data, <int32_t>size):
        return NOT_UTF8
    return put_bytes(n, data, size)


cdef int read_data(avro_t *a, node_t *target, int64_t size) noexcept nogil:
    cdef const uint8_t *data = a.at
    if size < 0:
        return BAD_COUNT
    if size > a.end - a.at:
        return TOO_SHORT
    a.at += size
    return put_data(target, data, size) if target != NULL else FINE


cdef int read_sized(avro_t *a, node_t *target) noexcept nogil:
    cdef int64_t size = 0
    a.at = take_varlong(a.at, a.end, &size)
    return read_data(a, target, size) if a.at <= a.end else TOO_SHORT


cdef int read_enum(avro_t *a, step_t *step) noexcept nogil:
    cdef const int32_t *ends = <const int32_t *>step.ends.data
    cdef int32_t place = 0, count = <int32_t>(step.ends.size // 8)
    a.at = take_varint(a.at, a.end, &place)
    if a.at > a.end:
        return TOO_SHORT
    if not 0 <= place < count or ends[2 * place] < 0:
        return NO_SYMBOL
    if step.target == NULL:
        return FINE
    return put_bytes(step.target, step.data.data + ends[2 * place], ends[2 * place + 1] - ends[2 * place])


cdef int read_block(avro_t *a, int64_t least, int64_t *count) noexcept nogil:
    """Read how many items follow, and check the number. It is 0 at the end of an array or map."""
    cdef int64_t size = 0
    a.at = take_varlong(a.at, a.end, count)
    if a.at > a.end:
        return TOO_SHORT
    if count[0] < 0:
        if count[0] == INT64_MIN:
            return BAD_COUNT
        count[0] = -count[0]
        a.at = take_varlong(a.at, a.end, &size)
        if a.at > a.end:
            return TOO_SHORT
    if least == 0:
        if count[0] > MOST_EMPTY - a.empty:
            return BAD_COUNT
        a.empty += count[0]
    elif count[0] > (a.end - a.at) // least:
        return BAD_COUNT
    return FINE


cdef int read_items(avro_t *a, step_t *step) noexcept nogil:
    """Read an array or map. A map's child node is a struct of key and value; its child step reads the value."""
    cdef node_t *inner = &step.target.children[0] if step.target != NULL else NULL
    cdef bint is_map = step.step == STEP_MAP
    cdef int64_t count = 0
    cdef int done
    while True:
        done = read_block(a, step.children[0].least + is_map, &count)
        if done != FINE:
            return done
        if count == 0:
            break
        while count > 0:
            count -= 1
            if is_map:
                done = read_sized(a, &inner.children[0] if inner != NULL else NULL)
                if done != FINE:
                    return done
            done = read_step(a, &step.children[0])
            if done == FINE and is_map and inner != NULL:
                done = node_row(inner, True)
            if done != FINE:
                return done
    if inner == NULL:
        return FINE
    done = node_offset(step.target, inner.rows)
    return node_row(step.target, True) if done == FINE else done


cdef int read_default(avro_t *a, step_t *step) noexcept nogil:
    cdef avro_t inner
    cdef int done
    inner.at = step.data.data
    inner.end = step.data.data + step.data.size
    inner.empty = 0
    inner.nulls_left = a.nulls_left - 1 - <int64_t>step.data.size
    inner.again = a.again
    done = read_step(&inner, &step.children[0]) if inner.nulls_left >= 0 else TOO_SPARSE
    a.nulls_left = inner.nulls_left
    return done


cdef int put_missing(avro_t *a, node_t *n) noexcept nogil:
    a.nulls_left -= n.cells
    return put_null(n) if a.nulls_left >= 0 else TOO_SPARSE


cdef int read_member(avro_t *a, step_t *step) noexcept nogil:
    cdef int i, done
    for i in range(step.target.child_count):
        done = read_step(a, &step.children[0]) if i == step.number else put_missing(a, &step.target.children[i])
        if done != FINE:
            return done
    return node_row(step.target, True)


cdef int read_union(avro_t *a, step_t *step) noexcept nogil:
    cdef int32_t place = 0
    a.at = take_varint(a.at, a.end, &place)
    if a.at > a.end:
        return TOO_SHORT
    return read_step(a, &step.children[place]) if 0 <= place < step.child_count else NO_BRANCH


cdef int read_record(avro_t *a, step_t *step) noexcept nogil:
    cdef int i, done
    for i in range(step.child_count):
        done = read_step(a, &step.children[i])
        if done != FINE:
            return done
    return node_row(step.target, True) if step.target != NULL else FINE


cdef int read_again(avro_t *a, step_t *step) noexcept nogil:
    cdef int done
    if a.again >= MOST_AGAIN:
        return TOO_DEEP
    a.again += 1
    done = read_step(a, step.parent)
    a.again -= 1
    return done


cdef int read_number(avro_t *a, step_t *step) noexcept nogil:
    cdef const uint8_t *p = a.at
    cdef int64_t whole = 0
    cdef int32_t small = 0
    cdef double value = 0
    cdef float half = 0
    if step.step == STEP_INT:
        a.at = take_varint(a.at, a.end, &small)
        whole = small
    elif step.step == STEP_LONG:
        a.at = take_varlong(a.at, a.end, &whole)
    else:
        a.at += 4 if step.step == STEP_FLOAT else 8 if step.step == STEP_DOUBLE else 1
    if a.at > a.end:
        return TOO_SHORT
    if step.step == STEP_BOOLEAN:
        if p[0] > 1:
            return NOT_OF_TYPE
        return put_bool(step.target, p[0]) if step.target != NULL else FINE
    if step.target == NULL:
        return FINE
    if step.step == STEP_FLOAT:
        memcpy(&half, p, 4)
        return put_double(step.target, half)
    if step.step == STEP_DOUBLE:
        memcpy(&value, p, 8)
        return put_double(step.target, value)
    if step.number != 1:
        if not times(whole, step.number, &whole):
            return NOT_OF_TYPE
    return put_integer(step.target, whole)


cdef extern from * nogil:
    """
    static inline int times(int64_t a, int64_t b, int64_t *found) { return !__builtin_mul_overflow(a, b, found); }
    """
    bint times(int64_t a, int64_t b, int64_t *found)


cdef int read_step(avro_t *a, step_t *step) noexcept nogil:
    cdef int kind = step.step
    if kind == STEP_RECORD:
        return read_record(a, step)
    if kind == STEP_UNION:
        return read_union(a, step)
    if kind == STEP_STRING or kind == STEP_BYTES:
        return read_sized(a, step.target)
    if kind == STEP_NULL:
        return put_missing(a, step.target) if step.target != NULL else FINE
    if kind <= STEP_DOUBLE:
        return read_number(a, step)
    if kind == STEP_FIXED:
        return read_data(a, step.target, step.number)
    if kind == STEP_ENUM:
        return read_enum(a, step)
    if kind == STEP_ARRAY or kind == STEP_MAP:
        return read_items(a, step)
    if kind == STEP_MEMBER:
        return read_member(a, step)
    if kind == STEP_DEFAULT:
        return read_default(a, step)
    if kind == STEP_AGAIN:
        return read_again(a, step)
    return NOT_OF_TYPE


@cython.final
cdef class AvroRows(TypedColumns):
    cdef bint framed
    cdef writer_t known
    cdef known_t *last
    cdef int32_t[MOST_UNKNOWN] unknown
    cdef int64_t unknown_count   # how many were added; the last MOST_UNKNOWN of them are remembered
    cdef int64_t next_row

    def __init__(self, spec, bint framed):
        """`framed`: whether a zero byte and the schema's id, four bytes, stand before each value, as with Confluent."""
        self.framed = framed

    def __cinit__(self, *_, **__):
        writer_init(&self.known)

    def __dealloc__(self):
        cdef known_t *known = <known_t *>self.known.data
        cdef size_t i
        for i in range(self.known.size // sizeof(known_t)):
            if known[i].plan != NULL:
                step_free(known[i].plan)
                free(known[i].plan)
        writer_free(&self.known)

    def add_unknown(self, int32_t schema_id):
        """Note that nobody knows this schema: its values are bad. After many others `decode` may ask for it again."""
        self.unknown[self.unknown_count % MOST_UNKNOWN] = schema_id
        self.unknown_count += 1

    def add(self, int32_t schema_id, plan):
        """Set the plan by which values are read that were written with this schema; id 0 if values name none.

        `plan`: (place in STEPS, number of the column or -1, number, bytes or symbols, plans of the parts). None: the
        values cannot be read with the schema that is wanted, and are bad. Raises ValueError when `plan` is not of this
        form.
        """
        cdef step_t *made = NULL
        cdef known_t *added
        if plan is not None:
            made = <step_t *>calloc(1, sizeof(step_t))
            if made == NULL:
                raise MemoryError()
            try:
                self.build_step(made, NULL, plan)
            except:
                step_free(made)
                free(made)
                raise
        added = <known_t *>writer_reserve(&self.known, sizeof(known_t))
        if added == NULL:
            raise MemoryError()
        added.schema_id = schema_id
        added.plan = made
        self.last = NULL

    cdef int build_step(self, step_t *step, step_t *parent, object spec) except -1:
        cdef int i
        kind, target, number, data, parts = spec
        step.parent = parent
        if not 0 <= kind < len(STEPS):
            raise ValueError(f"there is no step {kind}")
        step.step = kind
        step.target = self.node(target) if target >= 0 else NULL
        step.number = number
        if kind == STEP_ENUM:
            for symbol in data:
                put_raw(&step.ends, <int32_t>step.data.size if symbol is not None else -1)
                if symbol is not None:
                    put_text(&step.data, symbol)
                put_raw(&step.ends, <int32_t>step.data.size)
        else:
            put_text(&step.data, data)
        if parts:
            step.children = <step_t *>calloc(<size_t>len(parts), sizeof(step_t))
            if step.children == NULL:
                raise MemoryError()
            step.child_count = <int>len(parts)
            for i in range(step.child_count):
                self.build_step(&step.children[i], step, parts[i])
        if kind in (STEP_ARRAY, STEP_MAP, STEP_MEMBER, STEP_DEFAULT) and step.child_count != 1:
            raise ValueError(f"{STEPS[kind]} is of one part")
        if kind == STEP_AGAIN:
            step.parent = step_outside(step)
        step.least = least_size(step)
        return 0

    cdef known_t *known_as(self, int32_t schema_id) noexcept nogil:
        cdef known_t *known = <known_t *>self.known.data
        cdef size_t i
        if self.last == NULL or self.last.schema_id != schema_id:
            for i in range(self.known.size // sizeof(known_t)):
                if known[i].schema_id == schema_id:
                    self.last = &known[i]
                    return self.last
            return NULL
        return self.last

    cdef bint is_unknown(self, int32_t schema_id) noexcept nogil:
        cdef int64_t i
        for i in range(min(self.unknown_count, MOST_UNKNOWN)):
            if self.unknown[i] == schema_id:
                return True
        return False

    cdef int row(self, const uint8_t *data, int64_t size, int32_t *missing) noexcept nogil:
        """Add the row of a value. Return FINE or NO_MEMORY; what is wrong with the value becomes a finding.

        Returns NO_SCHEMA, and does nothing, when the schema `missing` has to be added first.
        """
        cdef int64_t rows = self.root.rows
        cdef known_t *known
        cdef avro_t a
        cdef int32_t schema_id = 0
        cdef int done = FINE
        a.at = data
        a.end = data + size
        a.empty = 0
        a.nulls_left = self.most_nulls(size)
        a.again = 0
        if self.framed:
            if size < HEADER_SIZE or data[0]:
                done = NO_HEADER
            else:
                schema_id = <int32_t>load_u32(data + 1)
                a.at += HEADER_SIZE
        if done == FINE:
            known = self.known_as(schema_id)
            if known == NULL and not self.is_unknown(schema_id):
                missing[0] = schema_id
                return NO_SCHEMA
            if known == NULL:
                done = NO_SCHEMA
            elif known.plan == NULL:
                done = OTHER_SCHEMA
            else:
                done = read_step(&a, known.plan)
                if done == FINE and a.at != a.end:
                    done = LEFT_OVER
        if done == FINE or done == NO_MEMORY:
            return done
        node_cut(&self.root, rows)
        done = self.found(rows, done, 0)
        return self.bad_row() if done == FINE else done

    def decode(self, BinaryRows values not None):
        """Add the rows of these values behind those that are there. Return None when all are done.

        Otherwise return the id of a schema that is not known yet: `add` it, or `add_unknown`, and call again with the
        same values.
        """
        cdef int64_t row = values.start + self.next_row
        cdef int32_t missing = 0
        cdef int done = FINE
        with nogil:
            while row < values.end:
                if row_is_null(values, row):
                    done = put_null(&self.root)
                else:
                    done = self.row(values.data + values.ends[row], values.ends[row + 1] - values.ends[row], &missing)
                if done != FINE:
                    break
                row += 1
        self.next_row = row - values.start
        if done == NO_SCHEMA:
            return missing
        self.next_row = 0
        if done != FINE:
            raise MemoryError()
        return None


cdef step_t *step_outside(step_t *step) except NULL:
    """Return the step that is `step.number` steps further out: the one that `step` repeats.

    Raises ValueError if no step is there, or one that cannot be repeated.
    """
    cdef int64_t left = step.number
    cdef step_t *found = step
    while left > 0 and found != NULL:
        found = found.parent
        left -= 1
    if found == NULL or found == step or found.target != NULL:
        raise ValueError(f"{step.number} steps out there is none that could come again")
    return found


cdef int put_raw(writer_t *out, int32_t value) except -1:
    cdef uint8_t *p = writer_reserve(out, 4)
    if p == NULL:
        raise MemoryError()
    memcpy(p, &value, 4)
    return 0


cdef int put_text(writer_t *out, bytes value) except -1:
    cdef uint8_t *p
    if value:
        p = writer_reserve(out, <size_t>len(value))
        if p == NULL:
            raise MemoryError()
        memcpy(p, <const char *>value, <size_t>len(value))
    return 0


cdef int64_t least_size(step_t *step) noexcept nogil:
    cdef int64_t found = 0
    cdef int i
    if step.step == STEP_RECORD:
        for i in range(step.child_count):
            found += step.children[i].least
        return found
    if step.step in (STEP_NULL, STEP_DEFAULT, STEP_FAIL, STEP_AGAIN):
        return 0
    if step.step == STEP_FLOAT:
        return 4
    if step.step == STEP_DOUBLE:
        return 8
    if step.step == STEP_FIXED:
        return step.number
    return step.children[0].least if step.step == STEP_MEMBER else 1
