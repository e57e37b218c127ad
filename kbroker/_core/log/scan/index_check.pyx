"""A segment's .index and .timeindex against its batches; see index_check.pxd."""

from libc.stdint cimport int64_t

from kbroker._core.log.offset_index cimport (
    index_position, index_relative_offset, time_index_relative_offset, time_index_timestamp,
)
from kbroker._core.log.scan.segment_check cimport *
from kbroker._core.wire.layout cimport INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE


cdef inline int64_t entry_position(const check_t *check, int64_t entry) noexcept nogil:
    return index_position(check.index, entry)


cdef inline int64_t entry_offset(const check_t *check, int64_t entry) noexcept nogil:
    return check.base_offset + index_relative_offset(check.index, entry)


cdef inline int64_t time_entry_timestamp(const check_t *check, int64_t entry) noexcept nogil:
    return time_index_timestamp(check.time_index, entry)


cdef inline int64_t time_entry_offset(const check_t *check, int64_t entry) noexcept nogil:
    return check.base_offset + time_index_relative_offset(check.time_index, entry)


cdef void give_up_awaited(check_t *check) noexcept nogil:
    if check.awaited >= 0:
        found(check, IN_INDEX, CHECK_NOT_LAST, check.awaited_entry * INDEX_ENTRY_SIZE, check.awaited,
              check.awaited_last)
        check.awaited = -1


cdef inline bint ends_at(const check_t *check, const seen_t *seen, int64_t offset) noexcept nogil:
    """Return whether an index entry of the batch may have this offset.

    That is the batch's last offset or its last record's; for messages of magic 0 and 1, any offset of the set.
    """
    if seen.old:
        return check.previous_last < offset <= seen.last_offset
    return offset == seen.last_offset or offset == seen.last_record_offset


cdef void hold_index(check_t *check, const seen_t *seen) noexcept nogil:
    """Compare the next .index entry with the batch at hand, and report entries that lie before it and fit no batch.

    One append may write several batches and one entry for them, with the position of the first batch and the last
    offset of the last one. Such an entry is kept (`awaited`) until a later batch has this offset.
    """
    cdef int64_t offset
    while check.index_at < check.index_count and entry_position(check, check.index_at) < check.position:
        give_up_awaited(check)
        found(check, IN_INDEX, CHECK_NOT_BATCH, check.index_at * INDEX_ENTRY_SIZE,
              entry_position(check, check.index_at), 0)
        check.index_at += 1
    if check.index_at < check.index_count and entry_position(check, check.index_at) == check.position:
        give_up_awaited(check)
        offset = entry_offset(check, check.index_at)
        if not ends_at(check, seen, offset):
            check.awaited = offset
            check.awaited_entry = check.index_at
            check.awaited_last = seen.last_offset
            if offset < seen.last_offset or offset < 0:
                check.awaited = max(offset, <int64_t>0)
                give_up_awaited(check)
        check.index_at += 1
    elif check.awaited >= 0 and ends_at(check, seen, check.awaited):
        check.awaited = -1


cdef void hold_time_index(check_t *check, const seen_t *seen) noexcept nogil:
    cdef int64_t offset
    cdef int64_t timestamp
    while check.time_at < check.time_count:
        offset = time_entry_offset(check, check.time_at)
        if offset > seen.last_offset:
            return
        timestamp = time_entry_timestamp(check, check.time_at)
        if check.unsure and check.previous_last < offset < seen.first_offset:
            pass    # the entry belongs to a batch that was passed over
        elif offset <= check.previous_last or seen.max_timestamp != timestamp:
            found(check, IN_TIME_INDEX, CHECK_NO_TIME, check.time_at * TIME_INDEX_ENTRY_SIZE, offset, timestamp)
        elif check.max_timestamp > timestamp:
            found(check, IN_TIME_INDEX, CHECK_LATE_TIME, check.time_at * TIME_INDEX_ENTRY_SIZE, check.max_timestamp,
                  timestamp)
        check.time_at += 1


cdef void check_entry_order(check_t *check) noexcept nogil:
    cdef int64_t i
    for i in range(check.index_count):
        if entry_offset(check, i) < check.base_offset or entry_position(check, i) < 0 or i and (
            entry_offset(check, i) <= entry_offset(check, i - 1)
            or entry_position(check, i) <= entry_position(check, i - 1)
        ):
            found(check, IN_INDEX, CHECK_ENTRY_ORDER, i * INDEX_ENTRY_SIZE, i, 0)
    for i in range(check.time_count):
        if time_entry_offset(check, i) < check.base_offset or i and (
            time_entry_offset(check, i) < time_entry_offset(check, i - 1)
            or time_entry_timestamp(check, i) <= time_entry_timestamp(check, i - 1)
        ):
            found(check, IN_TIME_INDEX, CHECK_ENTRY_ORDER, i * TIME_INDEX_ENTRY_SIZE, i, 0)


cdef void end_indexes(check_t *check) noexcept nogil:
    cdef int64_t entry
    if check.position == check.window.end:
        give_up_awaited(check)
        for entry in range(check.index_at, check.index_count):
            if entry_position(check, entry) < check.window.end:
                found(check, IN_INDEX, CHECK_NOT_BATCH, entry * INDEX_ENTRY_SIZE, entry_position(check, entry), 0)
    for entry in range(check.index_at, check.index_count):
        if entry_position(check, entry) >= check.window.end:
            found(check, IN_INDEX, CHECK_BEYOND, entry * INDEX_ENTRY_SIZE, entry_position(check, entry),
                  check.window.end)
    if check.position == check.window.end and not check.unsure:
        for entry in range(check.time_at, check.time_count):
            found(check, IN_TIME_INDEX, CHECK_TIME_BEYOND, entry * TIME_INDEX_ENTRY_SIZE,
                  time_entry_offset(check, entry), check.next_offset)


cdef void skip_index(check_t *check) noexcept nogil:
    check.awaited = -1
    while check.index_at < check.index_count and entry_position(check, check.index_at) <= check.position:
        check.index_at += 1
