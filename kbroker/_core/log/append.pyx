"""Appending to a partition's log; see append.pxd.

An append is admitted (nothing has changed yet), written (files, indexes, producers) and published (log end, high
watermark, who waits).
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from kbroker._core.base.clock cimport monotonic_ms, monotonic_ns
from kbroker._core.base.sync cimport *
from kbroker._core.log.flush cimport request_flush
from kbroker._core.log.io cimport io_truncate, io_write
from kbroker._core.log.partition cimport *
from kbroker._core.log.pending_index cimport (
    add_index_entry, add_time_entry, index_count, is_pending_full, spill_indexes, time_index_count,
)
from kbroker._core.log.producers cimport (
    ended_t, producers_check, producers_check_marker, producers_end, producers_first_undecided, producers_foresee_end,
    producers_has_batches, producers_in_transaction, producers_is_fenced, producers_remember, remembered_batch_t,
)
from kbroker._core.log.replicas cimport note_ended, replicas_advance, replicas_refuse
from kbroker._core.log.verifications cimport (
    NO_GUARD, verification_t, verifications_begin, verifications_end, verifications_end_by_marker, verifications_find,
)
from kbroker._core.wire.error_codes cimport (
    INVALID_PRODUCER_EPOCH, KAFKA_STORAGE_ERROR, MESSAGE_TOO_LARGE, NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER, RECORD_LIST_TOO_LARGE, UNKNOWN_SERVER_ERROR,
)
from kbroker._core.wire.layout cimport ATTRIBUTE_TRANSACTIONAL, INDEX_ENTRY_SIZE, TIME_INDEX_ENTRY_SIZE
from kbroker._core.wire.record_batch cimport (
    BATCH_OK, batch_check_timestamps, batch_error_code, batch_info_t, batch_stamp, batch_stamp_timestamp,
)
from kbroker._core.wire.transaction_marker cimport ABORTED_SIZE, MARKER_ABORT, write_aborted

cdef extern from "<pthread.h>" nogil:
    int mutex_clocklock "pthread_mutex_clocklock"(mutex_t *mutex, int clock, const timespec *until)

cdef enum:
    APPENDED_BEFORE = 1          # admit: the batch is a duplicate of one that was appended
    STALL_NS = 100000000         # a write that takes longer than this ...
    STALLED_FOR_NS = 1000000000  # ... sends appends to its directory to the handler threads for this long
    LOCK_WAIT_NS = 2000000       # how long a processor waits for append_lock before it needs a handler
    REFUSED_FOR_MS = 60_000      # how long after a refusal a missing batch may be the one that was refused

# --- appending --------------------------------------------------------------------------------------

cdef int partition_append(partition_t *p, uint8_t *batch, batch_info_t *info, const appender_t *appender,
                          int64_t now_ms, bint may_block, append_result_t *result) noexcept nogil:
    cdef need_t need
    cdef int code = NEEDS_HANDLER
    while True:
        need.kind = NEED_NOTHING
        need.base_offset = -1
        result.must_flush = False
        result.must_replicate = False
        code = take_append_lock(p, may_block)
        if code == 0:
            code = append_locked(p, batch, info, appender, now_ms, may_block, result, &need)
            mutex_unlock(&p.append_lock)
        if code != NEEDS_HANDLER or not may_block:
            break
        code = meet_need(p, &need)
        if code != 0:
            note_refusal(p, code)
            break
    if code == 0 and result.must_flush:
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


cdef bint roll_due(partition_t *p, segment_t *s, int64_t size, int64_t last_offset,
                   int64_t max_timestamp) noexcept nogil:
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
        note_refusal(p, code)
        return code
    result.base_offset = placed.base_offset
    result.last_offset = placed.last_offset
    result.log_append_time = now_ms if p.options.log_append_time else -1
    result.must_flush = placed.last_offset + 1 - atomic_load_i64(&p.flushed_offset) >= p.options.flush_messages
    result.must_replicate = p.role == ROLE_LEADER and appender.acks == -1
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
        need.kind = NEED_OPEN
    if code:
        return code
    if p.role != ROLE_ALONE:
        code = replicas_refuse(p, appender.acks)
        if code:
            return code
    if appender.leader_epoch >= 0 and appender.leader_epoch < p.led_since:
        return NOT_LEADER_OR_FOLLOWER
    s = p.segments[p.segment_count - 1]
    need.base_offset = s.base_offset
    if p.rolling:
        need.kind = NEED_ROLL
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
    result.led_since = p.led_since
    verification = check_producer(p, info, appender, &duplicate)
    if verification == 1:
        result.base_offset = duplicate.last_offset - duplicate.offset_delta
        result.last_offset = duplicate.last_offset
        result.log_append_time = duplicate.timestamp         # as in Kafka, whatever message.timestamp.type is
        result.must_flush = (p.options.flush_messages == 1
                             and atomic_load_i64(&p.flushed_offset) <= duplicate.last_offset)
        result.must_replicate = p.role == ROLE_LEADER and appender.acks == -1
        return APPENDED_BEFORE
    if verification == OUT_OF_ORDER_SEQUENCE_NUMBER:
        code = lately_refused(p)
        return code if code else verification
    if verification and (verification != NEEDS_VERIFICATION or may_block):
        return verification

    placed.segment = s
    placed.base_offset = p.log_end_offset
    placed.last_offset = p.log_end_offset + info.last_offset_delta
    placed.max_timestamp = now_ms if log_append_time else info.walked_max_timestamp
    placed.aborted.first_offset = -1
    placed.ended_first_offset = -1
    if roll_due(p, s, info.size, placed.last_offset, placed.max_timestamp):
        need.kind = NEED_ROLL
        return NEEDS_HANDLER
    if is_pending_full(s) and (s.index_fd < 0 or s.time_index_fd < 0):
        need.kind = NEED_INDEX
        return NEEDS_HANDLER
    if verification:
        return verification          # last: after the coordinator's answer, the append must not need a handler
    if appender.marker != NULL and appender.marker.type == MARKER_ABORT:
        producers_foresee_end(p.producers, info.producer_id, placed.base_offset, &placed.aborted)
        if placed.aborted.first_offset != -1 and s.aborted_fd < 0:
            need.kind = NEED_ABORTED
            return NEEDS_HANDLER
    return 0


cdef int lately_refused(partition_t *p) noexcept nogil:
    """Return why a batch has just been refused, or 0: those that the producer sent behind it are out of order.

    They are refused for the same reason, although the disk has room again or the ISR has grown meanwhile. By
    OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka takes a new epoch, in which it sends again what other partitions may have
    stored already.
    """
    cdef int64_t refused_ms = atomic_load_i64(&p.refused_ms)
    if refused_ms == 0 or replica_clock(p, monotonic_ms()) - refused_ms >= REFUSED_FOR_MS:
        return 0
    return atomic_load_i32(&p.refused_code)


cdef int write(partition_t *p, const uint8_t *batch, batch_info_t *info, const appender_t *appender,
               placed_t *placed) noexcept nogil:
    """Write a stamped batch to the files and to the producer table. Readers see it only after `publish`.

    Returns 0 or the error code to answer.
    """
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
        placed.ended_first_offset = ended.first_offset
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
    atomic_store_i64(&p.first_undecided, producers_first_undecided(p.producers))
    if p.role == ROLE_ALONE:
        atomic_store_i64(&p.high_watermark, placed.last_offset + 1)
        stable_before = p.last_stable_offset
        is_stable = settle_last_stable(p)
        if not p.options.flushed_visibility:
            # Nobody counts the bytes that the end of a transaction makes readable: committed fetches look again
            # (INT32_MAX).
            wake_fetches(
                p, info.size, 0 if not is_stable else info.size if stable_before == placed.base_offset else INT32_MAX, 0
            )
    else:
        if placed.ended_first_offset >= 0:
            note_ended(p, placed.ended_first_offset, placed.base_offset)
        wake_fetches(p, 0, 0, info.size)
        replicas_advance(p, replica_clock(p, placed.written_ns // 1000000))
    mutex_unlock(&p.lock)
    atomic_add_i64(&p.messages_in, info.record_count)
    atomic_add_i64(&p.bytes_in, info.size)


cdef void add_to_segment(partition_t *p, const batch_info_t *info, const placed_t *placed) noexcept nogil:
    p.tail[p.tail_count & (TAIL_RING - 1)].base_offset = placed.base_offset
    p.tail[p.tail_count & (TAIL_RING - 1)].position = placed.position
    p.tail_count += 1
    count_in_segment(placed.segment, info, placed, p.options.index_interval_bytes)


cdef void count_in_segment(segment_t *s, const batch_info_t *info, const placed_t *placed,
                           int32_t index_interval_bytes) noexcept nogil:
    if placed.aborted.first_offset != -1:
        s.aborted_count += 1
    if placed.position == 0:
        s.first_timestamp = placed.max_timestamp
    if placed.max_timestamp > s.max_timestamp:
        s.max_timestamp = placed.max_timestamp
        s.max_timestamp_offset = placed.last_offset
    if s.bytes_since_index > index_interval_bytes:
        add_index_entry(s, placed.last_offset, placed.position)
        add_time_entry(s)
        s.bytes_since_index = 0
    s.bytes_since_index += info.size
    atomic_store_i64(&s.size, placed.position + info.size)


cdef void note_write_time(partition_t *p, int64_t started_ns) noexcept nogil:
    cdef int64_t now_ns = monotonic_ns()
    if atomic_load_i64(&p.dir.full_told_ns):
        atomic_store_i64(&p.dir.full_told_ns, 0)
    if now_ns - started_ns > STALL_NS:
        atomic_store_i64(&p.dir.stalled_until_ns, now_ns + STALLED_FOR_NS)

# --- transactions -----------------------------------------------------------------------------------

cdef int write_aborted_entry(partition_t *p, segment_t *s, int64_t producer_id, const ended_t *ended,
                             int64_t offset) noexcept nogil:
    cdef uint8_t[ABORTED_SIZE] entry
    cdef int64_t position = <int64_t>s.aborted_count * ABORTED_SIZE
    cdef int failed
    write_aborted(entry, producer_id, ended.first_offset, offset, ended.last_stable_offset)
    failed = io_write(s.file_system, s.aborted_fd, entry, ABORTED_SIZE, position)
    if failed:
        io_truncate(s.file_system, s.aborted_fd, position)
    return failed


cdef int partition_verify(partition_t *p, const batch_info_t *info, bint adds, int64_t *guard) noexcept nogil:
    cdef need_t need
    cdef int code
    need.kind = NEED_OPEN
    need.base_offset = -1
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
            code = meet_need(p, &need)
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


cdef int check_producer(partition_t *p, batch_info_t *info, const appender_t *appender,
                        remembered_batch_t *duplicate) noexcept nogil:
    """Check the batch of a producer, or a marker, as `producers_check` and `producers_check_marker` do.

    Returns what they return, or NEEDS_VERIFICATION.
    """
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
    return producers_check(p.producers, info, appender.origin, verified, lowest_sequence, p.log_start_offset > 0,
                           duplicate)
