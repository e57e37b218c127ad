"""The one interpreter of message schemas: classes with slots, and plans that encode and decode them.

A *layout* is what the schema data say of one struct: its class, and per field the name, type, version ranges, default and
the place of its slot inside an instance. A *plan* is a layout seen by one version: which fields are on the wire, in which
form. Layouts are made when a message class is first asked for, plans when a version of it is first used; both live as long
as the process.

Values go from slot to wire and back directly; no Python code runs between the first and the last byte, so that the GIL
protects the one scratch buffer all encoding uses. Version rules, defaults and tagged fields follow KIP-482 and Kafka's own
generated classes: a value that a version cannot carry is dropped when the schema allows it, else it is an error.

Hostile bytes: a count is believed only as far as the bytes behind it reach, nesting is that of the schema (which is never
recursive), tagged fields must end where they say, nothing may be left behind the message.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, UINT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t,
    uint64_t,
)
from libc.stdlib cimport calloc
from libc.string cimport memcmp, memcpy, memmove

from kbroker._core.cursor cimport (
    load_u16, load_u32, load_u64, read_array_count, read_bytes, read_string, read_uvarint, reader_init, reader_left,
    reader_t, reader_take, store_u16, store_u32, store_u64, write_array_count, write_i8, write_raw, write_uvarint,
    writer_free, writer_init, writer_reserve, writer_t,
)

from kbroker.errors import ErrorCode, MalformedBytes, ProtocolError

cdef extern from *:
    """
    #include <structmember.h>

    /* 0: *value is set; 1: too big for 64 bits; -1: not an int. */
    static inline int int_value(PyObject *object, int64_t *value) {
        int overflow;
        if (!PyLong_Check(object)) return -1;
    #if PY_VERSION_HEX >= 0x030C0000
        if (PyUnstable_Long_IsCompact((PyLongObject *)object)) {
            *value = PyUnstable_Long_CompactValue((PyLongObject *)object);
            return 0;
        }
    #else
        Py_ssize_t digits = Py_SIZE(object);
        if (digits >= -1 && digits <= 1) {
            *value = (int64_t)digits * ((PyLongObject *)object)->ob_digit[0];
            return 0;
        }
    #endif
        *value = PyLong_AsLongLongAndOverflow(object, &overflow);
        return overflow != 0;
    }

    static inline PyObject *allocate(PyTypeObject *cls) { return cls->tp_alloc(cls, 0); }
    static inline PyObject **slot_at(PyObject *object, Py_ssize_t offset) { return (PyObject **)((char *)object + offset); }
    static inline Py_ssize_t member_offset(PyObject *descriptor) {
        return ((PyMemberDescrObject *)descriptor)->d_member->offset;
    }
    /* Where the pending UnicodeDecodeError found its byte; clears it. */
    static inline Py_ssize_t take_utf8_position(void) {
        PyObject *type, *error, *trace;
        Py_ssize_t position = 0;
        PyErr_Fetch(&type, &error, &trace);
        PyErr_NormalizeException(&type, &error, &trace);
        if (error == NULL || !PyErr_GivenExceptionMatches(error, PyExc_UnicodeDecodeError)
            || PyUnicodeDecodeError_GetStart(error, &position) < 0) {
            PyErr_Clear();
            position = 0;
        }
        Py_XDECREF(type); Py_XDECREF(error); Py_XDECREF(trace);
        return position;
    }
    static inline void set_constructor(PyObject *cls, vectorcallfunc construct) {
        ((PyTypeObject *)cls)->tp_vectorcall = construct;
    }
    """
    ctypedef struct PyTypeObject:
        pass
    ctypedef PyObject *(*vectorcallfunc)(PyObject *, PyObject *const *, size_t, PyObject *)
    int int_value(PyObject *object, int64_t *value) noexcept
    PyObject *allocate(PyTypeObject *cls) noexcept
    PyObject **slot_at(PyObject *object, Py_ssize_t offset) noexcept
    Py_ssize_t member_offset(object descriptor) noexcept
    Py_ssize_t take_utf8_position() noexcept
    void set_constructor(object cls, vectorcallfunc construct) noexcept

cdef extern from "Python.h":
    PyTypeObject *Py_TYPE(PyObject *object) noexcept
    void Py_INCREF(PyObject *object) noexcept
    void Py_DECREF(PyObject *object) noexcept
    void Py_XDECREF(PyObject *object) noexcept
    PyObject *Py_None
    PyObject *Py_True
    PyObject *Py_False
    PyObject *PyLong_FromLong(long value) noexcept
    PyObject *PyLong_FromLongLong(long long value) noexcept
    PyObject *PyFloat_FromDouble(double value) noexcept
    bint PyFloat_Check(PyObject *object) noexcept
    double PyFloat_AS_DOUBLE(PyObject *object) noexcept
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t size) noexcept
    PyObject *PyUnicode_DecodeUTF8(const char *data, Py_ssize_t size, const char *errors) noexcept
    bint PyUnicode_Check(PyObject *object) noexcept
    bint PyBytes_Check(PyObject *object) noexcept
    bint PyByteArray_Check(PyObject *object) noexcept
    bint PyMemoryView_Check(PyObject *object) noexcept
    const char *PyBytes_AS_STRING(PyObject *object) noexcept
    Py_ssize_t PyBytes_GET_SIZE(PyObject *object) noexcept
    const char *PyUnicode_AsUTF8AndSize(PyObject *object, Py_ssize_t *size) noexcept
    int PyUnicode_Compare(PyObject *left, PyObject *right) noexcept
    int PyObject_IsTrue(PyObject *object) noexcept
    PyObject *PyList_New(Py_ssize_t size) noexcept
    bint PyList_Check(PyObject *object) noexcept
    bint PyTuple_Check(PyObject *object) noexcept
    void PyList_SET_ITEM(PyObject *list, Py_ssize_t index, PyObject *item) noexcept
    Py_ssize_t PySequence_Fast_GET_SIZE(PyObject *sequence) noexcept
    PyObject **PySequence_Fast_ITEMS(PyObject *sequence) noexcept
    PyObject *PyTuple_GET_ITEM(PyObject *tuple, Py_ssize_t index) noexcept
    Py_ssize_t PyTuple_GET_SIZE(PyObject *tuple) noexcept
    Py_ssize_t PyVectorcall_NARGS(size_t nargsf) noexcept
    PyObject *PyDict_GetItem(object mapping, PyObject *key) noexcept
    void PyErr_Clear() noexcept

# What a value is on the wire. The fixed-size kinds come first.
cdef enum:
    BOOL
    INT8
    INT16
    UINT16
    INT32
    UINT32
    INT64
    FLOAT64
    UUID
    STRING
    BYTES
    STRUCT

cdef int *FIXED_SIZE = [1, 1, 2, 2, 4, 4, 8, 8, 16, 0, 0, 0]
cdef int64_t *LOWEST = [0, -128, -32768, 0, INT32_MIN, 0, INT64_MIN]
cdef int64_t *HIGHEST = [1, 127, 32767, 65535, INT32_MAX, UINT32_MAX, INT64_MAX]

_KINDS = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "uint16": UINT16, "int32": INT32, "uint32": UINT32, "int64": INT64,
    "float64": FLOAT64, "uuid": UUID, "string": STRING, "bytes": BYTES, "records": BYTES,
}
_TYPE_DEFAULTS = {
    "bool": False, "float64": 0.0, "uuid": bytes(16), "string": "", "bytes": b"", "records": None,
}

cdef enum:
    # How a field gets its default.
    SHARED_DEFAULT       # one immutable object
    NEW_LIST
    NEW_STRUCT
    ALL_VERSIONS = 32767

cdef struct range_t:
    int low
    int high                     # below `low`: none

cdef struct field_t:
    PyObject *name               # interned
    Py_ssize_t offset            # of the slot in an instance
    uint8_t kind
    bint is_array
    uint8_t default_kind
    PyObject *default_value      # NULL unless SHARED_DEFAULT
    layout_t *child              # of STRUCT
    range_t versions
    range_t nullable
    range_t tagged
    int tag
    bint droppable               # a version without the field drops its value silently
    bint never_flexible

cdef struct op_t:
    # One field in one version.
    field_t *field
    uint8_t kind
    bint is_array
    bint nullable
    bint compact
    int8_t null_struct           # the byte in front of a nullable struct that means null
    Py_ssize_t offset
    plan_t *child
    size_t element_size          # least bytes of one array element

cdef struct plan_t:
    layout_t *layout
    int version
    bint flexible
    size_t least_size            # bytes that any value takes
    int op_count
    op_t *ops                    # in wire order
    int tagged_count
    op_t *tagged                 # by tag
    int absent_count
    field_t **absent             # fields that this version does not have

cdef struct layout_t:
    PyTypeObject *cls
    PyObject *name               # as errors call it
    int field_count
    field_t *fields
    range_t versions             # of the message
    range_t flexible             # of the message
    plan_t **plans               # by version - versions.low; NULL until used

# _Layout of a class, by the class.
cdef dict layouts = {}
cdef writer_t scratch
writer_init(&scratch)

cdef enum:
    SCRATCH_KEPT = 1 << 20       # bytes of scratch kept between messages


@cython.final
cdef class _Layout:
    """Owner of a class's layout."""
    cdef layout_t *layout


