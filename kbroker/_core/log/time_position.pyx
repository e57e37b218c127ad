"""Lookup by time; see time_position.pxd. Only the segment that may have the record is opened."""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc

from kbroker._core.base.sync cimport *
from kbroker._core.log.io cimport io_read
from kbroker._core.log.offset_index cimport time_index_find, time_index_relative_offset, time_index_timestamp
from kbroker._core.log.partition cimport *
from kbroker._core.log.position cimport endless, found_t, let_go, locate, patience_t, scan
from kbroker._core.wire.cursor cimport load_u64
from kbroker._core.wire.error_codes cimport UNKNOWN_SERVER_ERROR, CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.record cimport record_t, take_deltas
from kbroker._core.wire.record_batch cimport BATCH_OK, BATCH_OLD_MAGIC, batch_header, batch_info_t


cdef int partition_find_time(partition_t *p, int64_t timestamp, time_result_t *result) noexcept nogil:
    cdef need_t need
    cdef int code
    while True:
        need.kind = NEED_NOTHING
        need.base_offset = -1
        code = find_once(p, timestamp, result, &need)
        if code != NEEDS_HANDLER:
            return code
        code = meet_need(p, &need)
        if code != 0:
            return code


cdef int find_once(partition_t *p, int64_t timestamp, time_result_t *result, need_t *need) noexcept nogil:
    cdef segment_t *s
    cdef int64_t after = -1
    cdef int code = refusal(p)
    result.offset = -1
    result.size = 0
    result.batch = NULL
    if code == NEEDS_HANDLER:
        need.kind = NEED_OPEN
    while code == 0:
        s = segment_with(p, timestamp, after, result)
        if s == NULL:
            return let_go(p) if p.segment_count == 0 else 0
        code = find_in(p, s, timestamp, result, need)
        after = s.base_offset
        segment_unref(s)
        if code or result.offset >= 0 or result.size:
            return code
        result.base_offset = -1
    return code


cdef segment_t *segment_with(partition_t *p, int64_t timestamp, int64_t after, time_result_t *result) noexcept nogil:
    """Return a reference of the first segment behind `after` that may have the record.

    `result` is set to where the search in it begins.
    """
    cdef int64_t log_start_offset = atomic_load_i64(&p.log_start_offset)
    cdef int64_t least = after if after > result.base_offset else result.base_offset
    cdef int32_t low = 0
    cdef int32_t high
    cdef int32_t middle
    cdef segment_t *s = NULL
    mutex_lock(&p.lock)
    if after < result.base_offset:
        s = find_segment(p, result.base_offset)
    if s == NULL:
        # The largest timestamp so far does not fall along the list, nor do base offsets.
        high = p.segment_count
        while low < high:
            middle = (low + high) >> 1
            if newest_up_to(p.segments[middle]) >= timestamp and p.segments[middle].base_offset > least:
                high = middle
            else:
                low = middle + 1
        while low < p.segment_count and (
            p.segments[low].max_timestamp < timestamp or p.segments[low].size == 0
            or (low + 1 < p.segment_count and p.segments[low + 1].base_offset <= log_start_offset)
        ):
            low += 1
        if low < p.segment_count:
            s = p.segments[low]
            result.base_offset = s.base_offset
            result.position = -1
    if s != NULL:
        segment_ref(s)
    mutex_unlock(&p.lock)
    return s


cdef int find_in(partition_t *p, segment_t *s, int64_t timestamp, time_result_t *result, need_t *need) noexcept nogil:
    """Look for the record in this segment: `result` gets it, a compressed batch, or nothing (size 0)."""
    cdef int64_t log_start_offset = atomic_load_i64(&p.log_start_offset)
    cdef int64_t size = atomic_load_i64(&s.size)
    cdef int64_t position = result.position
    cdef int64_t relative = -1
    cdef int64_t newest = INT64_MAX
    cdef patience_t patience = endless()
    cdef found_t found
    cdef int code
    if s.fd < 0:
        need.kind = NEED_SEGMENT
        need.base_offset = s.base_offset
        return NEEDS_HANDLER
    atomic_store_i32(&s.touched, 1)
    if position < 0:
        position = 0
        code = time_floor(p, s, timestamp, &relative, &newest, need)
        if code:
            return code
        if relative >= 0:
            # All records up to that offset are older.
            code = locate(p, s, s.base_offset + relative, &patience, &found, need)
            if code:
                return code
            # Written entries are not checked after a clean stop: one that its batch contradicts is passed over.
            if found.size and (newest == INT64_MAX or newest_at(s.fd, found.position) == newest):
                position = found.position
    while True:
        code = scan(p, s.fd, position, size, log_start_offset, timestamp, INT64_MAX, &patience, &found)
        if code or found.size == 0:
            return code
        result.position = found.position
        result.size = found.size
        code = look_into(p, s, timestamp, log_start_offset, result)
        if code or result.offset >= 0 or result.size:
            return code
        position = found.position + found.size


