"""Hot state of a partition's log; the contracts are in partition.pxd.

In this order: references, indexes of the active segment, transactions, appending, calls to storage.Log, waiting
fetches. Reading is in position.pyx, flushing in flush.pyx.
"""

from cpython.ref cimport Py_XDECREF, PyObject
from libc.errno cimport EDQUOT, EFBIG, ENOSPC
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport strerror
from posix.mman cimport MAP_FAILED, MAP_POPULATE, MAP_SHARED, PROT_READ, mmap, munmap
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.clock cimport monotonic_ns
from kbroker._core.base.links cimport chain_push, chain_remove
from kbroker._core.base.mailbox cimport post
from kbroker._core.base.sync cimport *
from kbroker._core.log.flush cimport request_flush
from kbroker._core.log.io cimport io_close, io_truncate, io_write
from kbroker._core.log.producers cimport (
    ended_t, producers_check, producers_check_marker, producers_end, producers_first_undecided, producers_foresee_end,
    producers_free, producers_has_batches, producers_in_transaction, producers_is_fenced, producers_remember, remembered_batch_t,
)
from kbroker._core.log.verifications cimport (
    NO_GUARD, verification_t, verifications_begin, verifications_end, verifications_end_by_marker, verifications_find,
)
from kbroker._core.wire.cursor cimport store_u32, store_u64
from kbroker._core.wire.error_codes cimport (
    UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE,
    INVALID_PRODUCER_EPOCH, KAFKA_STORAGE_ERROR,
)
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.record_batch cimport (
    BATCH_OK, batch_check_timestamps, batch_error_code, batch_info_t, batch_stamp, batch_stamp_timestamp,
)
from kbroker._core.wire.transaction_marker cimport ABORTED_SIZE, MARKER_ABORT, write_aborted

import logging

from kbroker.errors import KbrokerError

logger = logging.getLogger("kbroker.storage")

cdef extern from "<pthread.h>" nogil:
    int mutex_clocklock "pthread_mutex_clocklock"(mutex_t *mutex, int clock, const timespec *until)

cdef enum:
    APPENDED_BEFORE = 1          # admit: the batch is a duplicate of one that was appended
    STALL_NS = 100000000         # a write that takes longer than this ...
    STALLED_FOR_NS = 1000000000  # ... sends appends to its directory to the handler threads for this long
    LOCK_WAIT_NS = 2000000       # how long a processor waits for append_lock before it needs a handler

ctypedef struct placed_t:
    # The place where a batch that may be appended will stand.
    segment_t *segment
    int64_t base_offset
    int64_t last_offset
    int64_t max_timestamp        # ms; of its records, or the time of the append
    int64_t position             # byte in the segment
    int64_t written_ns           # monotonic; when its write began
    ended_t aborted              # the transaction that it aborts, for the .txnindex; first_offset -1: none

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
    free(p.aborting)
    free(p.verifications.entries)
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


cdef void segment_unref(segment_t *s) noexcept nogil:
    if atomic_add_i32(&s.refs, -1) != 0:
        return
    segment_close_files(s)
    if s.file_system != NULL:
        with gil:
            Py_XDECREF(<PyObject *>s.file_system)
    free(s.pending)
    free(s)


cdef uint8_t *map_index_file(int32_t fd, int64_t size, bint populate) noexcept nogil:
    cdef void *address = mmap(NULL, <size_t>size, PROT_READ, MAP_SHARED | (MAP_POPULATE if populate else 0), fd, 0)
    return <uint8_t *>address if address != MAP_FAILED else NULL


cdef void segment_close_files(segment_t *s) noexcept nogil:
    if s.index != NULL:
        munmap(s.index, <size_t>s.index_capacity)
        s.index = NULL
    if s.time_index != NULL:
        munmap(s.time_index, <size_t>s.time_index_capacity)
        s.time_index = NULL
    if s.aborted != NULL:
        munmap(s.aborted, <size_t>s.aborted_capacity)
        s.aborted = NULL
    io_close(s.file_system, s.fd)
    io_close(s.file_system, s.index_fd)
    io_close(s.file_system, s.time_index_fd)
    io_close(s.file_system, s.aborted_fd)
    s.fd = -1
    s.index_fd = -1
    s.time_index_fd = -1
    s.aborted_fd = -1

