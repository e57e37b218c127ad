"""Decoding bytes into message objects, by the plan of a message's version. MalformedBytes has the position of an error.

A count is accepted only if the bytes behind it suffice for so many elements. Nesting is bounded by the schema, which is
never recursive. A tagged field must end where its size says. No bytes may be left behind a whole message.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kbroker._core.base.raw_objects cimport (
    Py_DECREF, Py_False, Py_INCREF, Py_None, Py_True, Py_XDECREF, PyFloat_FromDouble, PyList_SET_ITEM,
    PyLong_FromLong, PyLong_FromLongLong, PyUnicode_DecodeUTF8, allocate, let_others_run, new_bytes, new_list, slot_at,
    take_utf8_position,
)
from kbroker._core.wire.cursor cimport (
    MOST_ELEMENTS, load_u16, load_u32, load_u64, read_array_count, read_bytes, read_string, read_uvarint, reader_init,
    reader_left, reader_t, reader_take,
)
from kbroker._core.wire.message_plan cimport (
    BOOL, BYTES, FIXED_SIZE, INT8, INT16, INT32, INT64, STRING, STRUCT, UINT16, UINT32, UUID, field_t, layout_of,
    new_default, op_t, plan_for, plan_t,
)

from kbroker.errors import MalformedBytes

cdef enum:
    NUMBERS_AS_ONE = 4           # Elements of an array of numbers are small: so many count as one.

cdef struct source_t:
    reader_t reader
    int64_t elements_left

# Types for calls whose error the caller tests itself.
ctypedef int (*decode_into_t)(plan_t *, PyObject *, source_t *) noexcept
ctypedef int (*decode_items_t)(plan_t *, op_t *, PyObject *, int32_t, source_t *) noexcept


cdef object decode_message(object cls, object body, int version, bint whole, size_t *size):
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
    """Decode tagged fields. As in Kafka, unknown tags are skipped, and the last one of a repeated tag counts."""
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
    source.elements_left -= count if op.kind != INT32 else (<int64_t>count + NUMBERS_AS_ONE - 1) // NUMBERS_AS_ONE
    if source.elements_left < 0:
        malformed(plan, op.field, source, f"more than {MOST_ELEMENTS} elements in one message")
    items = new_list(count)
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
            let_others_run()
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
            let_others_run()
    return 0


cdef PyObject *decode_value(plan_t *plan, op_t *op, source_t *source) except NULL:
    """Decode one value, or one element of an array (which is never null)."""
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
        if r.failed:
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