cdef inline layout_t *layout_of(PyObject *cls) except NULL:
    cdef PyObject *found = PyDict_GetItem(layouts, cls)
    if found == NULL:
        raise TypeError(f"{<object>cls!r} is not a message class of kbroker.protocol.messages")
    return (<_Layout><object>found).layout


# --- classes ----------------------------------------------------------------------------------------------------------

@cython.auto_pickle(False)
cdef class Struct:
    """A part of a message: one slot per field of any version. Made by keyword, with the protocol's defaults."""

    def __eq__(self, other):
        cdef layout_t *layout
        cdef PyObject *left
        cdef PyObject *right
        if type(self) is not type(other):
            return NotImplemented
        layout = layout_of(<PyObject *>Py_TYPE(<PyObject *>self))
        for i in range(layout.field_count):
            left = slot_at(<PyObject *>self, layout.fields[i].offset)[0]
            right = slot_at(<PyObject *>other, layout.fields[i].offset)[0]
            if left == right:
                continue
            if left == NULL or right == NULL or <object>left != <object>right:
                return False
        return True

    __hash__ = None

    def __repr__(self):
        cdef layout_t *layout = layout_of(<PyObject *>Py_TYPE(<PyObject *>self))
        cdef list parts = []
        cdef PyObject *value
        for i in range(layout.field_count):
            value = slot_at(<PyObject *>self, layout.fields[i].offset)[0]
            parts.append(f"{<str>layout.fields[i].name}={'?' if value == NULL else repr(<object>value)}")
        return f"{type(self).__name__}({', '.join(parts)})"