cdef int32_t first_segment_from(segment_t *const *segments, int32_t count, int64_t base_offset) noexcept nogil:
    cdef int32_t low = 0
    cdef int32_t high = count
    cdef int32_t middle
    while low < high:
        middle = (low + high) >> 1
        if segments[middle].base_offset < base_offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef segment_t *find_segment(partition_t *p, int64_t base_offset) noexcept nogil:
    """Return the segment with this base offset, or NULL (`lock` held)."""
    cdef int32_t at = first_segment_from(p.segments, p.segment_count, base_offset)
    return p.segments[at] if at < p.segment_count and p.segments[at].base_offset == base_offset else NULL

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
    """Add the segment's largest timestamp and its offset to the time index, unless it is there (both locks held)."""
    cdef uint8_t *entry
    if s.max_timestamp <= s.last_time_entry or s.pending.time_count == INDEX_PENDING:
        return
    entry = s.pending.time_index + s.pending.time_count * TIME_INDEX_ENTRY_SIZE
    store_u64(entry, <uint64_t>s.max_timestamp)
    store_u32(entry + 8, <uint32_t>(s.max_timestamp_offset - s.base_offset))
    s.pending.time_count += 1
    s.last_time_entry = s.max_timestamp


cdef void add_index_entry(segment_t *s, int64_t last_offset, int64_t position) noexcept nogil:
    """Add an entry to `pending` (both locks held). There is room: a full `pending` is spilled before the append."""
    cdef uint8_t *entry = s.pending.index + s.pending.count * INDEX_ENTRY_SIZE
    store_u32(entry, <uint32_t>(last_offset - s.base_offset))
    store_u32(entry + 4, <uint32_t>position)
    s.pending.count += 1


# --- transactions -----------------------------------------------------------------------------------

cdef bint settle_last_stable(partition_t *p) noexcept nogil:
    cdef int64_t stable = p.first_undecided
    if stable < p.log_start_offset:
        stable = p.log_start_offset
    if stable > p.high_watermark:
        stable = p.high_watermark
    if stable == p.last_stable_offset:
        return False
    atomic_store_i64(&p.last_stable_offset, stable)
    return True


cdef bint add_aborting(partition_t *p, segment_t *s) noexcept nogil:
    cdef segment_t **grown = <segment_t **>with_room(p.aborting, p.aborting_count, &p.aborting_capacity, sizeof(segment_t *))
    if grown == NULL:
        return False
    p.aborting = grown
    p.aborting[p.aborting_count] = s
    p.aborting_count += 1
    return True


cdef int write_aborted_entry(partition_t *p, segment_t *s, int64_t producer_id, const ended_t *ended, int64_t offset) noexcept nogil:
    """Append to the .txnindex of the active segment (append_lock held). 0, or -errno after the file was cut back."""
    cdef uint8_t[ABORTED_SIZE] entry
    cdef int64_t position = <int64_t>s.aborted_count * ABORTED_SIZE
    cdef int failed
    write_aborted(entry, producer_id, ended.first_offset, offset, ended.last_stable_offset)
    failed = io_write(s.file_system, s.aborted_fd, entry, ABORTED_SIZE, position)
    if failed:
        io_truncate(s.file_system, s.aborted_fd, position)
    return failed


cdef int partition_verify(partition_t *p, const batch_info_t *info, bint adds, int64_t *guard) noexcept nogil:
    cdef int code
    guard[0] = NO_GUARD
    if info.producer_id < 0:
        return 0
    while True:
        mutex_lock(&p.append_lock)
        code = refusal(p)
        if code == 0 and (adds or p.options.verify_transactions):
            code = begin_verification(p, info, adds, guard)
        mutex_unlock(&p.append_lock)
        if code == NEEDS_HANDLER:
            code = prepare(p, PREPARE_OPEN, -1)
            if code == 0:
                continue
        return code


