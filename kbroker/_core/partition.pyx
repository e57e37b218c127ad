"""Hot state of a partition's log; the contracts are in partition.pxd.

In order: files of a segment, indexes, appending, reading, waiting, flushing.
"""

from cpython.ref cimport Py_XDECREF, PyObject
from libc.errno cimport EAGAIN, EDQUOT, EFBIG, ENOSPC
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport strerror
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from kbroker._core.cursor cimport load_u32, load_u64, store_u32, store_u64
from kbroker._core.layout cimport *
from kbroker._core.log_io cimport io_close, io_read, io_sync, io_truncate, io_write, monotonic_ns
from kbroker._core.mailbox cimport post
from kbroker._core.offset_index cimport index_find, index_position, index_relative_offset
from kbroker._core.producers cimport producers_check, producers_free, producers_remember, remembered_batch_t
from kbroker._core.record_batch cimport (
    BATCH_OK, batch_check_timestamps, batch_error_code, batch_info_t, batch_stamp, batch_stamp_timestamp,
)
from kbroker._core.sync cimport *

import logging

from kbroker.errors import KbrokerError

logger = logging.getLogger("kbroker.storage")

cdef extern from "<pthread.h>" nogil:
    int mutex_trylock "pthread_mutex_trylock"(mutex_t *mutex)
    int mutex_timedlock "pthread_mutex_timedlock"(mutex_t *mutex, const timespec *until)

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t size, int protection, int flags, int fd, int64_t offset)
    int munmap(void *address, size_t size)
    int PROT_READ
    int MAP_SHARED
    int MAP_POPULATE

cdef enum:
    # The protocol's error codes that come from here (errors.ErrorCode).
    UNKNOWN_SERVER_ERROR = -1
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    MESSAGE_TOO_LARGE = 10
    RECORD_LIST_TOO_LARGE = 18
    INVALID_TXN_STATE = 48
    KAFKA_STORAGE_ERROR = 56

    SCAN_SIZE = 4096             # bytes of one pread while looking for a batch's header
    STALL_NS = 100000000         # a write that takes longer ...
    STALLED_FOR_NS = 1000000000  # ... keeps appends of its directory off the processors for so long
    LOCK_WAIT_NS = 2000000       # a processor waits so long for another one's append, then hands over
    FLUSH_IDLE = 0
    FLUSH_QUEUED = 1
    FLUSH_RUNNING = 2
    FLUSH_RUNNING_AGAIN = 3
    FLUSH_DUE = -102             # besides NEEDS_HANDLER

ctypedef struct need_t:
    int kind                     # PREPARE_*
    int64_t base_offset

ctypedef struct unflushed_t:
    # The oldest segment that is not on the device.
    segment_t *segment
    int64_t end                  # of what its fdatasync covers
    int64_t appended_ms
    uint32_t truncations
    bint is_last
    need_t need

# --- references -------------------------------------------------------------------------------------

cdef void partition_ref(partition_t *p) noexcept nogil:
    atomic_add_i32(&p.refs, 1)


cdef void partition_unref(partition_t *p) noexcept nogil:
    if atomic_add_i32(&p.refs, -1) == 0:
        partition_free(p)


cdef void partition_free(partition_t *p) noexcept nogil:
    cdef int32_t i
    for i in range(p.segment_count):
        segment_unref(p.segments[i])
    free(p.segments)
    producers_free(p.producers)
    mutex_destroy(&p.flush_lock)
    mutex_destroy(&p.append_lock)
    mutex_destroy(&p.lock)
    free(p.topic)
    with gil:
        Py_XDECREF(<PyObject *>p.directory)
        Py_XDECREF(<PyObject *>p.file_system)
        Py_XDECREF(<PyObject *>p.log)
    free(p)


cdef void segment_ref(segment_t *s) noexcept nogil:
    atomic_add_i32(&s.refs, 1)


cdef void segment_unref(segment_t *s) noexcept nogil:
    if atomic_add_i32(&s.refs, -1) != 0:
        return
    segment_close_files(s)
    if s.file_system != NULL:
        with gil:
            Py_XDECREF(<PyObject *>s.file_system)
    free(s.pending)
    free(s)


cdef void segment_close_files(segment_t *s) noexcept nogil:
    if s.index != NULL:
        munmap(s.index, <size_t>s.index_capacity)
        s.index = NULL
    io_close(s.file_system, s.fd)
    io_close(s.file_system, s.index_fd)
    io_close(s.file_system, s.time_index_fd)
    s.fd = -1
    s.index_fd = -1
    s.time_index_fd = -1

