"""Index entries of the active segment: kept in memory, and written to its index files INDEX_PENDING at a time.

Inline, because every append looks at them.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._core.base.sync cimport mutex_lock, mutex_unlock
from kbroker._core.log.io cimport io_write
from kbroker._core.log.partition cimport INDEX_PENDING, partition_t, pending_index_t, segment_t
from kbroker._core.wire.cursor cimport store_u32, store_u64
from kbroker._core.wire.layout cimport INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE

cdef inline int32_t index_count(segment_t *s) noexcept nogil:
    """Return the entries of the .index, pending ones included."""
    return s.index_entries + (s.pending.count if s.pending != NULL else 0)


cdef inline int32_t time_index_count(segment_t *s) noexcept nogil:
    """Return the entries of the .timeindex, pending ones included."""
    return s.time_index_entries + (s.pending.time_count if s.pending != NULL else 0)


cdef inline int spill_indexes(partition_t *p, segment_t *s) noexcept nogil:
    """Write the pending entries to the index files (append_lock held, descriptors open). Return 0 or -errno."""
    cdef pending_index_t *pending = s.pending
    cdef int failed
    if pending == NULL:
        return 0
    if pending.count:
        failed = io_write(s.file_system, s.index_fd, pending.index, <int64_t>pending.count * INDEX_ENTRY_SIZE,
                          <int64_t>s.index_entries * INDEX_ENTRY_SIZE)
        if failed:
            return failed
    if pending.time_count:
        failed = io_write(s.file_system, s.time_index_fd, pending.time_index,
                          <int64_t>pending.time_count * TIME_INDEX_ENTRY_SIZE,
                          <int64_t>s.time_index_entries * TIME_INDEX_ENTRY_SIZE)
        if failed:
            return failed
    mutex_lock(&p.lock)
    s.index_entries += pending.count
    s.time_index_entries += pending.time_count
    pending.count = 0
    pending.time_count = 0
    mutex_unlock(&p.lock)
    return 0


cdef inline void add_time_entry(segment_t *s) noexcept nogil:
    """Add the segment's largest timestamp and its offset to the time index, unless it is there (both locks held)."""
    cdef uint8_t *entry
    if s.max_timestamp <= s.last_time_entry or s.pending.time_count == INDEX_PENDING:
        return
    entry = s.pending.time_index + s.pending.time_count * TIME_INDEX_ENTRY_SIZE
    store_u64(entry, <uint64_t>s.max_timestamp)
    store_u32(entry + 8, <uint32_t>(s.max_timestamp_offset - s.base_offset))
    s.pending.time_count += 1
    s.last_time_entry = s.max_timestamp


cdef inline void add_index_entry(segment_t *s, int64_t last_offset, int64_t position) noexcept nogil:
    """Add an entry to `pending` (both locks held). There is room: a full `pending` is spilled before the append."""
    cdef uint8_t *entry = s.pending.index + s.pending.count * INDEX_ENTRY_SIZE
    store_u32(entry, <uint32_t>(last_offset - s.base_offset))
    store_u32(entry + 4, <uint32_t>position)
    s.pending.count += 1


cdef inline int32_t pending_room(segment_t *s) noexcept nogil:
    """Return how many batches may surely be appended before `is_pending_full`."""
    return INDEX_PENDING - (s.pending.count if s.pending.count > s.pending.time_count else s.pending.time_count)


cdef inline bint is_pending_full(segment_t *s) noexcept nogil:
    """Return whether an append may find no room for its entries: spill_indexes has to make it before."""
    return s.pending.count == INDEX_PENDING or s.pending.time_count == INDEX_PENDING
