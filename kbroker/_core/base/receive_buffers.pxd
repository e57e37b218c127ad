"""Memory for frames that are not there yet as a whole.

A buffer is known by its address and capacity. Below LARGE_BUFFER it comes from malloc; from there on it is a mapping of
its own, which becomes memory only where bytes have arrived and grows without being copied. Touching fresh pages costs more than
receiving into them: a few mappings of just LARGE_BUFFER are kept by the process, and larger ones as far as who lives on them (a
consumer) has them kept.
"""

from libc.stdint cimport int64_t, uint8_t

cdef enum:
    LARGE_BUFFER = (1 << 20) + (64 << 10)
    SMALL_BUFFERS_END = 64 << 10   # a buffer that has to hold so much becomes a large one
    KEPT_BUFFERS = 16              # a consumer with 8 MiB of answers waiting has eight more under way or in use
    KEPT_LARGER = 16
    CAPACITY_STEP = 256 << 10      # of larger ones, so that one that was used fits another frame of about its size

# Any thread. NULL when memory is out.
cdef uint8_t *buffer_take(int64_t size, int64_t *capacity) noexcept nogil
# As realloc: the first `used` bytes are kept. NULL when memory is out; `buffer` is untouched then.
cdef uint8_t *buffer_grow(uint8_t *buffer, int64_t used, int64_t wanted, int64_t *capacity) noexcept nogil
cdef void buffer_free(uint8_t *buffer, int64_t capacity) noexcept nogil
# So many more bytes of larger buffers may be kept by the process; negative: fewer.
cdef void buffers_keep(int64_t bytes) noexcept nogil