@cython.auto_pickle(False)
cdef class Message(Struct):
    """A request, a response, a header or a record of the coordinators' topics."""

    def encode(self, int version):
        """The body in a version. `ProtocolError` (UNSUPPORTED_VERSION) when the version cannot carry a value."""
        cdef plan_t *plan = plan_for(layout_of(<PyObject *>Py_TYPE(<PyObject *>self)), version)
        scratch.size = 0
        scratch.failed = False
        encode_struct(plan, <PyObject *>self, &scratch)
        if scratch.failed:
            raise MemoryError
        body = PyBytes_FromStringAndSize(<char *>scratch.data, scratch.size)
        if scratch.capacity > SCRATCH_KEPT:
            writer_free(&scratch)
        return body

    @classmethod
    def decode(cls, body, int version):
        """The message that `body` is; it keeps no reference to it. `MalformedBytes` when anything is not as it must be."""
        cdef size_t size = 0
        return decode_message(cls, body, version, True, &size)

    @classmethod
    def decode_prefix(cls, body, int version):
        """The message at the start of `body`, and how many bytes it takes."""
        cdef size_t size = 0
        message = decode_message(cls, body, version, False, &size)
        return message, size


cdef PyObject *construct(PyObject *cls, PyObject *const *args, size_t nargsf, PyObject *names) except NULL:
    """`cls(field=value, ...)`, as the class's vector call."""
    cdef layout_t *layout = layout_of(cls)
    cdef Py_ssize_t count = PyTuple_GET_SIZE(names) if names != NULL else 0
    cdef int next_field = 0
    cdef int at
    cdef PyObject *message
    cdef PyObject **slot
    if PyVectorcall_NARGS(nargsf) != 0:
        raise TypeError(f"{<str>layout.name} takes keyword arguments only")
    message = allocate(layout.cls)
    if message == NULL:
        raise MemoryError
    for i in range(count):
        at = find_field(layout, PyTuple_GET_ITEM(names, i), next_field)
        if at < 0:
            Py_DECREF(message)
            raise TypeError(f"{<str>layout.name} has no field {<object>PyTuple_GET_ITEM(names, i)!r}")
        slot = slot_at(message, layout.fields[at].offset)
        Py_XDECREF(slot[0])
        slot[0] = args[i]
        Py_INCREF(args[i])
        next_field = at + 1
    for i in range(layout.field_count):
        slot = slot_at(message, layout.fields[i].offset)
        if slot[0] == NULL:
            slot[0] = new_default(&layout.fields[i])
    return message


cdef int find_field(layout_t *layout, PyObject *name, int guess) noexcept:
    """The field's index, -1 when there is none. Arguments mostly come in the order of the fields."""
    cdef int i
    if guess < layout.field_count and layout.fields[guess].name == name:
        return guess
    for i in range(layout.field_count):
        if layout.fields[i].name == name:
            return i
    for i in range(layout.field_count):
        if PyUnicode_Compare(layout.fields[i].name, name) == 0:
            return i
    return -1


cdef PyObject *new_default(field_t *field) except NULL:
    cdef PyObject *value
    if field.default_kind == SHARED_DEFAULT:
        Py_INCREF(field.default_value)
        return field.default_value
    if field.default_kind == NEW_LIST:
        value = PyList_New(0)
    else:
        value = construct(<PyObject *>field.child.cls, NULL, 0, NULL)
    if value == NULL:
        raise MemoryError
    return value


# --- layouts ----------------------------------------------------------------------------------------------------------

cdef range_t parse_range(str text) except *:
    """`3+`, `2-5`, `7` or `none`."""
    cdef range_t parsed
    parsed.low = 0
    parsed.high = -1
    if text != "none":
        if text.endswith("+"):
            parsed.low = int(text.removesuffix("+"))
            parsed.high = ALL_VERSIONS
        else:
            low, _, high = text.partition("-")
            parsed.low = int(low)
            parsed.high = int(high or low)
    return parsed