cdef int begin_verification(partition_t *p, const batch_info_t *info, bint adds, int64_t *guard) noexcept nogil:
    if producers_is_fenced(p.producers, info.producer_id, info.producer_epoch):
        return INVALID_PRODUCER_EPOCH
    if producers_in_transaction(p.producers, info.producer_id, info.producer_epoch):
        return 0
    guard[0] = verifications_begin(&p.verifications, info.producer_id, info.producer_epoch, info.base_sequence, adds)
    return 0 if guard[0] != NO_GUARD else UNKNOWN_SERVER_ERROR


cdef int check_producer(partition_t *p, batch_info_t *info, const appender_t *appender, remembered_batch_t *duplicate) noexcept nogil:
    """Check the batch as producers_check does, or as producers_check_marker; may return NEEDS_VERIFICATION as well."""
    cdef verification_t *asked = NULL
    cdef bint verified = True
    cdef int32_t lowest_sequence = INT32_MAX
    if appender.marker != NULL:
        return producers_check_marker(p.producers, info, appender.marker)
    if p.verifications.count and info.producer_id >= 0:
        asked = verifications_find(&p.verifications, info.producer_id)
    if asked != NULL:
        lowest_sequence = asked.lowest_sequence
        if asked.adds and not producers_has_batches(p.producers, info.producer_id):
            lowest_sequence = 0      # its epoch is new, so the first batch has sequence 0
    if (info.attributes & ATTRIBUTE_TRANSACTIONAL and info.producer_id >= 0
            and (appender.adds or p.options.verify_transactions)):
        verified = asked != NULL and asked.guard == appender.guard
        if (not verified and appender.guard == NO_GUARD
                and not producers_is_fenced(p.producers, info.producer_id, info.producer_epoch)
                and not producers_in_transaction(p.producers, info.producer_id, info.producer_epoch)):
            return NEEDS_VERIFICATION
    return producers_check(p.producers, info, appender.origin, verified, lowest_sequence, duplicate)


# --- appending --------------------------------------------------------------------------------------

cdef int partition_append(partition_t *p, uint8_t *batch, batch_info_t *info, const appender_t *appender, int64_t now_ms,
                          bint may_block, append_result_t *result) noexcept nogil:
    cdef need_t need
    cdef int code = NEEDS_HANDLER
    while True:
        need.kind = PREPARE_NOTHING
        need.base_offset = -1
        result.must_wait = False
        code = take_append_lock(p, may_block)
        if code == 0:
            code = append_locked(p, batch, info, appender, now_ms, may_block, result, &need)
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
    clock_gettime(CLOCK_MONOTONIC, &until)
    until.tv_nsec += LOCK_WAIT_NS
    if until.tv_nsec >= 1000000000:
        until.tv_nsec -= 1000000000
        until.tv_sec += 1
    return 0 if mutex_clocklock(&p.append_lock, CLOCK_MONOTONIC, &until) == 0 else NEEDS_HANDLER


cdef inline int64_t most_aborted(partition_t *p, segment_t *s) noexcept nogil:
    """Return how many entries the .txnindex of the active segment has room for: its map cannot grow."""
    return s.aborted_capacity // ABORTED_SIZE if s.aborted != NULL else p.options.index_max_bytes // ABORTED_SIZE


cdef inline bint roll_due(partition_t *p, segment_t *s, int64_t size, int64_t last_offset, int64_t max_timestamp) noexcept nogil:
    """Return whether Kafka's conditions for a roll hold: size, age by record time, full index, 31 bits of offset."""
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
    if s.index != NULL and index_count(s) >= s.index_capacity // INDEX_ENTRY_SIZE:
        return True      # the index was mapped when segment.index.bytes was less
    if s.aborted_count and s.aborted_count >= most_aborted(p, s):
        return True
    waited = max_timestamp - s.first_timestamp if s.first_timestamp >= 0 else monotonic_ns() // 1000000 - s.created_ms
    return waited > p.options.segment_ms - s.roll_jitter_ms


cdef inline bint is_pending_full(segment_t *s) noexcept nogil:
    return s.pending.count == INDEX_PENDING or s.pending.time_count == INDEX_PENDING