cdef segment_t *find_segment(partition_t *p, int64_t base_offset) noexcept nogil:
    """`lock` held."""
    cdef int32_t low = 0
    cdef int32_t high = p.segment_count
    cdef int32_t middle
    while low < high:
        middle = (low + high) >> 1
        if p.segments[middle].base_offset < base_offset:
            low = middle + 1
        else:
            high = middle
    return p.segments[low] if low < p.segment_count and p.segments[low].base_offset == base_offset else NULL

# --- indexes of the active segment ------------------------------------------------------------------

cdef int32_t index_count(segment_t *s) noexcept nogil:
    return s.index_entries + (s.pending.count if s.pending != NULL else 0)


cdef int32_t time_index_count(segment_t *s) noexcept nogil:
    return s.time_index_entries + (s.pending.time_count if s.pending != NULL else 0)


cdef int spill_indexes(partition_t *p, segment_t *s) noexcept nogil:
    """Write the pending entries to the index files (append_lock held, descriptors open). 0 or -errno."""
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


cdef void add_time_entry(segment_t *s) noexcept nogil:
    """The largest timestamp so far and its offset, unless the index has it already (both locks held)."""
    cdef uint8_t *entry
    if s.max_timestamp <= s.last_time_entry or s.pending.time_count == INDEX_PENDING:
        return
    entry = s.pending.time_index + s.pending.time_count * TIME_INDEX_ENTRY_SIZE
    store_u64(entry, <uint64_t>s.max_timestamp)
    store_u32(entry + 8, <uint32_t>(s.max_timestamp_offset - s.base_offset))
    s.pending.time_count += 1
    s.last_time_entry = s.max_timestamp


cdef void add_index_entry(segment_t *s, int64_t last_offset, int64_t position) noexcept nogil:
    """Both locks held; there is room, because a full `pending` is spilled before the append."""
    cdef uint8_t *entry = s.pending.index + s.pending.count * INDEX_ENTRY_SIZE
    store_u32(entry, <uint32_t>(last_offset - s.base_offset))
    store_u32(entry + 4, <uint32_t>position)
    s.pending.count += 1


cdef inline int64_t floor_position(const uint8_t *entries, int32_t count, int64_t relative_offset) noexcept nogil:
    """Position of the last entry whose offset is not above; 0 when there is none: the segment's start."""
    cdef int64_t slot = index_find(entries, count, relative_offset)
    return index_position(entries, slot) if slot >= 0 else 0

# --- appending --------------------------------------------------------------------------------------

cdef int partition_append(partition_t *p, uint8_t *batch, batch_info_t *info, int64_t now_ms, bint may_block,
                          append_result_t *result) noexcept nogil:
    cdef need_t need
    cdef int code = NEEDS_HANDLER
    while True:
        need.kind = PREPARE_NOTHING
        need.base_offset = -1
        result.must_wait = False
        code = take_append_lock(p, may_block)
        if code == 0:
            code = append_locked(p, batch, info, now_ms, may_block, result, &need)
            mutex_unlock(&p.append_lock)
        if code != NEEDS_HANDLER or not may_block:
            break
        code = prepare(p, need.kind, need.base_offset)
        if code != 0:
            break
    if code == 0 and result.must_wait:
        request_flush(p)
    return code


cdef int take_append_lock(partition_t *p, bint may_block) noexcept nogil:
    cdef timespec until
    if may_block:
        mutex_lock(&p.append_lock)
        return 0
    if mutex_trylock(&p.append_lock) == 0:
        return 0
    clock_gettime(CLOCK_REALTIME, &until)
    until.tv_nsec += LOCK_WAIT_NS
    if until.tv_nsec >= 1000000000:
        until.tv_nsec -= 1000000000
        until.tv_sec += 1
    return 0 if mutex_timedlock(&p.append_lock, &until) == 0 else NEEDS_HANDLER


cdef int refusal(partition_t *p) noexcept nogil:
    """Why the partition serves nothing, 0 if it does, NEEDS_HANDLER if it is closed."""
    cdef int32_t state = atomic_load_i32(&p.state)
    if state == PARTITION_DELETED:
        return UNKNOWN_TOPIC_OR_PARTITION
    if state == PARTITION_OFFLINE or atomic_load_i32(&p.dir.offline):
        return KAFKA_STORAGE_ERROR
    return 0 if state == PARTITION_OPEN else NEEDS_HANDLER