cdef int64_t newest_at(int32_t fd, int64_t position) noexcept nogil:
    """Return the largest timestamp of the batch at a position, by its header; -1 when it has none or cannot be read."""
    cdef uint8_t[BATCH_HEADER_SIZE] header
    cdef int64_t there = io_read(fd, header, BATCH_HEADER_SIZE, position, True)
    if there > BATCH_MAGIC and header[BATCH_MAGIC] >= 2:
        return <int64_t>load_u64(header + BATCH_MAX_TIMESTAMP) if there == BATCH_HEADER_SIZE else -1
    return <int64_t>load_u64(header + MESSAGE_TIMESTAMP) if there >= MESSAGE_TIMESTAMP + 8 \
        and header[MESSAGE_MAGIC] == 1 else -1


cdef int time_floor(partition_t *p, segment_t *s, int64_t timestamp, int64_t *relative, int64_t *newest,
                    need_t *need) noexcept nogil:
    """Set `relative` to the relative offset up to which all records are older than `timestamp`, by the time index.

    `relative` is not changed when the index has no such entry. `newest` becomes the largest timestamp up to that offset
    when the entry was read from the file. Returns 0, KAFKA_STORAGE_ERROR, or NEEDS_HANDLER with `need`.
    """
    cdef int64_t count = 0
    cdef int64_t slot
    mutex_lock(&p.lock)
    if s.pending != NULL and s.pending.time_count and time_index_timestamp(s.pending.time_index, 0) < timestamp:
        slot = time_index_find(s.pending.time_index, s.pending.time_count, timestamp - 1)
        relative[0] = time_index_relative_offset(s.pending.time_index, slot)
    elif s.time_index_entries:
        if s.time_index == NULL and s.time_index_fd >= 0 and not map_time_index(p, s):
            mutex_unlock(&p.lock)
            return KAFKA_STORAGE_ERROR
        if s.time_index == NULL:
            mutex_unlock(&p.lock)
            need.kind = NEED_INDEX if s.pending != NULL else NEED_TIME_INDEX
            need.base_offset = s.base_offset
            return NEEDS_HANDLER
        # The map is valid as long as the segment is referenced; written entries never change.
        count = min(<int64_t>s.time_index_entries, s.time_index_capacity // TIME_INDEX_ENTRY_SIZE)
    mutex_unlock(&p.lock)
    if count and timestamp > INT64_MIN:
        slot = time_index_find(s.time_index, count, timestamp - 1)
        if slot >= 0:
            relative[0] = time_index_relative_offset(s.time_index, slot)
            newest[0] = time_index_timestamp(s.time_index, slot)
    return 0


cdef bint map_time_index(partition_t *p, segment_t *s) noexcept nogil:
    """Map the .timeindex (`lock` held), that of the active segment as large as it may become."""
    cdef int64_t capacity = <int64_t>s.time_index_entries * TIME_INDEX_ENTRY_SIZE
    if s.pending != NULL and capacity < p.options.index_max_bytes:
        capacity = p.options.index_max_bytes
    s.time_index = map_index_file(s.time_index_fd, capacity, False)
    s.time_index_capacity = capacity
    return s.time_index != NULL


cdef int look_into(partition_t *p, segment_t *s, int64_t timestamp, int64_t log_start_offset,
                   time_result_t *result) noexcept nogil:
    """Look for the record in the batch at result.position; result.size becomes 0 when no record of it matches."""
    cdef uint8_t *data = <uint8_t *>malloc(<size_t>result.size)
    cdef int64_t got
    cdef int code
    if data == NULL:
        return UNKNOWN_SERVER_ERROR
    got = io_read(s.fd, data, result.size, result.position, True)
    if got == result.size:
        code = look(data, timestamp, log_start_offset, result)
    else:
        if got < 0:
            directory_failed(p, <int>got)
        code = KAFKA_STORAGE_ERROR
    if code == 0 and result.offset < 0 and result.size:
        result.batch = data
    else:
        free(data)
    return code


cdef int look(const uint8_t *data, int64_t timestamp, int64_t log_start_offset, time_result_t *result) noexcept nogil:
    cdef batch_info_t info
    cdef const uint8_t *p = data + BATCH_HEADER_SIZE
    cdef const uint8_t *end = data + result.size
    cdef record_t record
    cdef int64_t offset, of_record
    cdef int32_t left
    cdef int finding = batch_header(data, result.size, &info)
    if finding == BATCH_OLD_MAGIC:
        # The header of a compressed set tells only the offset of its last record.
        result.timestamp = <int64_t>load_u64(data + MESSAGE_TIMESTAMP) if data[MESSAGE_MAGIC] else -1
        result.offset = max(<int64_t>load_u64(data), log_start_offset)
        result.leader_epoch = -1
        return 0
    if finding != BATCH_OK:
        return CORRUPT_MESSAGE
    result.leader_epoch = info.leader_epoch
    if info.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        result.timestamp = info.max_timestamp
        result.offset = max(info.base_offset, log_start_offset)
        return 0
    if info.attributes & ATTRIBUTE_CODEC_MASK:
        return 0
    left = info.record_count
    while left > 0:
        p = take_deltas(p, end, &record)
        if p == NULL:
            return CORRUPT_MESSAGE
        of_record = <int64_t>(<uint64_t>info.base_timestamp + <uint64_t>record.timestamp_delta)
        offset = info.base_offset + record.offset_delta
        if of_record >= timestamp and offset >= log_start_offset:
            result.timestamp = of_record
            result.offset = offset
            return 0
        left -= 1
    result.size = 0
    return 0