cdef int append_locked(partition_t *p, uint8_t *batch, batch_info_t *info, const appender_t *appender, int64_t now_ms,
                       bint may_block, append_result_t *result, need_t *need) noexcept nogil:
    cdef placed_t placed
    cdef int code = admit(p, info, appender, now_ms, may_block, result, need, &placed)
    if code:
        return 0 if code == APPENDED_BEFORE else code
    batch_stamp(batch, placed.base_offset, p.leader_epoch)
    batch_stamp_timestamp(batch, info.size, p.options.log_append_time, placed.max_timestamp)
    code = write(p, batch, info, appender, &placed)
    if code:
        return code
    result.base_offset = placed.base_offset
    result.last_offset = placed.last_offset
    result.log_append_time = now_ms if p.options.log_append_time else -1
    result.must_wait = placed.last_offset + 1 - atomic_load_i64(&p.flushed_offset) >= p.options.flush_messages
    publish(p, info, &placed)
    return 0


cdef int admit(partition_t *p, batch_info_t *info, const appender_t *appender, int64_t now_ms, bint may_block,
               append_result_t *result, need_t *need, placed_t *placed) noexcept nogil:
    """Decide whether a batch may be appended now and where it will stand (append_lock held).

    Changes only `result`, `need` and `placed`. Returns 0: it may be appended, at `placed`; APPENDED_BEFORE: it is a
    duplicate, and `result` has the offsets of the first append; NEEDS_HANDLER: `need` tells why; else
    NEEDS_VERIFICATION or a Kafka error code.
    """
    cdef segment_t *s
    cdef remembered_batch_t duplicate
    cdef bint log_append_time = p.options.log_append_time
    cdef int verification
    cdef int code = refusal(p)
    if code == NEEDS_HANDLER:
        need.kind = PREPARE_OPEN
    if code:
        return code
    s = p.segments[p.segment_count - 1]
    need.base_offset = s.base_offset
    if p.rolling:
        need.kind = PREPARE_ROLL
        return NEEDS_HANDLER
    if not may_block and atomic_load_i64(&p.dir.stalled_until_ns) and monotonic_ns() < p.dir.stalled_until_ns:
        return NEEDS_HANDLER
    if appender.marker == NULL:          # a marker is subject to no limit of the topic: transactions must end
        if info.size > p.options.max_message_bytes:
            return MESSAGE_TOO_LARGE
        if info.size > p.options.segment_bytes:
            return RECORD_LIST_TOO_LARGE
        code = batch_check_timestamps(info, log_append_time, now_ms, p.options.timestamp_before_max_ms,
                                      p.options.timestamp_after_max_ms)
        if code != BATCH_OK:
            return batch_error_code(code)

    result.log_start_offset = p.log_start_offset
    verification = check_producer(p, info, appender, &duplicate)
    if verification == 1:
        result.base_offset = duplicate.last_offset - duplicate.offset_delta
        result.last_offset = duplicate.last_offset
        result.log_append_time = duplicate.timestamp         # as in Kafka, whatever message.timestamp.type is
        result.must_wait = p.options.flush_messages == 1 and atomic_load_i64(&p.flushed_offset) <= duplicate.last_offset
        return APPENDED_BEFORE
    if verification and (verification != NEEDS_VERIFICATION or may_block):
        return verification

    placed.segment = s
    placed.base_offset = p.log_end_offset
    placed.last_offset = p.log_end_offset + info.last_offset_delta
    placed.max_timestamp = now_ms if log_append_time else info.walked_max_timestamp
    placed.aborted.first_offset = -1
    if roll_due(p, s, info.size, placed.last_offset, placed.max_timestamp):
        need.kind = PREPARE_ROLL
        return NEEDS_HANDLER
    if is_pending_full(s) and (s.index_fd < 0 or s.time_index_fd < 0):
        need.kind = PREPARE_INDEX
        return NEEDS_HANDLER
    if verification:
        return verification          # not before the checks above: the append after it must not need a handler
    if appender.marker != NULL and appender.marker.type == MARKER_ABORT:
        producers_foresee_end(p.producers, info.producer_id, placed.base_offset, &placed.aborted)
        if placed.aborted.first_offset != -1 and s.aborted_fd < 0:
            need.kind = PREPARE_ABORTED
            return NEEDS_HANDLER
    return 0


