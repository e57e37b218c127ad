"""Hot state of a partition's log; the contracts are in partition.pxd.

In order: files of a segment, appending, reading, waiting, flushing, then what Python drives.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.errno cimport EAGAIN, EDQUOT, EFBIG, EINTR, ENOSPC
from libc.stdint cimport (
    INT32_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strerror
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from kbroker._core.cursor cimport load_u32, load_u64, store_u32, store_u64
from kbroker._core.layout cimport *
from kbroker._core.log_io cimport io_close, io_read, io_sync, io_truncate, io_write, monotonic_ns
from kbroker._core.mailbox cimport post
from kbroker._core.offset_index cimport index_find, index_position, index_relative_offset
from kbroker._core.producers cimport (
    ProducerTable, producers_check, producers_copy, producers_expire, producers_free, producers_new, producers_remember,
    remembered_batch_t,
)
from kbroker._core.record_batch cimport (
    BATCH_OK, batch_check_timestamps, batch_error_code, batch_info_t, batch_stamp, batch_stamp_timestamp, batch_verify,
    batch_walk,
)
from kbroker._core.sync cimport *

import logging

from kbroker.errors import KbrokerError, StorageFailed

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
    KAFKA_STORAGE_ERROR = 56

    SCAN_SIZE = 4096             # bytes of one pread while looking for a batch's header
    STALL_NS = 100000000         # a write that takes longer ...
    STALLED_FOR_NS = 1000000000  # ... keeps appends of its directory off the processors for so long
    LOCK_WAIT_NS = 2000000       # a processor waits so long for another one's append, then hands over
    FLUSH_IDLE = 0
    FLUSH_QUEUED = 1
    FLUSH_RUNNING = 2
    FLUSH_RUNNING_AGAIN = 3

ctypedef struct need_t:
    int kind                     # PREPARE_*
    int64_t base_offset

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

# --- indexes of the active segment ------------------------------------------------------------------

cdef inline int32_t index_count(segment_t *s) noexcept nogil:
    return s.index_entries + (s.pending.count if s.pending != NULL else 0)


cdef inline int32_t time_index_count(segment_t *s) noexcept nogil:
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


cdef inline int refusal(partition_t *p) noexcept nogil:
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
        result.log_append_time = duplicate.timestamp if log_append_time else -1
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
            (<LogDirectory>p.directory).tell_offline(reason)
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
        code = locate(p, s, offset, may_block, &start)
        if code == 0 and start.size:
            # A visible end in this segment has to be found as well; usually it is the segment's own.
            if (next_base >= 0 and end >= next_base) or (next_base < 0 and end >= log_end):
                end_position = atomic_load_i64(&s.size)
            else:
                code = locate(p, s, end, may_block, &limit)
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


cdef int locate(partition_t *p, segment_t *s, int64_t offset, bint may_block, found_t *found) noexcept nogil:
    """The first batch of the segment with records at or above `offset`: tail ring, else index and headers.

    0 with found.size 0 and the segment's end as position: there is none. NEEDS_HANDLER: not in memory.
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
    if s.index_fd < 0:
        return False
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
        partition_flush(p)
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


cdef int partition_flush(partition_t *p) noexcept nogil:
    """fdatasync everything appended before the call and release the acks that waited for it. 0 or a Kafka error code."""
    cdef segment_t *s
    cdef int64_t end
    cdef int64_t started_ns
    cdef int64_t target = -1
    cdef int64_t appended_ms
    cdef int64_t base_offset
    cdef uint32_t truncations
    cdef int32_t completed
    cdef int32_t i
    cdef bint is_last
    cdef int failed
    cdef int code
    while True:
        mutex_lock(&p.lock)
        code = refusal(p)
        if code == KAFKA_STORAGE_ERROR or code == UNKNOWN_TOPIC_OR_PARTITION:
            completed = complete_acks(p, code)
            mutex_unlock(&p.lock)
            drop_refs(p, completed)
            return code
        if target < 0:
            target = p.log_end_offset
        if code or p.flushed_offset >= target or p.flushed_offset >= p.log_end_offset:
            completed = complete_acks(p, 0)
            mutex_unlock(&p.lock)
            drop_refs(p, completed)
            return 0
        i = p.segment_count - 1
        while i > 0 and p.segments[i].base_offset > p.flushed_offset:
            i -= 1
        s = p.segments[i]
        is_last = i == p.segment_count - 1
        end = p.log_end_offset if is_last else p.segments[i + 1].base_offset
        truncations = p.truncations
        appended_ms = p.last_append_ms
        segment_ref(s)
        mutex_unlock(&p.lock)
        if s.fd < 0:
            base_offset = s.base_offset
            segment_unref(s)
            code = prepare(p, PREPARE_SEGMENT, base_offset)
            if code:
                return code
            continue

        started_ns = monotonic_ns()
        failed = io_sync(s.file_system, s.fd)
        if not is_last:
            # Recovery trusts the indexes of segments below the recovery point.
            if failed == 0 and s.index_fd >= 0:
                failed = io_sync(s.file_system, s.index_fd)
            if failed == 0 and s.time_index_fd >= 0:
                failed = io_sync(s.file_system, s.time_index_fd)
        atomic_add_i64(&p.dir.flush_count, 1)
        atomic_add_i64(&p.dir.flush_ns, monotonic_ns() - started_ns)
        segment_unref(s)
        if failed:
            # Never tried again: the kernel may have dropped the pages that it could not write.
            directory_failed(p, failed)
            continue
        mutex_lock(&p.lock)
        if p.truncations == truncations and end > p.flushed_offset:
            atomic_store_i64(&p.flushed_offset, end)
            atomic_store_i64(&p.unflushed_since_ms, -1 if end >= p.log_end_offset else appended_ms)
            if p.options.flushed_visibility:
                wake_fetches(p, INT32_MAX)
        completed = complete_acks(p, 0)
        mutex_unlock(&p.lock)
        atomic_add_i64(&p.dir.acks_flushed, completed)
        drop_refs(p, completed)