cdef inline bint roll_due(partition_t *p, segment_t *s, int64_t size, int64_t last_offset, int64_t max_timestamp,
                          int64_t now_ms) noexcept nogil:
    """Kafka's conditions: size, age by the records' own time, a full index, offsets beyond 31 bits."""
    cdef int64_t waited
    cdef int32_t index_max = p.options.index_max_bytes
    if last_offset - s.base_offset > INT32_MAX:
        return True
    if s.size == 0:
        return False
    if s.size + size > p.options.segment_bytes:
        return True
    if index_count(s) >= index_max // INDEX_ENTRY_SIZE or time_index_count(s) >= index_max // TIME_INDEX_ENTRY_SIZE - 1:
        return True
    waited = max_timestamp - s.first_timestamp if s.first_timestamp >= 0 else now_ms - s.created_ms
    return waited > p.options.segment_ms - s.roll_jitter_ms


cdef int append_locked(partition_t *p, uint8_t *batch, batch_info_t *info, int64_t now_ms, bint may_block,
                       append_result_t *result, need_t *need) noexcept nogil:
    cdef segment_t *s
    cdef remembered_batch_t duplicate
    cdef int64_t base_offset
    cdef int64_t last_offset
    cdef int64_t max_timestamp
    cdef int64_t position
    cdef int64_t started_ns
    cdef int64_t unflushed_from
    cdef bint log_append_time = p.options.log_append_time
    cdef int code = refusal(p)
    if code == NEEDS_HANDLER:
        need.kind = PREPARE_OPEN
    if code:
        return code
    s = p.segments[p.segment_count - 1]
    if p.rolling:
        need.kind = PREPARE_ROLL
        need.base_offset = s.base_offset
        return NEEDS_HANDLER
    if not may_block and atomic_load_i64(&p.dir.stalled_until_ns) and monotonic_ns() < p.dir.stalled_until_ns:
        return NEEDS_HANDLER
    if info.size > p.options.max_message_bytes:
        return MESSAGE_TOO_LARGE
    if info.size > p.options.segment_bytes:
        return RECORD_LIST_TOO_LARGE
    if info.attributes & ATTRIBUTE_TRANSACTIONAL:
        # Nothing here coordinates transactions yet: as Kafka answers a batch of a transaction that it cannot verify.
        return INVALID_TXN_STATE
    code = batch_check_timestamps(info, log_append_time, now_ms, p.options.timestamp_before_max_ms,
                                  p.options.timestamp_after_max_ms)
    if code != BATCH_OK:
        return batch_error_code(code)
    max_timestamp = now_ms if log_append_time else info.walked_max_timestamp

    result.log_start_offset = p.log_start_offset
    code = producers_check(p.producers, info, &duplicate)
    if code == 1:
        result.base_offset = duplicate.last_offset - duplicate.offset_delta
        result.last_offset = duplicate.last_offset
        result.log_append_time = duplicate.timestamp         # whatever the topic's type, as Kafka
        result.must_wait = p.options.flush_messages == 1 and atomic_load_i64(&p.flushed_offset) <= duplicate.last_offset
        return 0
    if code:
        return code

    base_offset = p.log_end_offset
    last_offset = base_offset + info.last_offset_delta
    if roll_due(p, s, info.size, last_offset, max_timestamp, now_ms):
        need.kind = PREPARE_ROLL
        need.base_offset = s.base_offset
        return NEEDS_HANDLER
    if s.pending.count == INDEX_PENDING or s.pending.time_count == INDEX_PENDING:
        if s.index_fd < 0 or s.time_index_fd < 0:
            need.kind = PREPARE_INDEX
            need.base_offset = s.base_offset
            return NEEDS_HANDLER
        code = spill_indexes(p, s)
        if code:
            return write_failed(p, s, code)

    batch_stamp(batch, base_offset, p.leader_epoch)
    batch_stamp_timestamp(batch, info.size, log_append_time, max_timestamp)
    position = s.size
    started_ns = monotonic_ns()
    code = io_write(s.file_system, s.fd, batch, info.size, position)
    if code:
        return write_failed(p, s, code)
    note_write_time(p, started_ns)
    # producers_check has made room: this cannot fail.
    producers_remember(p.producers, info, base_offset, max_timestamp)

    mutex_lock(&p.lock)
    p.tail[p.tail_count & (TAIL_RING - 1)].base_offset = base_offset
    p.tail[p.tail_count & (TAIL_RING - 1)].position = position
    p.tail_count += 1
    if position == 0:
        s.first_timestamp = max_timestamp
    if max_timestamp > s.max_timestamp:
        s.max_timestamp = max_timestamp
        s.max_timestamp_offset = base_offset + (0 if log_append_time else info.walked_max_timestamp_delta)
    if s.bytes_since_index > p.options.index_interval_bytes:
        add_index_entry(s, last_offset, position)
        add_time_entry(s)
        s.bytes_since_index = 0
    s.bytes_since_index += info.size
    atomic_store_i64(&s.size, position + info.size)
    unflushed_from = p.flushed_offset
    if p.unflushed_since_ms < 0:
        atomic_store_i64(&p.unflushed_since_ms, now_ms)
    p.last_append_ms = now_ms
    atomic_store_i64(&p.log_end_offset, last_offset + 1)
    atomic_store_i64(&p.high_watermark, last_offset + 1)
    atomic_store_i64(&p.last_stable_offset, last_offset + 1)
    if not p.options.flushed_visibility:
        wake_fetches(p, info.size)
    mutex_unlock(&p.lock)

    atomic_add_i64(&p.messages_in, info.record_count)
    atomic_add_i64(&p.bytes_in, info.size)
    result.base_offset = base_offset
    result.last_offset = last_offset
    result.log_append_time = now_ms if log_append_time else -1
    result.must_wait = last_offset + 1 - unflushed_from >= p.options.flush_messages
    return 0


