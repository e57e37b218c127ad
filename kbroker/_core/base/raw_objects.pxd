"""Python objects as the message codec handles them: borrowed pointers, slots addressed by their offset in an instance.

Every function here needs the GIL. One that makes an object returns NULL with an exception set when it fails. `noexcept`
means that Cython does not check for it: the caller does.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

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

    /* Messages are trees: the cycle collector need not walk a million parts again and again to learn that. */
    static inline PyObject *untracked(PyObject *made) {
        if (made != NULL) PyObject_GC_UnTrack(made);
        return made;
    }
    static inline PyObject *allocate(PyTypeObject *cls) { return untracked(cls->tp_alloc(cls, 0)); }
    static inline PyObject *new_list(Py_ssize_t size) { return untracked(PyList_New(size)); }
    /* Called for each piece of a long work that holds the GIL: lets others have it, about every millisecond. */
    enum { PIECES_AT_ONCE = 4096 };
    static inline void let_others_run(void) {
        static int pieces = 0;
        if (++pieces < PIECES_AT_ONCE) return;
        pieces = 0;
        Py_BEGIN_ALLOW_THREADS
        Py_END_ALLOW_THREADS
    }
    static inline PyObject **slot_at(PyObject *object, Py_ssize_t offset) {
        return (PyObject **)((char *)object + offset);
    }
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
    PyObject *new_list(Py_ssize_t size) noexcept
    void let_others_run() noexcept
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
