"""Encoding message objects into bytes, by the plan of a message's version.

Python code runs during an encoding only where an array is lazy. But other threads may run while a long message is
encoded, so nobody may change a message meanwhile. Version rules, defaults and tagged fields follow KIP-482 and Kafka's
own generated classes: a value that a version cannot carry is dropped if the schema allows it, else it is an error.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memcmp, memcpy, memmove

from kbroker._core.base.raw_objects cimport (
    Py_None, Py_TYPE, PyByteArray_Check, PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE, PyErr_Clear,
    PyFloat_AS_DOUBLE, PyFloat_Check, PyList_Check, PyMemoryView_Check, PySequence_Fast_GET_SIZE, PySequence_Fast_ITEMS,
    PyTuple_Check, PyTypeObject, PyUnicode_AsUTF8AndSize, PyUnicode_Check, PyUnicode_Compare, int_value, let_others_run,
    slot_at,
)
from kbroker._core.wire.cursor cimport (
    store_u16, store_u32, store_u64, write_array_count, write_i8, write_raw, write_uvarint, writer_free, writer_init,
    writer_reserve, writer_t,
)
from kbroker._core.wire.error_codes cimport UNSUPPORTED_VERSION
from kbroker._core.wire.message_plan cimport (
    BYTES, FIXED_SIZE, FLOAT64, INT16, INT32, INT64, STRING, STRUCT, UINT16, UINT32, UUID, field_t, layout_of, layout_t,
    op_t, plan_for, plan_t,
)

from kbroker.errors import AnswerTooLarge, ErrorCode, ProtocolError

cdef int64_t *LOWEST = [0, -128, -32768, 0, INT32_MIN, 0, INT64_MIN]
cdef int64_t *HIGHEST = [1, 127, 32767, 65535, INT32_MAX, UINT32_MAX, INT64_MAX]

cdef PyTypeObject *lazy_array = <PyTypeObject *>LazyArray

# A buffer that is kept from one message for the next, guarded by the GIL. A running encoding has taken it out.
cdef writer_t scratch
writer_init(&scratch)

cdef enum:
    SCRATCH_KEPT = 1 << 20       # bytes of `scratch` that are kept between messages at most


cdef bytes encode_message(object message, int version):
    global scratch
    cdef PyObject *borrowed = <PyObject *>message
    cdef plan_t *plan = plan_for(layout_of(<PyObject *>Py_TYPE(borrowed)), version)
    cdef writer_t writer = scratch
    cdef bytes body
    cdef char *data
    writer_init(&scratch)
    writer.size = 0
    writer.failed = False
    try:
        encode_struct(plan, borrowed, &writer, <size_t>-1)
        if writer.failed:
            raise MemoryError
        if writer.size <= SCRATCH_KEPT:
            return PyBytes_FromStringAndSize(<char *>writer.data, writer.size)
        body = PyBytes_FromStringAndSize(NULL, writer.size)
        data = <char *>PyBytes_AS_STRING(<PyObject *>body)
        with nogil:
            memcpy(data, writer.data, writer.size)
        return body
    finally:
        if scratch.data == NULL and writer.capacity <= SCRATCH_KEPT:
            scratch = writer
        else:
            writer_free(&writer)


cdef int encode_into(writer_t *w, object message, int version, size_t limit) except -1:
    cdef PyObject *borrowed = <PyObject *>message
    cdef size_t start = w.size
    encode_struct(plan_for(layout_of(<PyObject *>Py_TYPE(borrowed)), version), borrowed, w, start + limit)
    if w.failed:
        raise MemoryError
    if w.size > start + limit:
        too_long()
    return 0


cdef int too_long() except -1:
    raise AnswerTooLarge(ErrorCode.INVALID_REQUEST, "The answer would be larger than kbroker.response.max.bytes.")


@cython.final
cdef class LazyArray:
    """Stands for a list in a message that is encoded once: `count` elements, each made just before it is encoded."""

    def __init__(self, Py_ssize_t count, items not None):
        self.count = count
        self.items = iter(items)


cdef int wrong(plan_t *plan, field_t *field, PyObject *value) except -1:
    """Raise the exception for a value that cannot be encoded: our own mistake, not the peer's."""
    where = f"{<str>plan.layout.name}.{<str>field.name}"
    if value == NULL:
        raise TypeError(f"{where} is not set")
    if value == Py_None and field.nullable.high >= 0:
        raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"{where} cannot be null in version {plan.version}")
    shown = repr(<object>value)
    raise TypeError(f"{where} cannot be {shown if len(shown) < 100 else shown[:97] + '...'}")


cdef int encode_struct(plan_t *plan, PyObject *message, writer_t *w, size_t end) except -1:
    cdef PyObject *value
    cdef op_t *op
    cdef int i
    for i in range(plan.op_count):
        op = &plan.ops[i]
        value = slot_at(message, op.offset)[0]
        if op.is_array:
            encode_array(plan, op, value, w, end)
        elif op.kind < FLOAT64:
            encode_integer(plan, op, value, w)
        else:
            encode_value(plan, op, value, w, end)
    if plan.flexible:
        if plan.tagged_count == 0:
            write_i8(w, 0)
        else:
            encode_tagged(plan, message, w, end)
    for i in range(plan.absent_count):
        if not plan.absent[i].droppable:
            value = slot_at(message, plan.absent[i].offset)[0]
            if not is_default(plan.absent[i], value):
                raise ProtocolError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"{<str>plan.layout.name}.{<str>plan.absent[i].name} does not exist in version {plan.version}",
                )
    return 0