cdef inline void note_write_time(partition_t *p, int64_t started_ns) noexcept nogil:
    cdef int64_t now_ns = monotonic_ns()
    if now_ns - started_ns > STALL_NS:
        atomic_store_i64(&p.dir.stalled_until_ns, now_ns + STALLED_FOR_NS)


cdef int write_failed(partition_t *p, segment_t *s, int failed) noexcept nogil:
    """A full disk or quota: take back what was half written and go on refusing until there is space. Anything else: offline."""
    if failed == -ENOSPC or failed == -EDQUOT or failed == -EFBIG:
        failed = io_truncate(s.file_system, s.fd, s.size)
        if failed == 0:
            return KAFKA_STORAGE_ERROR
    directory_failed(p, failed)
    return KAFKA_STORAGE_ERROR


cdef void directory_failed(partition_t *p, int failed) noexcept nogil:
    if not atomic_claim_i32(&p.dir.offline, 0, 1):
        return
    with gil:
        try:
            reason = f"{p.topic[:p.topic_size].decode('utf-8', 'replace')}-{p.partition_id}: {strerror(-failed).decode()}"
            (<object>p.directory).tell_offline(reason)
        except BaseException:
            logger.exception("telling that a log directory is offline")


cdef int prepare(partition_t *p, int kind, int64_t base_offset) noexcept with gil:
    """Let storage.Log open, roll or what else is due. 0: try again; else the error code to answer."""
    if kind == PREPARE_NOTHING:
        return 0
    log = (<object>p.log)() if p.log != NULL else None
    if log is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    try:
        log.prepare(kind, base_offset)
        return 0
    except KbrokerError as error:
        return error.code
    except OSError:
        logger.exception("%s: cannot go on", log)
        return KAFKA_STORAGE_ERROR
    except BaseException:
        logger.exception("%s: cannot go on", log)
        return UNKNOWN_SERVER_ERROR

# --- reading ----------------------------------------------------------------------------------------

ctypedef struct found_t:
    int64_t position             # of the first batch whose last offset is not below the one looked for
    int64_t size                 # of that batch


cdef int64_t partition_visible_end(partition_t *p, bint committed) noexcept nogil:
    cdef int64_t end = atomic_load_i64(&p.last_stable_offset) if committed else atomic_load_i64(&p.high_watermark)
    cdef int64_t flushed
    if p.options.flushed_visibility:
        flushed = atomic_load_i64(&p.flushed_offset)
        return flushed if flushed < end else end
    return end


cdef int partition_read(partition_t *p, int64_t offset, int64_t max_bytes, bint at_least_one, bint committed,
                        bint may_block, read_result_t *result) noexcept nogil:
    cdef need_t need
    cdef int code
    while True:
        need.kind = PREPARE_NOTHING
        need.base_offset = -1
        result.segment = NULL
        result.position = 0
        result.size = 0
        code = read_once(p, offset, max_bytes, at_least_one, committed, may_block, result, &need)
        if code != NEEDS_HANDLER or not may_block:
            return code
        code = prepare(p, need.kind, need.base_offset)
        if code != 0:
            return code