# --- what Python drives -----------------------------------------------------------------------------

cdef class LogDirectory:
    """One log directory: its flush queue and whether it still works."""

    def __cinit__(self, str path):
        self.path = path
        self.on_offline = None
        mutex_init(&self.dir.lock, NULL)
        condition_init(&self.dir.wanted, NULL)

    def __dealloc__(self):
        mutex_destroy(&self.dir.lock)
        condition_destroy(&self.dir.wanted)

    def set_on_offline(self, callback):
        """`callback(reason)` is called once, on the thread that saw the directory fail."""
        self.on_offline = callback

    def run_flusher(self):
        """Body of a flusher thread: fsync partitions as they ask for it, until `stop_flushers`. Several may run."""
        cdef log_dir_t *d = &self.dir
        with nogil:
            flusher_loop(d)

    def stop_flushers(self):
        """The flushers finish what is queued and return."""
        cdef log_dir_t *d = &self.dir
        with nogil:
            mutex_lock(&d.lock)
            d.stopping = True
            condition_broadcast(&d.wanted)
            mutex_unlock(&d.lock)

    def fail(self, str reason):
        """Take the directory offline; there is no way back but a restart."""
        if atomic_claim_i32(&self.dir.offline, 0, 1):
            self.tell_offline(reason)

    def tell_offline(self, str reason):
        logger.error("log directory %s is offline: %s", self.path, reason)
        if self.on_offline is not None:
            self.on_offline(reason)

    @property
    def is_offline(self):
        return atomic_load_i32(&self.dir.offline) != 0

    @property
    def is_stalled(self):
        return atomic_load_i64(&self.dir.stalled_until_ns) > monotonic_ns()

    @property
    def flush_count(self):
        return atomic_load_i64(&self.dir.flush_count)

    @property
    def flush_ns(self):
        return atomic_load_i64(&self.dir.flush_ns)

    @property
    def acks_flushed(self):
        return atomic_load_i64(&self.dir.acks_flushed)


cdef class SegmentHandle:
    """A segment that has left its log, still open for the readers that were in it."""

    def __init__(self):
        raise TypeError("made by PartitionState")

    def __dealloc__(self):
        if self.s != NULL:
            segment_unref(self.s)

    @property
    def base_offset(self):
        return self.s.base_offset

    @property
    def size(self):
        return self.s.size

    @property
    def in_use(self):
        """Whether somebody reads it still."""
        return atomic_load_i32(&self.s.refs) > 1


cdef SegmentHandle handle_of(segment_t *s):
    """Takes the caller's reference over."""
    cdef SegmentHandle handle = SegmentHandle.__new__(SegmentHandle)
    handle.s = s
    return handle


STATES = ("closed", "open", "offline", "deleted")


