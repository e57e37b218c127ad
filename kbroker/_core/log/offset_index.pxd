"""The sparse indexes of a segment as they are on disk, searched by pointer and entry count. Format in wire/layout.pxd.

Both are sorted, so a search is binary. It tries the newest entries first, as Kafka does: most reads are near the end,
and a search over the whole file would touch pages that are not in memory. Mapped pages may still be cold: search
without the GIL.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.wire.cursor cimport load_u32, load_u64
from kbroker._core.wire.layout cimport INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE

cdef enum:
    WARM_ENTRIES = 1024          # the newest entries that a search tries first: about two pages

cdef inline int32_t index_relative_offset(const uint8_t *index, int64_t slot) noexcept nogil:
    return <int32_t>load_u32(index + slot * INDEX_ENTRY_SIZE)

cdef inline int32_t index_position(const uint8_t *index, int64_t slot) noexcept nogil:
    return <int32_t>load_u32(index + slot * INDEX_ENTRY_SIZE + 4)

cdef inline int64_t time_index_timestamp(const uint8_t *index, int64_t slot) noexcept nogil:
    return <int64_t>load_u64(index + slot * TIME_INDEX_ENTRY_SIZE)

cdef inline int32_t time_index_relative_offset(const uint8_t *index, int64_t slot) noexcept nogil:
    return <int32_t>load_u32(index + slot * TIME_INDEX_ENTRY_SIZE + 8)

cdef inline int64_t index_find(const uint8_t *index, int64_t entries, int64_t relative_offset) noexcept nogil:
    """Return the slot of the last entry whose relative offset is at most `relative_offset`; -1 without one."""
    cdef int64_t low = 0, high = entries, middle
    if entries > WARM_ENTRIES and index_relative_offset(index, entries - WARM_ENTRIES) <= relative_offset:
        low = entries - WARM_ENTRIES
    while low < high:
        middle = (low + high) >> 1
        if index_relative_offset(index, middle) <= relative_offset:
            low = middle + 1
        else:
            high = middle
    return low - 1

cdef inline int64_t time_index_find(const uint8_t *index, int64_t entries, int64_t timestamp) noexcept nogil:
    """Return the slot of the last entry whose timestamp is at most `timestamp`; -1 without one."""
    cdef int64_t low = 0, high = entries, middle
    if entries > WARM_ENTRIES and time_index_timestamp(index, entries - WARM_ENTRIES) <= timestamp:
        low = entries - WARM_ENTRIES
    while low < high:
        middle = (low + high) >> 1
        if time_index_timestamp(index, middle) <= timestamp:
            low = middle + 1
        else:
            high = middle
    return low - 1