cdef int read_once(partition_t *p, int64_t offset, int64_t max_bytes, bint at_least_one, bint committed, bint may_block,
                   read_result_t *result, need_t *need) noexcept nogil:
    cdef segment_t *s
    cdef found_t start
    cdef found_t limit
    cdef int64_t end
    cdef int64_t log_end
    cdef int64_t end_position = 0
    cdef int64_t next_base = -1
    cdef int64_t after = -1
    cdef int code = refusal(p)
    result.high_watermark = -1
    result.last_stable_offset = -1
    result.log_start_offset = -1
    if code == NEEDS_HANDLER:
        need.kind = PREPARE_OPEN
    if code and code != KAFKA_STORAGE_ERROR:
        return code
    end = partition_visible_end(p, committed)
    result.high_watermark = end if not committed else partition_visible_end(p, False)
    result.last_stable_offset = end if committed else partition_visible_end(p, True)
    result.log_start_offset = atomic_load_i64(&p.log_start_offset)
    log_end = atomic_load_i64(&p.log_end_offset)
    if code:
        return code
    if offset < result.log_start_offset or offset > log_end:
        return OFFSET_OUT_OF_RANGE
    while offset < end:
        s = segment_at(p, offset, after, &next_base, &log_end)
        if s == NULL:
            return 0
        if s.fd < 0:
            need.kind = PREPARE_SEGMENT
            need.base_offset = s.base_offset
            segment_unref(s)
            return NEEDS_HANDLER
        atomic_store_i32(&s.touched, 1)
        code = locate(p, s, offset, may_block, &start, need)
        if code == 0 and start.size:
            # A visible end in this segment has to be found as well; usually it is the segment's own.
            if (next_base >= 0 and end >= next_base) or (next_base < 0 and end >= log_end):
                end_position = atomic_load_i64(&s.size)
            else:
                code = locate(p, s, end, may_block, &limit, need)
                end_position = limit.position
        if code:
            segment_unref(s)
            return code
        if start.size:
            break
        # Nothing at or above `offset` in this segment: a gap that compaction left.
        after = s.base_offset
        segment_unref(s)
    else:
        return 0
    if start.position >= end_position:
        segment_unref(s)
        return 0
    if end_position - start.position <= max_bytes:
        result.size = end_position - start.position
    elif start.size <= max_bytes:
        result.size = max_bytes
    elif at_least_one:
        result.size = start.size
    else:
        segment_unref(s)
        return 0
    result.position = start.position
    result.segment = s
    return 0


cdef segment_t *segment_at(partition_t *p, int64_t offset, int64_t after, int64_t *next_base, int64_t *log_end) noexcept nogil:
    """A reference of the last segment whose base offset is not above `offset`, but behind the one at `after`. NULL: none.

    `next_base` is the following segment's base offset, -1 for the active one; `log_end` the log's end at that moment.
    """
    cdef int32_t low
    cdef int32_t high
    cdef int32_t middle
    cdef segment_t *s = NULL
    mutex_lock(&p.lock)
    low = 0
    high = p.segment_count
    while low < high:
        middle = (low + high) >> 1
        if p.segments[middle].base_offset <= (offset if offset > after else after):
            low = middle + 1
        else:
            high = middle
    low -= 1
    if low >= 0 and p.segments[low].base_offset <= after:
        low += 1
    elif low < 0 and p.segment_count:
        low = 0      # `offset` stands before the first segment that is left
    if 0 <= low < p.segment_count:
        s = p.segments[low]
        segment_ref(s)
        next_base[0] = p.segments[low + 1].base_offset if low + 1 < p.segment_count else -1
    log_end[0] = p.log_end_offset
    mutex_unlock(&p.lock)
    return s


cdef int locate(partition_t *p, segment_t *s, int64_t offset, bint may_block, found_t *found, need_t *need) noexcept nogil:
    """The first batch of the segment with records at or above `offset`: tail ring, else index and headers.

    0 with found.size 0 and the segment's end as position: there is none. NEEDS_HANDLER: not in memory, or see `need`.
    """
    cdef int64_t position = 0
    cdef int64_t size
    cdef int64_t relative = offset - s.base_offset
    mutex_lock(&p.lock)
    size = s.size
    if p.segments[p.segment_count - 1] == s:
        if offset >= p.log_end_offset:
            mutex_unlock(&p.lock)
            found.position = size
            found.size = 0
            return 0
        if locate_in_tail(p, s, offset, found):
            mutex_unlock(&p.lock)
            return 0
    if offset > s.base_offset:
        if s.pending != NULL and s.pending.count and index_relative_offset(s.pending.index, 0) <= relative:
            position = floor_position(s.pending.index, s.pending.count, relative)
        elif s.index_entries:
            if s.index == NULL and s.index_fd < 0:
                mutex_unlock(&p.lock)
                need.kind = PREPARE_INDEX
                need.base_offset = s.base_offset
                return NEEDS_HANDLER
            if s.index == NULL and not map_index(p, s):
                mutex_unlock(&p.lock)
                return KAFKA_STORAGE_ERROR
            # The map holds as long as the segment is referenced; written entries never change.
            position = -1
    mutex_unlock(&p.lock)
    if position < 0:
        position = floor_position(s.index, s.index_entries, relative)
    return scan(s.fd, position, size, offset, may_block, found)