cdef class PartitionState:
    """One partition's hot state. Every method may be called from any thread; none keeps the GIL while it waits.

    Who changes the list of segments (open, close, roll, remove) is serialized by storage.Log's lock.
    """

    def __cinit__(self, LogDirectory directory not None, str topic not None, int partition_id, bytes topic_id not None,
                  options, file_system=None, log=None):
        cdef bytes name = topic.encode()
        cdef partition_t *p
        if len(topic_id) != 16 or not 0 < len(name) <= 32767:
            raise ValueError(f"topic id of {len(topic_id)} bytes, name of {len(name)} bytes")
        p = <partition_t *>calloc(1, sizeof(partition_t))
        if p == NULL:
            raise MemoryError
        self.p = p
        self.directory = directory
        self.topic = topic
        self.partition_id = partition_id
        p.refs = 1
        mutex_init(&p.append_lock, NULL)
        mutex_init(&p.lock, NULL)
        p.topic = <char *>malloc(<size_t>len(name))
        p.producers = producers_new()
        p.dir = &directory.dir
        p.directory = <void *>directory
        Py_INCREF(directory)
        if p.topic == NULL or p.producers == NULL:
            raise MemoryError
        memcpy(p.topic, PyBytes_AS_STRING(name), <size_t>len(name))
        p.topic_size = <int16_t>len(name)
        p.partition_id = partition_id
        memcpy(p.topic_id, PyBytes_AS_STRING(topic_id), 16)
        p.unflushed_since_ms = -1
        if file_system is not None and not file_system.passthrough:
            p.file_system = <void *>file_system
            Py_INCREF(file_system)
        if log is not None:
            p.log = <void *>log
            Py_INCREF(log)
        self.update_options(options)

    def __dealloc__(self):
        if self.p != NULL:
            partition_unref(self.p)

    def __repr__(self):
        return f"<PartitionState {self.topic}-{self.partition_id} {self.state}, ends at {self.log_end_offset}>"

    def update_options(self, options):
        """Take over a LogOptions; in force from the next append and read on."""
        cdef log_options_t fresh
        cdef partition_t *p = self.p
        fresh.segment_bytes = options.segment_bytes
        fresh.segment_ms = options.segment_ms
        fresh.max_message_bytes = options.max_message_bytes
        fresh.index_interval_bytes = options.index_interval_bytes
        fresh.index_max_bytes = options.index_max_bytes
        fresh.flush_messages = options.flush_messages
        fresh.timestamp_before_max_ms = options.timestamp_before_max_ms
        fresh.timestamp_after_max_ms = options.timestamp_after_max_ms
        fresh.log_append_time = options.log_append_time
        fresh.compacted = options.compacted
        fresh.compression = options.compression
        fresh.flushed_visibility = options.flushed_visibility
        fresh.min_insync_replicas = options.min_insync_replicas
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            p.options = fresh
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)

    # --- what it knows

    @property
    def state(self):
        """One of "closed", "open", "offline", "deleted"."""
        cdef int32_t state = atomic_load_i32(&self.p.state)
        if state in (PARTITION_OPEN, PARTITION_CLOSED) and atomic_load_i32(&self.p.dir.offline):
            state = PARTITION_OFFLINE
        return STATES[state]

    @property
    def topic_id(self):
        return PyBytes_FromStringAndSize(<char *>self.p.topic_id, 16)

    @property
    def log_start_offset(self):
        return atomic_load_i64(&self.p.log_start_offset)

    @property
    def log_end_offset(self):
        return atomic_load_i64(&self.p.log_end_offset)

    @property
    def high_watermark(self):
        return atomic_load_i64(&self.p.high_watermark)

    @property
    def last_stable_offset(self):
        return atomic_load_i64(&self.p.last_stable_offset)

    @property
    def flushed_offset(self):
        return atomic_load_i64(&self.p.flushed_offset)

    @property
    def unflushed_since_ms(self):
        return atomic_load_i64(&self.p.unflushed_since_ms)

    @property
    def leader_epoch(self):
        return atomic_load_i32(&self.p.leader_epoch)

    @property
    def messages_in(self):
        return atomic_load_i64(&self.p.messages_in)

    @property
    def bytes_in(self):
        return atomic_load_i64(&self.p.bytes_in)

    @property
    def bytes_out(self):
        return atomic_load_i64(&self.p.bytes_out)

    @property
    def fetches(self):
        return atomic_load_i64(&self.p.fetches)

    @property
    def size(self):
        """Bytes of all segments' logs."""
        cdef partition_t *p = self.p
        cdef int64_t size = 0
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            for i in range(p.segment_count):
                size += p.segments[i].size
            mutex_unlock(&p.lock)
        return size

    def segments(self):
        """Per segment, ascending: (base_offset, size, max_timestamp, max_timestamp_offset, first_timestamp, created_ms,
        index_count, time_index_count, is_open)."""
        cdef partition_t *p = self.p
        cdef segment_t *copies = NULL
        cdef int32_t count = 0
        cdef int32_t i
        with nogil:
            mutex_lock(&p.lock)
            copies = <segment_t *>malloc(<size_t>(p.segment_count + 1) * sizeof(segment_t))
            if copies != NULL:
                count = p.segment_count
                for i in range(count):
                    copies[i] = p.segments[i][0]
                    copies[i].index_entries = index_count(p.segments[i])
                    copies[i].time_index_entries = time_index_count(p.segments[i])
            mutex_unlock(&p.lock)
        if copies == NULL:
            raise MemoryError
        try:
            return [
                (
                    copies[i].base_offset, copies[i].size, copies[i].max_timestamp, copies[i].max_timestamp_offset,
                    copies[i].first_timestamp, copies[i].created_ms, copies[i].index_entries,
                    copies[i].time_index_entries, copies[i].fd >= 0,
                )
                for i in range(count)
            ]
        finally:
            free(copies)

    # --- opening and closing

    def open(self, list segments, int64_t log_start_offset, int64_t log_end_offset, int64_t flushed_offset,
             ProducerTable producers=None):
        """Serve these segments (arguments of `add_segment`, ascending, the last one active and open)."""
        cdef partition_t *p = self.p
        cdef producers_t *fresh
        if self.state != "closed" or p.segment_count:
            raise AssertionError(f"{self!r} cannot be opened")
        for segment in segments:
            self.add_segment(*segment)
        fresh = producers_new()
        if fresh == NULL:
            raise MemoryError
        if producers is not None and producers_copy(producers.table, fresh) < 0:
            producers_free(fresh)
            raise MemoryError
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            producers_free(p.producers)
            p.producers = fresh
            p.tail_count = 0
            p.rolling = False
            atomic_store_i64(&p.log_start_offset, log_start_offset)
            atomic_store_i64(&p.log_end_offset, log_end_offset)
            atomic_store_i64(&p.high_watermark, log_end_offset)
            atomic_store_i64(&p.last_stable_offset, log_end_offset)
            atomic_store_i64(&p.flushed_offset, flushed_offset)
            atomic_store_i64(&p.unflushed_since_ms, -1 if flushed_offset >= log_end_offset else 0)
            atomic_store_i32(&p.state, PARTITION_OPEN)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)

    def set_closed_offsets(self, int64_t log_start_offset, int64_t log_end_offset):
        """What a closed log is known to hold, for those who only ask for its offsets."""
        if self.state != "closed":
            raise AssertionError(f"{self!r} is not closed")
        atomic_store_i64(&self.p.log_start_offset, log_start_offset)
        atomic_store_i64(&self.p.log_end_offset, log_end_offset)
        atomic_store_i64(&self.p.high_watermark, log_end_offset)
        atomic_store_i64(&self.p.last_stable_offset, log_end_offset)
        atomic_store_i64(&self.p.flushed_offset, log_end_offset)

    def close(self):
        """Let go of all segments: appends and reads find the log closed. Returns their handles."""
        return self.leave(PARTITION_CLOSED)

    def delete(self):
        """As close, for good: everybody who asks is told that there is no such partition; who waits is answered."""
        return self.leave(PARTITION_DELETED)

    def go_offline(self):
        """The directory has failed: everybody who waits is answered."""
        cdef partition_t *p = self.p
        cdef int32_t completed
        with nogil:
            mutex_lock(&p.lock)
            if p.state != PARTITION_DELETED:
                atomic_store_i32(&p.state, PARTITION_OFFLINE)
            wake_fetches(p, INT32_MAX)
            completed = complete_acks(p, KAFKA_STORAGE_ERROR)
            mutex_unlock(&p.lock)
            drop_refs(p, completed)

    cdef list leave(self, int32_t state):
        cdef partition_t *p = self.p
        cdef segment_t **segments
        cdef int32_t count
        cdef int32_t i
        cdef int32_t completed = 0
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            segments = p.segments
            count = p.segment_count
            p.segments = NULL
            p.segment_count = 0
            p.segment_capacity = 0
            p.tail_count = 0
            p.truncations += 1
            atomic_store_i32(&p.state, state)
            if state == PARTITION_DELETED:
                wake_fetches(p, INT32_MAX)
                completed = complete_acks(p, UNKNOWN_TOPIC_OR_PARTITION)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
            drop_refs(p, completed)
        handles = []
        for i in range(count):
            handles.append(handle_of(segments[i]))
        free(segments)
        return handles

    def add_segment(self, int64_t base_offset, int64_t size, int fd, int64_t max_timestamp, int64_t max_timestamp_offset,
                    int64_t first_timestamp, int64_t created_ms, int64_t roll_jitter_ms, int32_t index_count,
                    int32_t time_index_count, int64_t last_time_entry, bint active):
        """Append a segment to the list; takes the descriptor over (-1: closed). An active one must be open."""
        cdef partition_t *p = self.p
        cdef segment_t *s = <segment_t *>calloc(1, sizeof(segment_t))
        if s == NULL:
            raise MemoryError
        s.refs = 1
        s.fd = fd
        s.index_fd = -1
        s.time_index_fd = -1
        s.base_offset = base_offset
        s.size = size
        s.max_timestamp = max_timestamp
        s.max_timestamp_offset = max_timestamp_offset
        s.first_timestamp = first_timestamp
        s.created_ms = created_ms
        s.roll_jitter_ms = roll_jitter_ms
        s.index_entries = index_count
        s.time_index_entries = time_index_count
        s.last_time_entry = last_time_entry
        if p.file_system != NULL:
            s.file_system = p.file_system
            Py_INCREF(<object>s.file_system)
        if active:
            s.pending = <pending_index_t *>calloc(1, sizeof(pending_index_t))
            if s.pending == NULL:
                free(s)
                raise MemoryError
        with nogil:
            mutex_lock(&p.append_lock)
        grown = self.grow_segments()
        if grown:
            with nogil:
                mutex_lock(&p.lock)
                p.segments[p.segment_count] = s
                p.segment_count += 1
                mutex_unlock(&p.lock)
        mutex_unlock(&p.append_lock)
        if not grown:
            segment_unref(s)
            raise MemoryError

    cdef bint grow_segments(self) noexcept:
        """Room for one more (append_lock held)."""
        cdef partition_t *p = self.p
        cdef segment_t **segments
        cdef segment_t **old
        cdef int32_t capacity
        if p.segment_count < p.segment_capacity:
            return True
        capacity = p.segment_capacity * 2 if p.segment_capacity else 2
        segments = <segment_t **>malloc(<size_t>capacity * sizeof(segment_t *))
        if segments == NULL:
            return False
        with nogil:
            mutex_lock(&p.lock)
            old = p.segments
            if p.segment_count:
                memcpy(segments, old, <size_t>p.segment_count * sizeof(segment_t *))
            p.segments = segments
            p.segment_capacity = capacity
            mutex_unlock(&p.lock)
        free(old)
        return True

    # --- appending and reading from Python

    def append(self, batch, int64_t now_ms):
        """Append one batch that this process has made (magic 2; header, CRC and, when not compressed, records are checked).

        Returns (error code, base_offset, last_offset, log_append_time, log_start_offset, must_wait). May block; `must_wait`
        means that the batch is durable only after `flush`.
        """
        cdef partition_t *p = self.p
        cdef Py_buffer view
        cdef batch_info_t info
        cdef append_result_t result
        cdef uint8_t *copy
        cdef int code = 0
        PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
        memset(&result, 0, sizeof(result))
        with nogil:
            copy = <uint8_t *>malloc(<size_t>view.len + 1)
            if copy != NULL:
                memcpy(copy, view.buf, <size_t>view.len)
                code = check_own_batch(copy, view.len, &info, p.options.compacted)
                if code == 0:
                    code = partition_append(p, copy, &info, now_ms, True, &result)
                free(copy)
        PyBuffer_Release(&view)
        if copy == NULL:
            raise MemoryError
        if code:
            return code, -1, -1, -1, p.log_start_offset, False
        return 0, result.base_offset, result.last_offset, result.log_append_time, result.log_start_offset, result.must_wait

    def locate(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, bint committed=False, bint may_block=True):
        """Where a fetch would read: (code, base offset of the segment or -1, position, size). -101: needs a handler."""
        cdef partition_t *p = self.p
        cdef read_result_t found
        cdef int code
        with nogil:
            code = partition_read(p, offset, max_bytes, at_least_one, committed, may_block, &found)
        if code or found.segment == NULL:
            return code, -1, 0, 0
        base_offset = found.segment.base_offset
        segment_unref(found.segment)
        return 0, base_offset, found.position, found.size

    def read(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, bint committed=False):
        """(code, bytes): what a fetch from `offset` gets; the last batch may be cut. May block."""
        cdef partition_t *p = self.p
        cdef read_result_t found
        cdef int code
        cdef int64_t got = 0
        cdef bytes data
        cdef uint8_t *target
        with nogil:
            code = partition_read(p, offset, max_bytes, at_least_one, committed, True, &found)
        if code or found.segment == NULL:
            return code, b""
        try:
            data = PyBytes_FromStringAndSize(NULL, found.size)
            target = <uint8_t *>PyBytes_AS_STRING(data)
            with nogil:
                got = io_read(found.segment.fd, target, found.size, found.position, True)
        finally:
            segment_unref(found.segment)
        if got != found.size:
            return KAFKA_STORAGE_ERROR, b""
        return 0, data

    def flush(self):
        """fdatasync everything appended before the call. Raises StorageFailed."""
        cdef partition_t *p = self.p
        cdef int code
        with nogil:
            code = partition_flush(p)
        if code:
            raise StorageFailed(f"{self.topic}-{self.partition_id} cannot be flushed (error code {code})")

    def request_flush(self):
        """Let a flusher do it, soon."""
        cdef partition_t *p = self.p
        with nogil:
            request_flush(p)

    # --- rolling

    def begin_roll(self):
        """Hold appends back; returns the log's end, the base offset of the segment to make."""
        return self.set_rolling(True)

    def abort_roll(self):
        """Appends go on in the segment there is."""
        self.set_rolling(False)

    cdef int64_t set_rolling(self, bint rolling) noexcept:
        cdef partition_t *p = self.p
        cdef int64_t end
        with nogil:
            mutex_lock(&p.append_lock)
            p.rolling = rolling
            end = p.log_end_offset
            mutex_unlock(&p.append_lock)
        return end

    def set_index_files(self, int64_t base_offset, int index_fd, int time_index_fd):
        """Descriptors for writing the indexes of an unflushed segment; takes them over. False: it has some already."""
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef bint taken = False
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s != NULL and s.index_fd < 0 and s.time_index_fd < 0:
                s.index_fd = index_fd
                s.time_index_fd = time_index_fd
                taken = True
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
        return taken

    @property
    def has_index_files(self):
        """Whether the active segment's indexes have descriptors."""
        cdef partition_t *p = self.p
        cdef bint there = False
        with nogil:
            mutex_lock(&p.lock)
            if p.segment_count:
                there = p.segments[p.segment_count - 1].index_fd >= 0
            mutex_unlock(&p.lock)
        return there

    def write_indexes(self, bint final):
        """Write the active segment's pending index entries; `final`: its largest timestamp too. Raises StorageFailed."""
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef int failed = 0
        with nogil:
            mutex_lock(&p.append_lock)
            if p.segment_count:
                s = p.segments[p.segment_count - 1]
                if s.pending != NULL:
                    if s.pending.time_count == INDEX_PENDING:
                        failed = spill_indexes(p, s)
                    if failed == 0 and final and s.size:
                        mutex_lock(&p.lock)
                        add_time_entry(s)
                        mutex_unlock(&p.lock)
                    if failed == 0:
                        failed = spill_indexes(p, s)
                    if failed:
                        write_failed(p, s, failed)
            mutex_unlock(&p.append_lock)
        if failed:
            raise StorageFailed(f"{self.topic}-{self.partition_id}: writing an index: {strerror(-failed).decode()}")

    def finish_roll(self, int64_t base_offset, int fd, int64_t created_ms, int64_t roll_jitter_ms):
        """The new, empty segment takes the appends from here on; takes the descriptor over."""
        cdef partition_t *p = self.p
        cdef segment_t *old
        if base_offset != self.log_end_offset or not p.rolling:
            raise AssertionError(f"{self!r} cannot roll at {base_offset}")
        self.add_segment(base_offset, 0, fd, -1, base_offset, -1, created_ms, roll_jitter_ms, 0, 0, -1, True)
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            old = p.segments[p.segment_count - 2]
            free(old.pending)
            old.pending = NULL
            p.tail_count = 0
            p.rolling = False
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)

    # --- closed segments

    def open_segment(self, int64_t base_offset, int fd, int index_fd, int32_t index_count):
        """Descriptor and map of a segment that was closed; takes both descriptors over. False: it is open, or gone."""
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef bint taken = False
        cdef void *address = NULL
        cdef int64_t capacity = <int64_t>index_count * INDEX_ENTRY_SIZE
        with nogil:
            if index_count:
                # Populated here, where it may block: a lookup on a processor finds the pages.
                address = mmap(NULL, <size_t>capacity, PROT_READ, MAP_SHARED | MAP_POPULATE, index_fd, 0)
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s != NULL and s.fd < 0 and address != <void *>-1:
                s.index = <uint8_t *>address
                s.index_capacity = capacity
                s.index_entries = index_count
                s.fd = fd
                atomic_store_i32(&s.touched, 1)
                taken = True
            mutex_unlock(&p.lock)
            if taken:
                io_close(p.file_system, index_fd)
            elif address != NULL and address != <void *>-1:
                munmap(address, <size_t>capacity)
        return taken

    def close_segment(self, int64_t base_offset):
        """Close an inactive, flushed segment that nobody reads and nobody has used since the last call. Whether it is closed."""
        cdef partition_t *p = self.p
        cdef segment_t *s
        cdef segment_t files
        cdef bint closed = False
        files.fd = -1
        with nogil:
            mutex_lock(&p.lock)
            s = find_segment(p, base_offset)
            if s == NULL or s.fd < 0:
                closed = True
            elif s != p.segments[p.segment_count - 1] and s.refs == 1 and p.flushed_offset > s.base_offset and (
                segment_behind(p, s).base_offset <= p.flushed_offset
            ):
                if not atomic_claim_i32(&s.touched, 1, 0):
                    files = s[0]
                    s.fd = -1
                    s.index_fd = -1
                    s.time_index_fd = -1
                    s.index = NULL
                    closed = True
            mutex_unlock(&p.lock)
            if closed and files.fd >= 0:
                segment_close_files(&files)
        return closed

    def remove_segments(self, int64_t before_offset, int64_t log_start_offset):
        """Take out whole segments below `before_offset`, never the active one. Returns their handles; the log starts anew."""
        cdef partition_t *p = self.p
        cdef int32_t count = 0
        cdef int32_t i
        cdef segment_t **removed = NULL
        with nogil:
            mutex_lock(&p.append_lock)
            mutex_lock(&p.lock)
            while count + 1 < p.segment_count and p.segments[count + 1].base_offset <= before_offset:
                count += 1
            if count:
                removed = <segment_t **>malloc(<size_t>count * sizeof(segment_t *))
                if removed != NULL:
                    memcpy(removed, p.segments, <size_t>count * sizeof(segment_t *))
                    memmove(p.segments, p.segments + count, <size_t>(p.segment_count - count) * sizeof(segment_t *))
                    p.segment_count -= count
            if log_start_offset > p.log_start_offset:
                atomic_store_i64(&p.log_start_offset, log_start_offset)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.append_lock)
        if count and removed == NULL:
            raise MemoryError
        handles = []
        for i in range(count):
            handles.append(handle_of(removed[i]))
        free(removed)
        return handles

    def advance_log_start_offset(self, int64_t offset):
        """Records below are not served any more."""
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.lock)
            if offset > p.log_start_offset:
                atomic_store_i64(&p.log_start_offset, offset)
            mutex_unlock(&p.lock)

    def set_leader_epoch(self, int32_t epoch):
        """Stamped into every batch from the next append on."""
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.append_lock)
            atomic_store_i32(&p.leader_epoch, epoch)
            mutex_unlock(&p.append_lock)

    # --- producers

    def producers(self):
        """A copy of the producer table and the log end offset it belongs to."""
        cdef partition_t *p = self.p
        cdef ProducerTable table = ProducerTable()
        cdef int64_t end
        cdef int copied
        with nogil:
            mutex_lock(&p.append_lock)
            copied = producers_copy(p.producers, table.table)
            end = p.log_end_offset
            mutex_unlock(&p.append_lock)
        if copied < 0:
            raise MemoryError
        return table, end

    def expire_producers(self, int64_t oldest_timestamp):
        """Forget producers whose last batch is older."""
        cdef partition_t *p = self.p
        with nogil:
            mutex_lock(&p.append_lock)
            producers_expire(p.producers, oldest_timestamp)
            mutex_unlock(&p.append_lock)


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


