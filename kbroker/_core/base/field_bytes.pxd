"""The bytes of a key, a value or a header that Python passes in, borrowed from the Python object instead of copied."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int64_t, uint8_t

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

ctypedef struct field_t:
    const uint8_t *data
    int64_t size                 # -1: None
    bint held                    # `view` has to be released
    Py_buffer view

cdef inline int field_take(object value, field_t *field, str what) except -1:
    """Set `field` to the bytes of `value`: bytes, str (as UTF-8), bytearray, memoryview or None.

    `field.data` is valid while the caller holds `value` and until field_release. Raises TypeError, which names `what`,
    for another type.
    """
    cdef Py_ssize_t size = 0
    field.held = False
    if PyBytes_CheckExact(value):
        field.data = <const uint8_t *>PyBytes_AS_STRING(value)
        field.size = PyBytes_GET_SIZE(value)
    elif value is None:
        field.data = NULL
        field.size = -1
    elif PyUnicode_Check(value):
        field.data = <const uint8_t *>PyUnicode_AsUTF8AndSize(value, &size)
        field.size = size
    elif PyBytes_Check(value):
        field.data = <const uint8_t *>PyBytes_AS_STRING(value)
        field.size = PyBytes_GET_SIZE(value)
    elif isinstance(value, (bytearray, memoryview)):
        PyObject_GetBuffer(value, &field.view, PyBUF_SIMPLE)
        field.held = True
        field.data = <const uint8_t *>field.view.buf
        field.size = field.view.len
    else:
        raise TypeError(f"{what} must be bytes, str, bytearray, memoryview or None, not {type(value).__name__}")
    return 0

cdef inline void field_release(field_t *field) noexcept:
    if field.held:
        PyBuffer_Release(&field.view)
        field.held = False