cdef inline bint locate_in_tail(partition_t *p, segment_t *s, int64_t offset, found_t *found) noexcept nogil:
    """Binary search in the ring over the newest batches (`lock` held)."""
    cdef uint32_t newest = p.tail_count
    cdef uint32_t low = newest - TAIL_RING if newest > TAIL_RING else 0
    cdef uint32_t high = newest
    cdef uint32_t middle
    if low == high or offset < p.tail[low & (TAIL_RING - 1)].base_offset:
        return False
    while high - low > 1:
        middle = low + ((high - low) >> 1)
        if p.tail[middle & (TAIL_RING - 1)].base_offset <= offset:
            low = middle
        else:
            high = middle
    found.position = p.tail[low & (TAIL_RING - 1)].position
    found.size = (p.tail[(low + 1) & (TAIL_RING - 1)].position if low + 1 < newest else s.size) - found.position
    return True


cdef bint map_index(partition_t *p, segment_t *s) noexcept nogil:
    """Map the .index for lookups (`lock` held; mmap touches no disk). The active one grows: room for all it may become."""
    cdef int64_t capacity = p.options.index_max_bytes
    cdef void *address
    if capacity < <int64_t>s.index_entries * INDEX_ENTRY_SIZE:
        capacity = <int64_t>s.index_entries * INDEX_ENTRY_SIZE
    address = mmap(NULL, <size_t>capacity, PROT_READ, MAP_SHARED, s.index_fd, 0)
    if address == <void *>-1:
        return False
    s.index = <uint8_t *>address
    s.index_capacity = capacity
    return True


cdef int scan(int32_t fd, int64_t position, int64_t end, int64_t offset, bint may_block, found_t *found) noexcept nogil:
    """Walk headers from `position` to the first batch or message (any magic) whose last offset is not below `offset`."""
    cdef uint8_t[SCAN_SIZE] buffer
    cdef int64_t start = position      # of what is in `buffer`
    cdef int64_t there = 0
    cdef int64_t wanted
    cdef int64_t last_offset
    cdef int64_t length
    cdef const uint8_t *header
    while position < end:
        wanted = end - position
        if wanted < BATCH_MAGIC + 1:
            return CORRUPT_MESSAGE
        if wanted > BATCH_HEADER_SIZE:
            wanted = BATCH_HEADER_SIZE
        if position + wanted > start + there:
            start = position
            there = io_read(fd, buffer, SCAN_SIZE if end - start > SCAN_SIZE else end - start, start, may_block)
            if there < wanted:
                # Fewer bytes than the segment has: only a part of them is in memory, or the file was cut from outside.
                return NEEDS_HANDLER if not may_block and (there >= 0 or there == -EAGAIN) else KAFKA_STORAGE_ERROR
        header = buffer + (position - start)
        length = <int32_t>load_u32(header + BATCH_LENGTH)
        if length < 14 or LOG_OVERHEAD + length > end - position:
            return CORRUPT_MESSAGE
        last_offset = <int64_t>load_u64(header)
        if header[BATCH_MAGIC] >= 2:
            if wanted < BATCH_HEADER_SIZE:
                return CORRUPT_MESSAGE
            last_offset += <int32_t>load_u32(header + BATCH_LAST_OFFSET_DELTA)
        if last_offset >= offset:
            found.position = position
            found.size = LOG_OVERHEAD + length
            return 0
        position += LOG_OVERHEAD + length
    found.position = end
    found.size = 0
    return 0

# --- waiting ----------------------------------------------------------------------------------------

cdef void wake_fetches(partition_t *p, int64_t size) noexcept nogil:
    """`size` more bytes may be read (`lock` held)."""
    cdef fetch_waiter_t *waiter = p.fetch_waiters
    while waiter != NULL:
        if atomic_add_i64(waiter.bytes_missing, -size) <= 0:
            post(waiter.mail)
        waiter = waiter.next


