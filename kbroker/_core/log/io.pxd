"""The log's file calls: the system's when `file_system` is NULL, else those of an injected FileSystem, under the GIL.

All return -errno on failure. The caller keeps `file_system` alive.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

# Write all of `data`; short writes are continued. Returns 0 or -errno; on failure any part may have been written.
cdef int io_write(void *file_system, int32_t fd, const uint8_t *data, int64_t size, int64_t position) noexcept nogil
cdef int io_sync(void *file_system, int32_t fd) noexcept nogil
cdef int io_truncate(void *file_system, int32_t fd, int64_t size) noexcept nogil
cdef void io_close(void *file_system, int32_t fd) noexcept nogil
# Read `size` bytes. Returns the bytes read, fewer at the end of the file. Without `may_block` it reads only what is in
# memory, which may be fewer bytes as well; -EAGAIN when none of them is.
cdef int64_t io_read(int32_t fd, uint8_t *data, int64_t size, int64_t position, bint may_block) noexcept nogil
