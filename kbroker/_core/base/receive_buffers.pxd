"""Memory for frames whose bytes have not all arrived.

A buffer is known by its address and capacity. With a capacity below LARGE_BUFFER it comes from malloc. Any other buffer
is a mapping of its own: the system gives it memory only where bytes have arrived, and it grows without being copied.

Touching fresh pages costs more than receiving into them, so the process keeps freed mappings for the next frame: a few
of exactly LARGE_BUFFER bytes, and larger ones of as many bytes as `buffers_keep` allows. A consumer raises that limit
while it is open.
"""

from libc.stdint cimport int64_t, uint8_t

cdef enum:
    LARGE_BUFFER = (1 << 20) + (64 << 10)
    SMALL_BUFFERS_END = 64 << 10   # bytes; a frame of this size or more gets a large buffer
    KEPT_BUFFERS = 16              # a consumer with 8 MiB of answers waiting has eight more under way or in use
    KEPT_LARGER = 16               # larger buffers
    CAPACITY_STEP = 256 << 10      # larger capacities are rounded up to it: a kept buffer fits a frame of similar size

# All functions: any thread.
# A buffer of at least `size` bytes, its capacity in `capacity`. NULL when memory is out.
cdef uint8_t *buffer_take(int64_t size, int64_t *capacity) noexcept nogil
# Grow to at least `wanted` bytes as realloc does: the first `used` bytes are kept, the address may change. NULL when
# memory is out: `buffer` stays valid.
cdef uint8_t *buffer_grow(uint8_t *buffer, int64_t used, int64_t wanted, int64_t *capacity) noexcept nogil
cdef void buffer_free(uint8_t *buffer, int64_t capacity) noexcept nogil
# Raise the limit of bytes in larger buffers that the process keeps by `bytes`; a negative number lowers it.
cdef void buffers_keep(int64_t bytes) noexcept nogil
