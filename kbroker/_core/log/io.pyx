"""The log's file calls; see io.pxd."""

from libc.errno cimport EAGAIN, EINTR, EIO, ENOSPC, errno
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.base.sockets cimport iovec

cdef extern from "<unistd.h>" nogil:
    ssize_t pwrite(int fd, const void *data, size_t size, int64_t position)
    ssize_t pread(int fd, void *data, size_t size, int64_t position)
    int fdatasync(int fd)
    int ftruncate(int fd, int64_t size)
    int close(int fd)

cdef extern from "<sys/uio.h>" nogil:
    ssize_t preadv2(int fd, const iovec *vectors, int count, int64_t position, int flags)
    int RWF_NOWAIT


cdef int64_t call(void *file_system, int32_t fd, const uint8_t *data, int64_t size, int64_t position,
                  int operation) noexcept with gil:
    """Call an injected FileSystem and return its result, or -errno.

    `operation`: 0 pwrite, 1 fdatasync, 2 ftruncate, 3 close.
    """
    file_system_object = <object>file_system
    try:
        if operation == 0:
            return file_system_object.pwrite(fd, <bytes>(<const char *>data)[:size], position)
        if operation == 1:
            file_system_object.fdatasync(fd)
        elif operation == 2:
            file_system_object.ftruncate(fd, size)
        else:
            file_system_object.close(fd)
        return 0
    except OSError as error:
        return -(error.errno or EIO)
    except BaseException:
        # An injected crash. Whatever the exception is, the call has failed; the log treats it as a broken disk.
        return -EIO


cdef int io_write(void *file_system, int32_t fd, const uint8_t *data, int64_t size, int64_t position) noexcept nogil:
    cdef int64_t written
    while size > 0:
        if file_system == NULL:
            written = pwrite(fd, data, <size_t>size, position)
            if written < 0:
                written = -errno
        else:
            written = call(file_system, fd, data, size, position, 0)
        if written < 0:
            if written == -EINTR:
                continue
            return <int>written
        if written == 0:
            return -ENOSPC
        data += written
        size -= written
        position += written
    return 0


cdef int io_sync(void *file_system, int32_t fd) noexcept nogil:
    if file_system != NULL:
        return <int>call(file_system, fd, NULL, 0, 0, 1)
    return 0 if fdatasync(fd) == 0 else -errno


cdef int io_truncate(void *file_system, int32_t fd, int64_t size) noexcept nogil:
    if file_system != NULL:
        return <int>call(file_system, fd, NULL, size, 0, 2)
    while ftruncate(fd, size) != 0:
        if errno != EINTR:
            return -errno
    return 0


cdef void io_close(void *file_system, int32_t fd) noexcept nogil:
    if fd < 0:
        return
    if file_system != NULL:
        call(file_system, fd, NULL, 0, 0, 3)
    else:
        close(fd)


cdef int64_t io_read(int32_t fd, uint8_t *data, int64_t size, int64_t position, bint may_block) noexcept nogil:
    cdef int64_t done = 0
    cdef int64_t got
    cdef iovec vector
    if not may_block:
        vector.iov_base = data
        vector.iov_len = <size_t>size
        got = preadv2(fd, &vector, 1, position, RWF_NOWAIT)
        if got >= 0:
            return got
        if errno == EAGAIN:
            return -EAGAIN
        # A file system without RWF_NOWAIT (tmpfs, overlays) is read as if all bytes were in memory.
    while done < size:
        got = pread(fd, data + done, <size_t>(size - done), position + done)
        if got < 0:
            if errno == EINTR:
                continue
            return -errno
        if got == 0:
            break
        done += got
    return done