cdef segment_t *segment_behind(partition_t *p, segment_t *s) noexcept nogil:
    """The one after an inactive segment (`lock` held)."""
    cdef int32_t i = p.segment_count - 1
    while p.segments[i - 1] != s:
        i -= 1
    return p.segments[i]


cdef int check_own_batch(const uint8_t *data, int64_t size, batch_info_t *info, bint key_required) noexcept nogil:
    cdef int finding = batch_verify(data, size, info)
    if finding == BATCH_OK:
        if info.attributes & ATTRIBUTE_CODEC_MASK:
            info.walked_max_timestamp = info.max_timestamp
            info.walked_min_timestamp = info.base_timestamp
            info.walked_max_timestamp_delta = info.last_offset_delta
        else:
            finding = batch_walk(data + BATCH_HEADER_SIZE, info.size - BATCH_HEADER_SIZE, info, key_required)
    return batch_error_code(finding)

# --- registry ---------------------------------------------------------------------------------------

cdef inline uint32_t hash_bytes(const uint8_t *data, int64_t size, uint32_t seed) noexcept nogil:
    """FNV-1a."""
    cdef uint32_t value = 2166136261u ^ seed
    cdef int64_t i
    for i in range(size):
        value = (value ^ data[i]) * <uint32_t>16777619
    return value ^ (value >> 15)


