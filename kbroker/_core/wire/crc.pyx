"""CRC-32C and CRC-32 by the CPU's own instructions, where it has them; crc.h has the implementations."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport uint8_t, uint32_t

cdef extern from "crc.h" nogil:
    ctypedef uint32_t (*crc_function_t)(uint32_t raw, const uint8_t *data, size_t size) noexcept nogil
    crc_function_t *crc32c_functions
    crc_function_t *crc32_functions
    crc_function_t crc32c_chosen
    crc_function_t crc32_chosen
    int crc32c_choose(int implementation)
    int crc32_choose(int implementation)
    void crc_start()

crc_start()

IMPLEMENTATIONS = ("portable", "hardware", "pclmul", "vpclmul")


cdef uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil:
    return ~crc32c_chosen(~crc, data, size)


cdef uint32_t crc32(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil:
    return ~crc32_chosen(~crc, data, size)


cdef object checksum_of(uint32_t (*checksum)(uint32_t, const uint8_t *, size_t) noexcept nogil, object data,
                        uint32_t crc):
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len < RELEASE_FROM:
            crc = checksum(crc, <const uint8_t *>view.buf, <size_t>view.len)
        else:
            with nogil:
                crc = checksum(crc, <const uint8_t *>view.buf, <size_t>view.len)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c_of(data, uint32_t crc=0):
    """Return the CRC-32C of a contiguous buffer; `crc` is the checksum of the bytes before it."""
    return checksum_of(crc32c, data, crc)


def crc32_of(data, uint32_t crc=0):
    """Return the CRC-32 (zlib's) of a contiguous buffer; `crc` is the checksum of the bytes before it."""
    return checksum_of(crc32, data, crc)


def crc32_of_rows(dict rows):
    """Return the XOR of one CRC-32 for each row: of its name in UTF-8, followed by its bytes. 0 for no rows."""
    cdef uint32_t total = 0
    cdef uint32_t crc
    cdef Py_ssize_t size = 0
    cdef const char *name
    cdef str key
    cdef bytes value
    for key, value in rows.items():
        name = PyUnicode_AsUTF8AndSize(key, &size)
        crc = crc32(0, <const uint8_t *>name, <size_t>size)
        total ^= crc32(crc, <const uint8_t *>PyBytes_AS_STRING(value), <size_t>PyBytes_GET_SIZE(value))
    return total


def implementations():
    """Return the implementations that this machine can run: (names for CRC-32C, names for CRC-32), fastest first.

    The first of each is used unless `choose` has set another one.
    """
    castagnoli = [name for i, name in enumerate(IMPLEMENTATIONS) if crc32c_functions[<int>i] != NULL]
    zlib = [name for i, name in enumerate(IMPLEMENTATIONS) if crc32_functions[<int>i] != NULL]
    return tuple(reversed(castagnoli)), tuple(reversed(zlib))


def choose(crc32c_name=None, crc32_name=None):
    """Use an implementation by name, or the fastest one for None. Raises ValueError if this machine cannot run it.

    For tests and benches: no other thread may compute a checksum meanwhile.
    """
    castagnoli, zlib = implementations()
    if crc32c_choose(IMPLEMENTATIONS.index(crc32c_name or castagnoli[0])) < 0:
        raise ValueError(f"this machine has no {crc32c_name} CRC-32C, only {', '.join(castagnoli)}")
    if crc32_choose(IMPLEMENTATIONS.index(crc32_name or zlib[0])) < 0:
        raise ValueError(f"this machine has no {crc32_name} CRC-32, only {', '.join(zlib)}")