cdef inline bint within(range_t span, int version) noexcept nogil:
    return span.low <= version <= span.high


cdef PyObject *immortal(object value) noexcept:
    Py_INCREF(<PyObject *>value)
    return <PyObject *>value


def make_message(str name, list schema, str module):
    """The class of a message, from its line of the schema data; nested structs are its attributes."""
    api_key, _, versions, flexible, fields, structs = schema
    cdef range_t valid = parse_range(versions)
    cdef range_t compact = parse_range(flexible)
    cdef dict children = {}
    attributes = {
        "API_KEY": api_key, "MIN_VERSION": valid.low, "MAX_VERSION": valid.high,
        "FLEXIBLE_FROM": compact.low if compact.high >= 0 else None,
    }
    for struct, struct_fields in structs.items():
        children[struct] = make_class(f"{name}.{struct}", struct, struct_fields, Struct, module, {}, valid, compact)
    made = make_class(name, name, fields, Message, module, {**attributes, **children}, valid, compact)
    fill_fields(made, fields, children)
    for struct, struct_fields in structs.items():
        fill_fields(children[struct], struct_fields, children)
    return made


cdef object make_class(str qualname, str name, list fields, type base, str module, dict attributes,
                       range_t versions, range_t flexible):
    cdef _Layout owner = _Layout()
    cdef layout_t *layout = <layout_t *>calloc(1, sizeof(layout_t))
    slots = tuple([field[0] for field in fields])
    cls = type(name, (base,), {"__slots__": slots, "__module__": module, "__qualname__": qualname, **attributes})
    if layout == NULL:
        raise MemoryError
    layout.cls = <PyTypeObject *>immortal(cls)
    layout.name = immortal(qualname)
    layout.field_count = len(fields)
    layout.versions = versions
    layout.flexible = flexible
    layout.fields = <field_t *>calloc(max(len(fields), 1), sizeof(field_t))
    layout.plans = <plan_t **>calloc(versions.high - versions.low + 1, sizeof(plan_t *))
    if layout.fields == NULL or layout.plans == NULL:
        raise MemoryError
    owner.layout = layout
    layouts[cls] = owner
    set_constructor(cls, <vectorcallfunc>construct)
    return cls


cdef int fill_fields(object cls, list fields, dict children) except -1:
    cdef layout_t *layout = layout_of(<PyObject *>cls)
    cdef field_t *field
    cdef str element
    for i, entry in enumerate(fields):
        name, kind, versions = entry[:3]
        extras = entry[3] if len(entry) > 3 else {}
        field = &layout.fields[i]
        field.name = immortal(name)
        field.offset = member_offset(cls.__dict__[name])
        field.is_array = kind.startswith("[]")
        element = kind[2:] if field.is_array else kind
        if element in _KINDS:
            field.kind = _KINDS[element]
        else:
            field.kind = STRUCT
            field.child = layout_of(<PyObject *>children[element])
        field.versions = parse_range(versions)
        field.nullable = parse_range(extras.get("null", "none"))
        field.tagged = parse_range(extras.get("tagged", "none"))
        field.tag = extras.get("tag", -1)
        field.droppable = extras.get("drop", False)
        field.never_flexible = extras.get("flexible") == "none"
        field.default_kind = SHARED_DEFAULT
        if "default" in extras:
            default = extras["default"]
            if field.kind == FLOAT64:
                default = float(default)
            field.default_value = immortal(default)
        elif field.is_array:
            field.default_kind = NEW_LIST
        elif field.kind == STRUCT:
            field.default_kind = NEW_STRUCT
        else:
            field.default_value = immortal(_TYPE_DEFAULTS.get(element, 0))
    return 0


# --- plans ------------------------------------------------------------------------------------------------------------

cdef inline plan_t *plan_for(layout_t *layout, int version) except NULL:
    cdef plan_t *plan
    if not within(layout.versions, version):
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"{<str>layout.name} has no version {version}")
    plan = layout.plans[version - layout.versions.low]
    return plan if plan != NULL else make_plan(layout, version)


