"""A buffer over a part of a file that is read from front to back. It moves on, and grows when more is asked for."""

from libc.errno cimport ENODATA, ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc

from kbroker._core.log.io cimport io_read

cdef enum:
    CHUNK = 1048576              # bytes that scans read at a time

ctypedef struct file_window_t:
    uint8_t *data                # owned
    int64_t capacity             # bytes that `data` has room for, and that one read asks for
    int64_t start                # position in the file of the first byte in `data`
    int64_t size                 # bytes in `data`
    int64_t end                  # position in the file: nothing is read from here on
    int32_t fd
    int failed                   # -errno of a failed read, 0: none

cdef inline bint window_open(file_window_t *window, int32_t fd, int64_t end, int64_t capacity) noexcept nogil:
    """Open a window on a file, which reads `capacity` bytes at a time. False: out of memory."""
    window.data = <uint8_t *>malloc(<size_t>capacity)
    window.capacity = capacity
    window.start = window.size = 0
    window.end = end
    window.fd = fd
    window.failed = 0
    return window.data != NULL

cdef inline void window_close(file_window_t *window) noexcept nogil:
    free(window.data)
    window.data = NULL

cdef inline const uint8_t *window_at(file_window_t *window, int64_t position, int64_t size) noexcept nogil:
    """Return `size` bytes from `position` on, valid until the next call.

    NULL when they cannot be read: `failed` is set.
    """
    cdef int64_t got
    cdef uint8_t *grown
    if window.start <= position and position + size <= window.start + window.size:
        return window.data + (position - window.start)
    if size > window.capacity:
        grown = <uint8_t *>realloc(window.data, <size_t>size)
        if grown == NULL:
            window.failed = -ENOMEM
            return NULL
        window.data = grown
        window.capacity = size
    window.start = position
    got = io_read(window.fd, window.data, min(window.capacity, window.end - position), position, True)
    window.size = max(got, 0)
    if got < size:
        # -ENODATA: the file is shorter than it was, because somebody cut it. The disk is not at fault then.
        window.failed = <int>got if got < 0 else -ENODATA
        return NULL
    return window.data
