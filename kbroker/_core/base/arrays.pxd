"""C arrays that grow on the heap."""

from libc.stdint cimport int32_t
from libc.stdlib cimport realloc


cdef inline void *with_room(void *items, int32_t count, int32_t *capacity, size_t item_size) noexcept nogil:
    """Return the array with room for one more item: `items` itself, or the address that it was moved to.

    `count` items are in use, `capacity` items fit. NULL when memory is out: `items` stays valid.
    """
    cdef int32_t wanted
    if count < capacity[0]:
        return items
    wanted = capacity[0] * 2 if capacity[0] else 4
    items = realloc(items, <size_t>wanted * item_size)
    if items != NULL:
        capacity[0] = wanted
    return items