cdef plan_t *make_plan(layout_t *layout, int version) except NULL:
    cdef plan_t *plan = <plan_t *>calloc(1, sizeof(plan_t))
    cdef size_t count = layout.field_count + 1
    cdef field_t *field
    cdef op_t *op
    cdef op_t swap
    if plan == NULL:
        raise MemoryError
    plan.layout = layout
    plan.version = version
    plan.flexible = within(layout.flexible, version)
    plan.ops = <op_t *>calloc(count, sizeof(op_t))
    plan.tagged = <op_t *>calloc(count, sizeof(op_t))
    plan.absent = <field_t **>calloc(count, sizeof(field_t *))
    if plan.ops == NULL or plan.tagged == NULL or plan.absent == NULL:
        raise MemoryError
    for i in range(layout.field_count):
        field = &layout.fields[i]
        if not within(field.versions, version):
            plan.absent[plan.absent_count] = field
            plan.absent_count += 1
            continue
        if plan.flexible and within(field.tagged, version):
            op = &plan.tagged[plan.tagged_count]
            plan.tagged_count += 1
            op.null_struct = 0
        else:
            op = &plan.ops[plan.op_count]
            plan.op_count += 1
            op.null_struct = -1
        op.field = field
        op.kind = field.kind
        op.is_array = field.is_array
        op.offset = field.offset
        op.nullable = within(field.nullable, version)
        op.compact = plan.flexible and not field.never_flexible
        op.element_size = FIXED_SIZE[field.kind]
        if field.kind == STRUCT:
            op.child = plan_for(field.child, version)
            op.element_size = op.child.least_size if op.child.least_size else 1
        elif field.kind == STRING:
            op.element_size = 1 if op.compact else 2
        elif field.kind == BYTES:
            op.element_size = 1 if op.compact else 4
        if not (plan.flexible and within(field.tagged, version)):
            if op.is_array:
                plan.least_size += 1 if op.compact else 4
            else:
                plan.least_size += 1 if op.kind == STRUCT and op.nullable else op.element_size
    if plan.flexible:
        plan.least_size += 1
    for i in range(1, plan.tagged_count):
        for j in range(i, 0, -1):
            if plan.tagged[j - 1].field.tag > plan.tagged[j].field.tag:
                swap = plan.tagged[j - 1]
                plan.tagged[j - 1] = plan.tagged[j]
                plan.tagged[j] = swap
    layout.plans[version - layout.versions.low] = plan
    return plan


# --- decoding ---------------------------------------------------------------------------------------------------------

cdef enum:
    # Array elements of one message. A small element takes some forty times its bytes as objects, so this bounds what a
    # frame of the largest size can cost; the largest clusters ask for a tenth of it.
    MOST_ELEMENTS = 1 << 20

cdef struct source_t:
    reader_t reader
    int64_t elements_left

# A call whose error its caller looks at itself.
ctypedef int (*decode_into_t)(plan_t *, PyObject *, source_t *) noexcept
ctypedef int (*decode_items_t)(plan_t *, op_t *, PyObject *, int32_t, source_t *) noexcept


cdef object decode_message(object cls, object body, int version, bint whole, size_t *size):
    """The message at the start of `body`; it must fill it when it is to be the whole of it."""
    cdef plan_t *plan = plan_for(layout_of(<PyObject *>cls), version)
    cdef Py_buffer view
    cdef source_t source
    cdef PyObject *message
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        reader_init(&source.reader, view.buf, view.len)
        source.elements_left = MOST_ELEMENTS
        message = decode_struct(plan, &source)
        result = <object>message
        Py_DECREF(message)
        size[0] = source.reader.at - source.reader.start
        if whole and source.reader.at != source.reader.end:
            malformed(plan, NULL, &source, f"{reader_left(&source.reader)} bytes too many")
    finally:
        PyBuffer_Release(&view)
    return result


cdef int malformed(plan_t *plan, field_t *field, source_t *source, str what) except -1:
    where = f"{<str>plan.layout.name}.{<str>field.name}" if field != NULL else <str>plan.layout.name
    raise MalformedBytes(f"{where} version {plan.version}: {what}", source.reader.at - source.reader.start)


cdef PyObject *decode_struct(plan_t *plan, source_t *source) except NULL:
    cdef PyObject *message = allocate(plan.layout.cls)
    if message == NULL:
        raise MemoryError
    if (<decode_into_t>decode_fields)(plan, message, source) < 0:
        Py_DECREF(message)
        return NULL
    return message


cdef int decode_fields(plan_t *plan, PyObject *message, source_t *source) except -1:
    cdef PyObject **slot
    cdef op_t *op
    cdef int i
    for i in range(plan.op_count):
        op = &plan.ops[i]
        slot = slot_at(message, op.offset)
        slot[0] = decode_array(plan, op, source) if op.is_array else decode_value(plan, op, source)
    if plan.flexible:
        decode_tagged(plan, message, source)
        for i in range(plan.tagged_count):
            slot = slot_at(message, plan.tagged[i].offset)
            if slot[0] == NULL:
                slot[0] = new_default(plan.tagged[i].field)
    for i in range(plan.absent_count):
        slot_at(message, plan.absent[i].offset)[0] = new_default(plan.absent[i])
    return 0


