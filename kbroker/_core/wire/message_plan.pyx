"""Layouts and plans of messages, and the call that makes an instance; see message_plan.pxd."""

cimport cython
from cpython.object cimport PyObject
from libc.stdlib cimport calloc

from kbroker._core.base.raw_objects cimport (
    Py_DECREF, Py_INCREF, Py_XDECREF, PyDict_GetItem, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTypeObject,
    PyUnicode_Compare, PyVectorcall_NARGS, allocate, member_offset, new_list, set_constructor, slot_at, vectorcallfunc,
)
from kbroker._core.wire.error_codes cimport UNSUPPORTED_VERSION

from kbroker.errors import ErrorCode, ProtocolError

_KINDS = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "uint16": UINT16, "int32": INT32, "uint32": UINT32, "int64": INT64,
    "float64": FLOAT64, "uuid": UUID, "string": STRING, "bytes": BYTES, "records": BYTES,
}
_TYPE_DEFAULTS = {
    "bool": False, "float64": 0.0, "uuid": bytes(16), "string": "", "bytes": b"", "records": None,
}

# Class -> _Layout.
cdef dict layouts = {}


@cython.final
cdef class _Layout:
    """Owns a layout. These are the values of `layouts`."""
    cdef layout_t *layout


cdef layout_t *layout_of(PyObject *cls) except NULL:
    cdef PyObject *found = PyDict_GetItem(layouts, cls)
    if found == NULL:
        raise TypeError(f"{<object>cls!r} is not a message class of kbroker.protocol.messages")
    return (<_Layout><object>found).layout


# --- layouts ----------------------------------------------------------------------------------------------------------

cdef range_t parse_range(str text) except *:
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


cdef int define_class(object cls, str name, range_t versions, range_t flexible, Py_ssize_t field_count) except -1:
    cdef _Layout owner = _Layout()
    cdef layout_t *layout = <layout_t *>calloc(1, sizeof(layout_t))
    if layout == NULL:
        raise MemoryError
    layout.cls = <PyTypeObject *>immortal(cls)
    layout.name = immortal(name)
    layout.field_count = field_count
    layout.versions = versions
    layout.flexible = flexible
    layout.fields = <field_t *>calloc(max(field_count, 1), sizeof(field_t))
    layout.plans = <plan_t **>calloc(versions.high - versions.low + 1, sizeof(plan_t *))
    if layout.fields == NULL or layout.plans == NULL:
        raise MemoryError
    owner.layout = layout
    layouts[cls] = owner
    set_constructor(cls, <vectorcallfunc>construct)
    return 0


cdef int define_fields(object cls, list fields, dict structs) except -1:
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
            field.child = layout_of(<PyObject *>structs[element])
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


# --- instances --------------------------------------------------------------------------------------------------------

cdef PyObject *construct(PyObject *cls, PyObject *const *args, size_t nargsf, PyObject *names) except NULL:
    """Make an instance: the vectorcall function of message classes, for `cls(field=value, ...)`."""
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
    """The index of a field by its name; -1 if there is none.

    `guess` is tried first: arguments mostly come in the order of the fields.
    """
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
        value = new_list(0)
    else:
        value = construct(<PyObject *>field.child.cls, NULL, 0, NULL)
    if value == NULL:
        raise MemoryError
    return value


# --- plans ------------------------------------------------------------------------------------------------------------

cdef plan_t *plan_for(layout_t *layout, int version) except NULL:
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