cdef int encode_tagged(plan_t *plan, PyObject *message, writer_t *w, size_t end) except -1:
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
            encode_array(plan, op, value, w, end)
        else:
            encode_value(plan, op, value, w, end)
        if w.failed:
            return 0
        size = w.size - start
        write_uvarint(w, <uint32_t>size)          # written behind the value at first, as its width depends on the size
        if not w.failed:
            rotate_behind(w.data + start, size, w.size - start - size)
    return 0


cdef void rotate_behind(uint8_t *data, size_t size, size_t tail) noexcept nogil:
    """Swap the first `size` bytes with the `tail` bytes behind them; `tail` is 5 at most."""
    cdef uint8_t[8] kept
    memcpy(kept, data + size, tail)
    memmove(data + tail, data, size)
    memcpy(data, kept, tail)


cdef int encode_array(plan_t *plan, op_t *op, PyObject *value, writer_t *w, size_t end) except -1:
    cdef PyObject **items
    cdef Py_ssize_t count
    cdef Py_ssize_t i
    cdef uint8_t *p
    cdef int64_t number = 0
    if value == NULL or not (PyList_Check(value) or PyTuple_Check(value)):
        if value != NULL and Py_TYPE(value) == lazy_array:
            return encode_lazy(plan, op, <LazyArray>value, w, end)
        if value != Py_None or not op.nullable:
            wrong(plan, op.field, value)
        write_array_count(w, -1, op.compact)
        return 0
    count = PySequence_Fast_GET_SIZE(value)
    items = PySequence_Fast_ITEMS(value)
    if count > 0x7fffffff:
        raise ValueError(f"{<str>plan.layout.name}.{<str>op.field.name} has too many elements")
    write_array_count(w, <int32_t>count, op.compact)
    if w.size + <size_t>count > end:          # each element takes at least one byte
        too_long()
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
            encode_struct(op.child, items[i], w, end)
            if w.size > end:
                too_long()
            let_others_run()
    else:
        for i in range(count):
            if items[i] == Py_None:
                wrong(plan, op.field, items[i])
            encode_value(plan, op, items[i], w, end)
            if w.size > end:
                too_long()
            let_others_run()
    return 0


cdef int encode_lazy(plan_t *plan, op_t *op, LazyArray array, writer_t *w, size_t end) except -1:
    """Encode a lazy array: each element is made, encoded and freed before the next one is made."""
    cdef Py_ssize_t left = array.count
    write_array_count(w, <int32_t>left, op.compact)
    for item in array.items:
        left -= 1
        if left < 0 or op.kind != STRUCT or Py_TYPE(<PyObject *>item) != op.child.layout.cls:
            wrong(plan, op.field, <PyObject *>item)
        encode_struct(op.child, <PyObject *>item, w, end)
        if w.size > end:
            too_long()
        let_others_run()
    if left != 0:
        raise ValueError(f"{<str>plan.layout.name}.{<str>op.field.name}: {left} elements are missing")
    return 0


cdef inline int encode_integer(plan_t *plan, op_t *op, PyObject *value, writer_t *w) except -1:
    cdef int64_t number = 0
    cdef uint8_t *p
    if value == NULL or int_value(value, &number) != 0 or number < LOWEST[op.kind] or number > HIGHEST[op.kind]:
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
    return 0


cdef int encode_value(plan_t *plan, op_t *op, PyObject *value, writer_t *w, size_t end) except -1:
    """Encode one value, or one element of an array (which is never null)."""
    cdef uint64_t bits = 0
    cdef double real
    cdef const char *data
    cdef Py_ssize_t size = 0
    cdef uint8_t *p
    if value == NULL:
        wrong(plan, op.field, value)
    if op.kind < FLOAT64:
        encode_integer(plan, op, value, w)
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
        encode_struct(op.child, value, w, end)
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
    """Encode the bytes of a memoryview or bytearray. Other buffer exporters are refused: they could run Python code."""
    cdef Py_buffer view
    if not (PyMemoryView_Check(value) or PyByteArray_Check(value)):
        wrong(plan, op.field, value)
    PyObject_GetBuffer(<object>value, &view, PyBUF_SIMPLE)
    write_length(w, view.len, op.compact, 4)
    write_raw(w, view.buf, view.len)
    PyBuffer_Release(&view)
    return 0


cdef inline void write_length(writer_t *w, Py_ssize_t size, bint compact, int width) noexcept nogil:
    """Write the length in front of a string (width 2) or bytes (width 4); -1 is null."""
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
    """Whether a value is its field's default: a tagged field is then left out, others can be dropped without loss."""
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