cdef int decode_tagged(plan_t *plan, PyObject *message, source_t *source) except -1:
    """Tagged fields; those that the schema does not know are skipped, of repeated ones the last counts, as in Kafka."""
    cdef reader_t *r = &source.reader
    cdef uint32_t count = read_uvarint(r)
    cdef uint32_t tag
    cdef uint32_t size
    cdef const uint8_t *end
    cdef PyObject *value
    cdef PyObject **slot
    cdef op_t *op
    cdef int i
    while count > 0 and not r.failed:
        count -= 1
        tag = read_uvarint(r)
        size = read_uvarint(r)
        if r.failed or size > reader_left(r):
            r.failed = True
            break
        for i in range(plan.tagged_count):
            op = &plan.tagged[i]
            if <uint32_t>op.field.tag != tag:
                continue
            end = r.end
            r.end = r.at + size
            value = decode_array(plan, op, source) if op.is_array else decode_value(plan, op, source)
            slot = slot_at(message, op.offset)
            Py_XDECREF(slot[0])
            slot[0] = value
            if r.at != r.end:
                malformed(plan, op.field, source, "the tagged field is longer than its value")
            r.end = end
            break
        else:
            r.at += size
    if r.failed:
        malformed(plan, NULL, source, "bytes end inside tagged fields")
    return 0


cdef PyObject *decode_array(plan_t *plan, op_t *op, source_t *source) except NULL:
    cdef int32_t count = read_array_count(&source.reader, op.compact, op.element_size)
    cdef PyObject *items
    if source.reader.failed:
        malformed(plan, op.field, source, "more elements than bytes")
    if count < 0:
        if not op.nullable:
            malformed(plan, op.field, source, "null where null is not allowed")
        Py_INCREF(Py_None)
        return Py_None
    source.elements_left -= count
    if source.elements_left < 0:
        malformed(plan, op.field, source, f"more than {MOST_ELEMENTS} elements in one message")
    items = PyList_New(count)
    if items == NULL:
        raise MemoryError
    if count and (<decode_items_t>decode_items)(plan, op, items, count, source) < 0:
        Py_DECREF(items)
        return NULL
    return items


cdef int decode_items(plan_t *plan, op_t *op, PyObject *items, int32_t count, source_t *source) except -1:
    cdef const uint8_t *data
    cdef PyObject *item
    cdef int32_t i
    if op.kind == STRUCT:
        for i in range(count):
            PyList_SET_ITEM(items, i, decode_struct(op.child, source))
    elif op.kind == INT32:
        data = reader_take(&source.reader, <int64_t>count * 4)
        for i in range(count):
            item = PyLong_FromLong(<int32_t>load_u32(data + 4 * i))
            if item == NULL:
                raise MemoryError
            PyList_SET_ITEM(items, i, item)
    else:
        for i in range(count):
            PyList_SET_ITEM(items, i, decode_value(plan, op, source))
    return 0


cdef PyObject *decode_value(plan_t *plan, op_t *op, source_t *source) except NULL:
    """One value, or one element of an array (which is never null)."""
    cdef reader_t *r = &source.reader
    cdef const uint8_t *data
    cdef PyObject *value
    cdef int32_t size = 0
    cdef uint64_t bits = 0
    cdef double number = 0
    if op.kind < STRING:
        data = reader_take(r, FIXED_SIZE[op.kind])
        if data == NULL:
            malformed(plan, op.field, source, "bytes end inside it")
        if op.kind == INT32:
            value = PyLong_FromLong(<int32_t>load_u32(data))
        elif op.kind == INT16:
            value = PyLong_FromLong(<int16_t>load_u16(data))
        elif op.kind == INT64:
            value = PyLong_FromLongLong(<int64_t>load_u64(data))
        elif op.kind == INT8:
            value = PyLong_FromLong(<int8_t>data[0])
        elif op.kind == BOOL:
            value = Py_True if data[0] else Py_False
            Py_INCREF(value)
        elif op.kind == UUID:
            value = new_bytes(<const char *>data, 16)
        elif op.kind == UINT16:
            value = PyLong_FromLong(load_u16(data))
        elif op.kind == UINT32:
            value = PyLong_FromLongLong(load_u32(data))
        else:
            bits = load_u64(data)
            memcpy(&number, &bits, 8)
            value = PyFloat_FromDouble(number)
    elif op.kind == STRING:
        data = read_string(r, op.compact, &size)
        if r.failed or size > 0x7fff:
            malformed(plan, op.field, source, "not the length of a string that is there")
        if size < 0:
            return decode_null(plan, op, source)
        value = PyUnicode_DecodeUTF8(<const char *>data, size, NULL)
        if value == NULL:
            r.at = data + take_utf8_position()
            malformed(plan, op.field, source, "not UTF-8")
    elif op.kind == BYTES:
        data = read_bytes(r, op.compact, &size)
        if r.failed:
            malformed(plan, op.field, source, "not the length of bytes that are there")
        if size < 0:
            return decode_null(plan, op, source)
        value = new_bytes(<const char *>data, size)
    else:
        if op.nullable and not op.is_array:
            data = reader_take(r, 1)
            if data == NULL:
                malformed(plan, op.field, source, "bytes end inside it")
            if <int8_t>data[0] <= op.null_struct:
                return decode_null(plan, op, source)
        return decode_struct(op.child, source)
    if value == NULL:
        raise MemoryError
    return value


