"""Arrays in C structs that grow."""

from libc.stdint cimport int32_t
from libc.stdlib cimport realloc


cdef inline void *with_room(void *items, int32_t count, int32_t *capacity, size_t item_size) noexcept nogil:
    """`items`, or where they are now, with room for one more; NULL when memory is out: then they are where they were."""
    cdef int32_t wanted
    if count < capacity[0]:
        return items
    wanted = capacity[0] * 2 if capacity[0] else 4
    items = realloc(items, <size_t>wanted * item_size)
    if items != NULL:
        capacity[0] = wanted
    return items