cdef bint partition_await_bytes(partition_t *p, fetch_waiter_t *waiter, int64_t from_offset, bint committed) noexcept nogil:
    mutex_lock(&p.lock)
    if refusal(p) or partition_visible_end(p, committed) > from_offset:
        mutex_unlock(&p.lock)
        waiter.partition = NULL
        return False
    partition_ref(p)
    waiter.partition = p
    waiter.previous = NULL
    waiter.next = p.fetch_waiters
    if waiter.next != NULL:
        waiter.next.previous = waiter
    p.fetch_waiters = waiter
    mutex_unlock(&p.lock)
    return True


cdef void partition_forget_bytes(fetch_waiter_t *waiter) noexcept nogil:
    cdef partition_t *p = waiter.partition
    if p == NULL:
        return
    mutex_lock(&p.lock)
    if waiter.previous != NULL:
        waiter.previous.next = waiter.next
    else:
        p.fetch_waiters = waiter.next
    if waiter.next != NULL:
        waiter.next.previous = waiter.previous
    waiter.partition = NULL
    mutex_unlock(&p.lock)
    partition_unref(p)


cdef bint partition_await_flush(partition_t *p, ack_waiter_t *waiter) noexcept nogil:
    cdef int code
    mutex_lock(&p.lock)
    if p.flushed_offset > waiter.offset:
        mutex_unlock(&p.lock)
        return False
    code = refusal(p)
    if code == KAFKA_STORAGE_ERROR or code == UNKNOWN_TOPIC_OR_PARTITION:
        mutex_unlock(&p.lock)
        waiter.error[0] = code
        return False
    partition_ref(p)
    waiter.partition = p
    waiter.next = p.ack_waiters
    p.ack_waiters = waiter
    mutex_unlock(&p.lock)
    request_flush(p)
    return True


cdef int32_t complete_acks(partition_t *p, int code) noexcept nogil:
    """Release waiters up to flushed_offset, or all of them with an error code (`lock` held). How many references to drop."""
    cdef ack_waiter_t **link = &p.ack_waiters
    cdef ack_waiter_t *waiter
    cdef int32_t completed = 0
    while link[0] != NULL:
        waiter = link[0]
        if code == 0 and waiter.offset >= p.flushed_offset:
            link = &waiter.next
            continue
        link[0] = waiter.next
        completed += 1
        if code:
            waiter.error[0] = code
        # The waiter may be gone as soon as the last of its slot's waiters has posted.
        release_ack(waiter)
    return completed


cdef inline void release_ack(ack_waiter_t *waiter) noexcept nogil:
    if atomic_add_i32(waiter.pending, -1) == 0:
        post(waiter.mail)


cdef void drop_refs(partition_t *p, int32_t count) noexcept nogil:
    while count > 0:
        partition_unref(p)
        count -= 1

# --- flushing ---------------------------------------------------------------------------------------

cdef void request_flush(partition_t *p) noexcept nogil:
    cdef log_dir_t *d = p.dir
    mutex_lock(&d.lock)
    if p.flush_state == FLUSH_IDLE:
        enqueue_flush(d, p)
        partition_ref(p)
    elif p.flush_state == FLUSH_RUNNING:
        p.flush_state = FLUSH_RUNNING_AGAIN
    mutex_unlock(&d.lock)


cdef void enqueue_flush(log_dir_t *d, partition_t *p) noexcept nogil:
    p.flush_state = FLUSH_QUEUED
    p.flush_next = NULL
    if d.flush_tail != NULL:
        d.flush_tail.flush_next = p
    else:
        d.flush_head = p
    d.flush_tail = p
    condition_signal(&d.wanted)


cdef void flusher_loop(log_dir_t *d) noexcept nogil:
    cdef partition_t *p
    cdef bint again
    mutex_lock(&d.lock)
    while True:
        while d.flush_head == NULL and not d.stopping:
            condition_wait(&d.wanted, &d.lock)
        p = d.flush_head
        if p == NULL:
            break
        d.flush_head = p.flush_next
        if d.flush_head == NULL:
            d.flush_tail = NULL
        p.flush_state = FLUSH_RUNNING
        mutex_unlock(&d.lock)
        partition_flush(p, -1)
        mutex_lock(&d.lock)
        again = p.flush_state == FLUSH_RUNNING_AGAIN
        if again:
            enqueue_flush(d, p)
        else:
            p.flush_state = FLUSH_IDLE
            mutex_unlock(&d.lock)
            partition_unref(p)
            mutex_lock(&d.lock)
    mutex_unlock(&d.lock)