cdef PyObject *decode_null(plan_t *plan, op_t *op, source_t *source) except NULL:
    if not op.nullable or op.is_array:
        malformed(plan, op.field, source, "null where null is not allowed")
    Py_INCREF(Py_None)
    return Py_None


# --- encoding ---------------------------------------------------------------------------------------------------------

cdef int wrong(plan_t *plan, field_t *field, PyObject *value) except -1:
    """Raise what is wrong with a value: it is ours, not the peer's."""
    where = f"{<str>plan.layout.name}.{<str>field.name}"
    if value == NULL:
        raise TypeError(f"{where} is not set")
    if value == Py_None and field.nullable.high >= 0:
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"{where} cannot be null in version {plan.version}")
    shown = repr(<object>value)
    raise TypeError(f"{where} cannot be {shown if len(shown) < 100 else shown[:97] + '...'}")


cdef int encode_struct(plan_t *plan, PyObject *message, writer_t *w) except -1:
    cdef PyObject *value
    cdef op_t *op
    cdef int i
    for i in range(plan.op_count):
        op = &plan.ops[i]
        value = slot_at(message, op.offset)[0]
        if op.is_array:
            encode_array(plan, op, value, w)
        else:
            encode_value(plan, op, value, w)
    if plan.flexible:
        if plan.tagged_count == 0:
            write_i8(w, 0)
        else:
            encode_tagged(plan, message, w)
    for i in range(plan.absent_count):
        if not plan.absent[i].droppable:
            value = slot_at(message, plan.absent[i].offset)[0]
            if not is_default(plan.absent[i], value):
                raise ProtocolError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{<str>plan.layout.name}.{<str>plan.absent[i].name} does not exist in version {plan.version}",
                )
    return 0


cdef int encode_tagged(plan_t *plan, PyObject *message, writer_t *w) except -1:
    cdef uint32_t count = 0
    cdef PyObject *value
    cdef op_t *op
    cdef size_t start
    cdef size_t size
    cdef int i
    for i in range(plan.tagged_count):
        if not is_default(plan.tagged[i].field, slot_at(message, plan.tagged[i].offset)[0]):
            count += 1
    write_uvarint(w, count)
    if count == 0:
        return 0
    for i in range(plan.tagged_count):
        op = &plan.tagged[i]
        value = slot_at(message, op.offset)[0]
        if is_default(op.field, value):
            continue
        write_uvarint(w, <uint32_t>op.field.tag)
        start = w.size
        if op.is_array:
            encode_array(plan, op, value, w)
        else:
            encode_value(plan, op, value, w)
        if w.failed:
            return 0
        size = w.size - start
        write_uvarint(w, <uint32_t>size)          # for its width, behind the value
        if not w.failed:
            rotate_behind(w.data + start, size, w.size - start - size)
    return 0


cdef void rotate_behind(uint8_t *data, size_t size, size_t tail) noexcept nogil:
    """Move the `tail` bytes behind the first `size` in front of them; `tail` is at most 5."""
    cdef uint8_t[8] kept
    memcpy(kept, data + size, tail)
    memmove(data + tail, data, size)
    memcpy(data, kept, tail)


cdef int encode_array(plan_t *plan, op_t *op, PyObject *value, writer_t *w) except -1:
    cdef PyObject **items
    cdef Py_ssize_t count
    cdef Py_ssize_t i
    cdef uint8_t *p
    cdef int64_t number = 0
    if value == NULL or not (PyList_Check(value) or PyTuple_Check(value)):
        if value != Py_None or not op.nullable:
            wrong(plan, op.field, value)
        write_array_count(w, -1, op.compact)
        return 0
    count = PySequence_Fast_GET_SIZE(value)
    items = PySequence_Fast_ITEMS(value)
    if count > 0x7fffffff:
        raise ValueError(f"{<str>plan.layout.name}.{<str>op.field.name} has too many elements")
    write_array_count(w, <int32_t>count, op.compact)
    if op.kind == INT32:
        p = writer_reserve(w, 4 * count)
        if p == NULL:
            return 0
        for i in range(count):
            if int_value(items[i], &number) != 0 or number != <int32_t>number:
                wrong(plan, op.field, items[i])
            store_u32(p + 4 * i, <uint32_t>number)
    elif op.kind == STRUCT:
        for i in range(count):
            if Py_TYPE(items[i]) != op.child.layout.cls:
                wrong(plan, op.field, items[i])
            encode_struct(op.child, items[i], w)
    else:
        for i in range(count):
            if items[i] == Py_None:
                wrong(plan, op.field, items[i])
            encode_value(plan, op, items[i], w)
    return 0