cdef class Registry:
    """All partitions this broker leads. Any thread."""

    def __cinit__(self):
        self.table = <registry_t *>calloc(1, sizeof(registry_t))
        if self.table == NULL:
            raise MemoryError
        mutex_init(&self.table.lock, NULL)
        if resize(self.table, 256) < 0:
            raise MemoryError

    def __dealloc__(self):
        cdef registry_t *table = self.table
        cdef partition_t *p
        cdef partition_t *next_one
        cdef topic_id_t *topic
        cdef topic_id_t *next_topic
        cdef int32_t i
        if table == NULL:
            return
        for i in range(table.bucket_count):
            p = table.by_name[i]
            while p != NULL:
                next_one = p.name_next
                partition_unref(p)
                p = next_one
            topic = table.topic_ids[i]
            while topic != NULL:
                next_topic = topic.next
                free(topic)
                topic = next_topic
        mutex_destroy(&table.lock)
        free(table.by_name)
        free(table.by_id)
        free(table.topic_ids)
        free(table)

    def __len__(self):
        return self.table.count

    def add(self, PartitionState state not None):
        """Make a partition findable. It must not be registered yet, here or elsewhere."""
        cdef registry_t *table = self.table
        cdef partition_t *p = state.p
        cdef bint added
        with nogil:
            mutex_lock(&table.lock)
            added = register_partition(table, p)
            mutex_unlock(&table.lock)
        if not added:
            raise MemoryError

    def remove(self, PartitionState state not None):
        """Nobody finds it any more; those who have it keep it. No-op when it is not registered."""
        cdef registry_t *table = self.table
        cdef partition_t *p = state.p
        cdef bint removed
        with nogil:
            mutex_lock(&table.lock)
            removed = unregister_partition(table, p)
            mutex_unlock(&table.lock)
            if removed:
                partition_unref(p)

    def contains(self, str topic not None, int partition_id):
        """Whether the partition is registered."""
        cdef bytes name = topic.encode()
        cdef partition_t *p = self.find(<const uint8_t *>PyBytes_AS_STRING(name), <int32_t>len(name), partition_id)
        if p != NULL:
            partition_unref(p)
        return p != NULL

    def contains_id(self, bytes topic_id not None, int partition_id):
        """Whether the partition is registered under that topic id."""
        cdef partition_t *p
        if len(topic_id) != 16:
            return False
        p = self.find_by_id(<const uint8_t *>PyBytes_AS_STRING(topic_id), partition_id)
        if p != NULL:
            partition_unref(p)
        return p != NULL

    def contains_topic_id(self, bytes topic_id not None):
        """Whether any partition of that topic id is registered."""
        return len(topic_id) == 16 and self.knows_topic_id(<const uint8_t *>PyBytes_AS_STRING(topic_id))

    cdef partition_t *find(self, const uint8_t *topic, int32_t topic_size, int32_t partition_id) noexcept nogil:
        cdef registry_t *table = self.table
        cdef partition_t *p
        cdef uint32_t value = hash_bytes(topic, topic_size, <uint32_t>partition_id)
        mutex_lock(&table.lock)
        p = table.by_name[value & <uint32_t>(table.bucket_count - 1)]
        while p != NULL and not (
            p.partition_id == partition_id and p.topic_size == topic_size and memcmp(p.topic, topic, <size_t>topic_size) == 0
        ):
            p = p.name_next
        if p != NULL:
            partition_ref(p)
        mutex_unlock(&table.lock)
        return p

    cdef partition_t *find_by_id(self, const uint8_t *topic_id, int32_t partition_id) noexcept nogil:
        cdef registry_t *table = self.table
        cdef partition_t *p
        cdef uint32_t value = hash_bytes(topic_id, 16, <uint32_t>partition_id)
        mutex_lock(&table.lock)
        p = table.by_id[value & <uint32_t>(table.bucket_count - 1)]
        while p != NULL and not (p.partition_id == partition_id and memcmp(p.topic_id, topic_id, 16) == 0):
            p = p.id_next
        if p != NULL:
            partition_ref(p)
        mutex_unlock(&table.lock)
        return p

    cdef bint knows_topic_id(self, const uint8_t *topic_id) noexcept nogil:
        cdef registry_t *table = self.table
        cdef bint known
        mutex_lock(&table.lock)
        known = find_topic(table, topic_id)[0] != NULL
        mutex_unlock(&table.lock)
        return known