cdef int32_t first_unflushed(partition_t *p) noexcept nogil:
    """The oldest segment whose records or indexes may not be on the device, -1 without segments (`lock` held)."""
    cdef int32_t i = p.segment_count - 1
    while i > 0 and (p.segments[i].base_offset > p.flushed_offset or p.segments[i - 1].indexes_dirty):
        i -= 1
    return i


cdef int64_t recovery_point_locked(partition_t *p) noexcept nogil:
    """Segments that end below this need no recovery (`lock` held): records and indexes are on the device."""
    cdef int32_t i = first_unflushed(p)
    if i < 0 or i == p.segment_count - 1:
        return p.flushed_offset
    return p.segments[i].base_offset if p.segments[i].base_offset < p.flushed_offset else p.flushed_offset


cdef int partition_flush(partition_t *p, int64_t until) noexcept nogil:
    cdef unflushed_t next
    cdef int32_t completed
    cdef int failed
    cdef int code
    while True:
        mutex_lock(&p.flush_lock)
        mutex_lock(&p.lock)
        if until < 0:
            until = p.log_end_offset
        code = look_for_unflushed(p, until, &next)
        if code == FLUSH_DUE:
            mutex_unlock(&p.lock)
            failed = sync_segment(p, &next)
            mutex_unlock(&p.flush_lock)
            if failed:
                # Never tried again: the kernel may have dropped the pages that it could not write.
                directory_failed(p, failed)
            continue
        if code != NEEDS_HANDLER:
            completed = complete_acks(p, code)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.flush_lock)
            drop_refs(p, completed)
            return code
        mutex_unlock(&p.lock)
        mutex_unlock(&p.flush_lock)
        # Without the lock: storage.Log flushes too, with its own one held.
        code = prepare(p, next.need.kind, next.need.base_offset)
        if code:
            # What waits is told; the records stay and are flushed when it works again.
            mutex_lock(&p.lock)
            completed = complete_acks(p, code)
            mutex_unlock(&p.lock)
            drop_refs(p, completed)
            return code


cdef int look_for_unflushed(partition_t *p, int64_t until, unflushed_t *next) noexcept nogil:
    """FLUSH_DUE: `next` says what to sync, with a reference; NEEDS_HANDLER: what to prepare first; else the outcome (`lock` held)."""
    cdef segment_t *s
    cdef int32_t i
    cdef int code = refusal(p)
    if code:
        return 0 if code == NEEDS_HANDLER else code
    i = first_unflushed(p)
    next.is_last = i == p.segment_count - 1
    if i < 0 or (next.is_last and (p.flushed_offset >= until or p.flushed_offset >= p.log_end_offset)):
        return 0
    s = p.segments[i]
    if s.fd < 0 or not s.entry_synced:
        next.need.kind = PREPARE_SEGMENT if s.fd < 0 else PREPARE_DIRECTORY
        next.need.base_offset = s.base_offset
        return NEEDS_HANDLER
    segment_ref(s)
    next.segment = s
    next.end = p.log_end_offset if next.is_last else p.segments[i + 1].base_offset
    next.truncations = p.truncations
    next.appended_ms = p.last_append_ms
    return FLUSH_DUE


cdef int sync_segment(partition_t *p, unflushed_t *next) noexcept nogil:
    """fdatasync the segment and drop the reference (`flush_lock` held). 0, and who waited is released, or -errno."""
    cdef segment_t *s = next.segment
    cdef int64_t started_ns = monotonic_ns()
    cdef int32_t completed
    cdef int failed = io_sync(s.file_system, s.fd)
    if not next.is_last:
        # Recovery trusts the indexes of segments below the recovery point.
        if failed == 0 and s.index_fd >= 0:
            failed = io_sync(s.file_system, s.index_fd)
        if failed == 0 and s.time_index_fd >= 0:
            failed = io_sync(s.file_system, s.time_index_fd)
    atomic_add_i64(&p.dir.flush_count, 1)
    atomic_add_i64(&p.dir.flush_ns, monotonic_ns() - started_ns)
    if failed:
        segment_unref(s)
        return failed
    mutex_lock(&p.lock)
    if not next.is_last:
        s.indexes_dirty = False
    if p.truncations == next.truncations and next.end > p.flushed_offset:
        atomic_store_i64(&p.flushed_offset, next.end)
        atomic_store_i64(&p.unflushed_since_ms, -1 if next.end >= p.log_end_offset else next.appended_ms)
        if p.options.flushed_visibility:
            wake_fetches(p, INT32_MAX)
    completed = complete_acks(p, 0)
    mutex_unlock(&p.lock)
    segment_unref(s)
    atomic_add_i64(&p.dir.acks_flushed, completed)
    drop_refs(p, completed)
    return 0