cdef int encode_value(plan_t *plan, op_t *op, PyObject *value, writer_t *w) except -1:
    """One value, or one element of an array (which is never null)."""
    cdef int64_t number = 0
    cdef uint64_t bits = 0
    cdef double real
    cdef const char *data
    cdef Py_ssize_t size = 0
    cdef uint8_t *p
    if value == NULL:
        wrong(plan, op.field, value)
    if op.kind < FLOAT64:
        if int_value(value, &number) != 0 or number < LOWEST[op.kind] or number > HIGHEST[op.kind]:
            wrong(plan, op.field, value)
        p = writer_reserve(w, FIXED_SIZE[op.kind])
        if p == NULL:
            return 0
        if op.kind == INT32 or op.kind == UINT32:
            store_u32(p, <uint32_t>number)
        elif op.kind == INT16 or op.kind == UINT16:
            store_u16(p, <uint16_t>number)
        elif op.kind == INT64:
            store_u64(p, <uint64_t>number)
        else:
            p[0] = <uint8_t>number
    elif op.kind == STRING:
        if not PyUnicode_Check(value):
            if value != Py_None or not op.nullable:
                wrong(plan, op.field, value)
            write_length(w, -1, op.compact, 2)
            return 0
        data = PyUnicode_AsUTF8AndSize(value, &size)
        if data == NULL or size > 0x7fff:
            PyErr_Clear()
            wrong(plan, op.field, value)
        write_length(w, size, op.compact, 2)
        write_raw(w, data, size)
    elif op.kind == STRUCT:
        if value == Py_None and op.nullable:
            write_i8(w, op.null_struct)
            return 0
        if Py_TYPE(value) != op.child.layout.cls:
            wrong(plan, op.field, value)
        if op.nullable:
            write_i8(w, 1)
        encode_struct(op.child, value, w)
    elif op.kind == BYTES:
        if value == Py_None and op.nullable:
            write_length(w, -1, op.compact, 4)
        elif PyBytes_Check(value):
            write_length(w, PyBytes_GET_SIZE(value), op.compact, 4)
            write_raw(w, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        else:
            encode_buffer(plan, op, value, w)
    elif op.kind == UUID:
        if not PyBytes_Check(value) or PyBytes_GET_SIZE(value) != 16:
            wrong(plan, op.field, value)
        write_raw(w, PyBytes_AS_STRING(value), 16)
    else:
        if not PyFloat_Check(value):
            wrong(plan, op.field, value)
        real = PyFloat_AS_DOUBLE(value)
        memcpy(&bits, &real, 8)
        p = writer_reserve(w, 8)
        if p != NULL:
            store_u64(p, bits)
    return 0


cdef int encode_buffer(plan_t *plan, op_t *op, PyObject *value, writer_t *w) except -1:
    """Bytes behind a memoryview or bytearray; other exporters could run code in the midst of an encoding."""
    cdef Py_buffer view
    if not (PyMemoryView_Check(value) or PyByteArray_Check(value)):
        wrong(plan, op.field, value)
    PyObject_GetBuffer(<object>value, &view, PyBUF_SIMPLE)
    write_length(w, view.len, op.compact, 4)
    write_raw(w, view.buf, view.len)
    PyBuffer_Release(&view)
    return 0


cdef inline void write_length(writer_t *w, Py_ssize_t size, bint compact, int width) noexcept nogil:
    """The length in front of a string (width 2) or bytes (width 4); -1 is null."""
    cdef uint8_t *p
    if size > 0x7fffffff:
        w.failed = True
    elif compact:
        write_uvarint(w, <uint32_t>(size + 1))
    else:
        p = writer_reserve(w, width)
        if p == NULL:
            return
        if width == 2:
            store_u16(p, <uint16_t>size)
        else:
            store_u32(p, <uint32_t>size)


cdef bint is_default(field_t *field, PyObject *value) noexcept:
    """Whether a tagged field is left out, and a field dropped without loss."""
    cdef layout_t *child
    cdef int64_t number = 0
    cdef int64_t expected = 0
    cdef PyObject *default = field.default_value
    if value == default:
        return True
    if value == NULL or value == Py_None or default == Py_None:
        return False
    if field.is_array:
        return (PyList_Check(value) or PyTuple_Check(value)) and PySequence_Fast_GET_SIZE(value) == 0
    if field.kind < FLOAT64:
        return int_value(value, &number) == 0 and int_value(default, &expected) == 0 and number == expected
    if field.kind == FLOAT64:
        return PyFloat_Check(value) and PyFloat_AS_DOUBLE(value) == PyFloat_AS_DOUBLE(default)
    if field.kind == STRING:
        return PyUnicode_Check(value) and PyUnicode_Compare(value, default) == 0
    if field.kind == UUID or field.kind == BYTES:
        return (
            PyBytes_Check(value)
            and PyBytes_GET_SIZE(value) == PyBytes_GET_SIZE(default)
            and memcmp(PyBytes_AS_STRING(value), PyBytes_AS_STRING(default), PyBytes_GET_SIZE(value)) == 0
        )
    child = field.child
    if Py_TYPE(value) != child.cls:
        return False
    for i in range(child.field_count):
        if not is_default(&child.fields[i], slot_at(value, child.fields[i].offset)[0]):
            return False
    return True