cdef inline topic_id_t **find_topic(registry_t *table, const uint8_t *topic_id) noexcept nogil:
    """The link that points to the topic, or the NULL at the end of its chain."""
    cdef topic_id_t **link = &table.topic_ids[hash_bytes(topic_id, 16, 0) & <uint32_t>(table.bucket_count - 1)]
    while link[0] != NULL and memcmp(link[0].topic_id, topic_id, 16) != 0:
        link = &link[0].next
    return link


cdef inline void chain(registry_t *table, partition_t *p) noexcept nogil:
    cdef uint32_t mask = <uint32_t>(table.bucket_count - 1)
    cdef uint32_t at = hash_bytes(<uint8_t *>p.topic, p.topic_size, <uint32_t>p.partition_id) & mask
    p.name_next = table.by_name[at]
    table.by_name[at] = p
    at = hash_bytes(p.topic_id, 16, <uint32_t>p.partition_id) & mask
    p.id_next = table.by_id[at]
    table.by_id[at] = p


cdef bint register_partition(registry_t *table, partition_t *p) noexcept nogil:
    cdef topic_id_t **link
    cdef topic_id_t *topic
    if table.count >= table.bucket_count and resize(table, table.bucket_count * 2) < 0:
        return False
    link = find_topic(table, p.topic_id)
    if link[0] == NULL:
        topic = <topic_id_t *>calloc(1, sizeof(topic_id_t))
        if topic == NULL:
            return False
        memcpy(topic.topic_id, p.topic_id, 16)
        link[0] = topic
    link[0].partitions += 1
    chain(table, p)
    partition_ref(p)
    table.count += 1
    return True