cdef int write(partition_t *p, const uint8_t *batch, batch_info_t *info, const appender_t *appender,
               placed_t *placed) noexcept nogil:
    """Write a stamped batch to the files and to the producer table. Not visible before publish. 0 or the error code."""
    cdef segment_t *s = placed.segment
    cdef ended_t ended
    cdef int failed = spill_indexes(p, s) if is_pending_full(s) else 0
    placed.position = s.size
    placed.written_ns = monotonic_ns()
    if failed == 0:
        failed = io_write(s.file_system, s.fd, batch, info.size, placed.position)
    if failed == 0 and placed.aborted.first_offset != -1:
        failed = write_aborted_entry(p, s, info.producer_id, &placed.aborted, placed.base_offset)
    if failed:
        return write_failed(p, s, failed)
    note_write_time(p, placed.written_ns)
    # The check has made room: this cannot fail.
    if appender.marker != NULL:
        producers_end(p.producers, info, appender.marker, placed.base_offset, placed.max_timestamp, &ended)
        verifications_end_by_marker(&p.verifications, info.producer_id, info.producer_epoch)
    else:
        producers_remember(p.producers, info, placed.base_offset, placed.max_timestamp)
        if info.attributes & ATTRIBUTE_TRANSACTIONAL:
            verifications_end(&p.verifications, info.producer_id)
    return 0