cdef bint unregister_partition(registry_t *table, partition_t *p) noexcept nogil:
    cdef uint32_t mask = <uint32_t>(table.bucket_count - 1)
    cdef partition_t **link = &table.by_name[
        hash_bytes(<uint8_t *>p.topic, p.topic_size, <uint32_t>p.partition_id) & mask
    ]
    cdef topic_id_t **topic_link
    cdef topic_id_t *topic
    while link[0] != NULL and link[0] != p:
        link = &link[0].name_next
    if link[0] == NULL:
        return False
    link[0] = p.name_next
    link = &table.by_id[hash_bytes(p.topic_id, 16, <uint32_t>p.partition_id) & mask]
    while link[0] != p:
        link = &link[0].id_next
    link[0] = p.id_next
    topic_link = find_topic(table, p.topic_id)
    topic = topic_link[0]
    topic.partitions -= 1
    if topic.partitions == 0:
        topic_link[0] = topic.next
        free(topic)
    table.count -= 1
    return True


cdef int resize(registry_t *table, int32_t bucket_count) noexcept nogil:
    """-1 when memory is out; nothing has changed then."""
    cdef partition_t **by_name = <partition_t **>calloc(<size_t>bucket_count, sizeof(partition_t *))
    cdef partition_t **by_id = <partition_t **>calloc(<size_t>bucket_count, sizeof(partition_t *))
    cdef topic_id_t **topic_ids = <topic_id_t **>calloc(<size_t>bucket_count, sizeof(topic_id_t *))
    cdef partition_t **old_by_name = table.by_name
    cdef topic_id_t **old_topic_ids = table.topic_ids
    cdef partition_t *p
    cdef partition_t *next_one
    cdef topic_id_t *topic
    cdef topic_id_t *next_topic
    cdef topic_id_t **link
    cdef int32_t old_count = table.bucket_count
    cdef int32_t i
    if by_name == NULL or by_id == NULL or topic_ids == NULL:
        free(by_name)
        free(by_id)
        free(topic_ids)
        return -1
    free(table.by_id)
    table.by_name = by_name
    table.by_id = by_id
    table.topic_ids = topic_ids
    table.bucket_count = bucket_count
    for i in range(old_count):
        p = old_by_name[i]
        while p != NULL:
            next_one = p.name_next
            chain(table, p)
            p = next_one
        topic = old_topic_ids[i]
        while topic != NULL:
            next_topic = topic.next
            link = find_topic(table, topic.topic_id)
            topic.next = NULL
            link[0] = topic
            topic = next_topic
    free(old_by_name)
    free(old_topic_ids)
    return 0