cdef void publish(partition_t *p, const batch_info_t *info, const placed_t *placed) noexcept nogil:
    """Make a written batch visible to readers and wake the fetches that wait for it."""
    cdef int64_t stable_before
    cdef bint is_stable
    mutex_lock(&p.lock)
    add_to_segment(p, info, placed)
    if p.unflushed_since_ms < 0:
        atomic_store_i64(&p.unflushed_since_ms, placed.written_ns // 1000000)
    p.last_append_ms = placed.written_ns // 1000000
    atomic_store_i64(&p.log_end_offset, placed.last_offset + 1)
    atomic_store_i64(&p.high_watermark, placed.last_offset + 1)
    atomic_store_i64(&p.first_undecided, producers_first_undecided(p.producers))
    stable_before = p.last_stable_offset
    is_stable = settle_last_stable(p)
    if not p.options.flushed_visibility:
        # Nobody counts the bytes that the end of a transaction makes readable: committed fetches look again
        # (INT32_MAX).
        wake_fetches(
            p, info.size, 0 if not is_stable else info.size if stable_before == placed.base_offset else INT32_MAX
        )
    mutex_unlock(&p.lock)
    atomic_add_i64(&p.messages_in, info.record_count)
    atomic_add_i64(&p.bytes_in, info.size)


cdef inline void add_to_segment(partition_t *p, const batch_info_t *info, const placed_t *placed) noexcept nogil:
    """Add the batch to the segment's size, timestamps, indexes and to the tail ring (both locks held)."""
    cdef segment_t *s = placed.segment
    if placed.aborted.first_offset != -1:
        s.aborted_count += 1
    p.tail[p.tail_count & (TAIL_RING - 1)].base_offset = placed.base_offset
    p.tail[p.tail_count & (TAIL_RING - 1)].position = placed.position
    p.tail_count += 1
    if placed.position == 0:
        s.first_timestamp = placed.max_timestamp
    if placed.max_timestamp > s.max_timestamp:
        s.max_timestamp = placed.max_timestamp
        s.max_timestamp_offset = placed.last_offset
    if s.bytes_since_index > p.options.index_interval_bytes:
        add_index_entry(s, placed.last_offset, placed.position)
        add_time_entry(s)
        s.bytes_since_index = 0
    s.bytes_since_index += info.size
    atomic_store_i64(&s.size, placed.position + info.size)


cdef inline void note_write_time(partition_t *p, int64_t started_ns) noexcept nogil:
    """Note that a write has succeeded: there is space, and whether the directory is stalled."""
    cdef int64_t now_ns = monotonic_ns()
    if atomic_load_i64(&p.dir.full_told_ns):
        atomic_store_i64(&p.dir.full_told_ns, 0)
    if now_ns - started_ns > STALL_NS:
        atomic_store_i64(&p.dir.stalled_until_ns, now_ns + STALLED_FOR_NS)


cdef int write_failed(partition_t *p, segment_t *s, int failed) noexcept nogil:
    """Handle a failed write (`failed`: -errno). Returns the error code to answer.

    On a full disk or quota the half-written bytes are cut off, and appends are refused until there is space. Any other
    error takes the directory offline.
    """
    if failed == -ENOSPC or failed == -EDQUOT or failed == -EFBIG:
        failed = io_truncate(s.file_system, s.fd, s.size)
        if failed == 0:
            directory_full(p)
            return KAFKA_STORAGE_ERROR
    directory_failed(p, failed)
    return KAFKA_STORAGE_ERROR


cdef void directory_full(partition_t *p) noexcept nogil:
    """Log that the disk is full, but not for every append that is refused (FULL_TOLD_EVERY_S)."""
    cdef int64_t told_ns = atomic_load_i64(&p.dir.full_told_ns)
    if told_ns and monotonic_ns() - told_ns < FULL_TOLD_EVERY_S * 1000000000LL:
        return
    with gil:
        try:
            (<object>p.directory).tell_full(f"{p.topic[:p.topic_size].decode('utf-8', 'replace')}-{p.partition_id}")
        except BaseException:
            logger.exception("telling that a disk is full")


cdef bint take_offline(partition_t *p) noexcept nogil:
    return atomic_claim_i32(&p.dir.offline, 0, 1)


cdef void tell_offline(partition_t *p, int failed) noexcept with gil:
    try:
        reason = f"{p.topic[:p.topic_size].decode('utf-8', 'replace')}-{p.partition_id}: {strerror(-failed).decode()}"
        (<object>p.directory).tell_offline(reason)
    except BaseException:
        logger.exception("telling that a log directory is offline")


cdef void directory_failed(partition_t *p, int failed) noexcept nogil:
    if take_offline(p):
        tell_offline(p, failed)


cdef int prepare(partition_t *p, int kind, int64_t base_offset) noexcept with gil:
    """Let storage.Log do `kind` (PREPARE_*). Returns 0: try again; else the error code to answer."""
    if kind == PREPARE_NOTHING:
        return 0
    log = (<object>p.log)() if p.log != NULL else None
    if log is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    try:
        log.meet_need(kind, base_offset)
        return 0
    except KbrokerError as error:
        return error.code
    except OSError:
        logger.exception("%s: cannot go on", log)
        return KAFKA_STORAGE_ERROR
    except BaseException:
        logger.exception("%s: cannot go on", log)
        return UNKNOWN_SERVER_ERROR

# --- waiting ----------------------------------------------------------------------------------------

cdef void wake_fetches(partition_t *p, int64_t size, int64_t committed_size) noexcept nogil:
    """Tell waiting fetches of `size` more bytes, `committed_size` for fetches of committed records (`lock` held)."""
    cdef fetch_waiter_t *waiter = p.fetch_waiters
    cdef int64_t more
    while waiter != NULL:
        more = committed_size if waiter.committed else size
        if more and atomic_add_i64(waiter.bytes_missing, -more) <= 0:
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
    waiter.committed = committed
    chain_push(p.fetch_waiters, waiter, waiter.next, waiter.previous)
    mutex_unlock(&p.lock)
    return True


cdef void partition_forget_bytes(fetch_waiter_t *waiter) noexcept nogil:
    cdef partition_t *p = waiter.partition
    if p == NULL:
        return
    mutex_lock(&p.lock)
    chain_remove(p.fetch_waiters, waiter, waiter.next, waiter.previous)
    waiter.partition = NULL
    mutex_unlock(&p.lock)
    partition_unref(p)
