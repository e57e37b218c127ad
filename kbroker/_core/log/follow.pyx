"""Appending what a partition's leader has sent; see follow.pxd.

    check    all batches, without a lock
    plan     which batches go into the active segment as it is (a run), and what storage.Log has to do before the next
    write    the run, with one write(2)
    take in  the run: producers, then sizes, indexes and the log's end, then the high watermark

The plan counts on a copy of the active segment, because whether a batch makes the log roll depends on the index entries
of those before it: the segments of follower and leader are to be the same.

A new segment begins where the one before it ends, also when the batch that it begins with is behind a gap of offsets:
recovery takes a gap between two segments for lost records (storage/recovery.py).
"""

from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memset

from kbroker._core.base.clock cimport monotonic_ns
from kbroker._core.base.sync cimport *
from kbroker._core.log.append cimport (
    add_to_segment, count_in_segment, note_write_time, placed_t, roll_due, write_aborted_entry,
)
from kbroker._core.log.flush cimport request_flush
from kbroker._core.log.io cimport io_truncate, io_write
from kbroker._core.log.partition cimport *
from kbroker._core.log.pending_index cimport is_pending_full, pending_room, spill_indexes
from kbroker._core.log.producers cimport (
    ended_t, producers_end, producers_first_undecided, producers_foresee_end, producers_remember,
)
from kbroker._core.log.replicas cimport move_high_watermark, note_ended
from kbroker._core.wire.error_codes cimport (
    CORRUPT_MESSAGE, FENCED_LEADER_EPOCH, INVALID_RECORD, UNKNOWN_SERVER_ERROR,
)
from kbroker._core.wire.layout cimport ATTRIBUTE_CODEC_MASK, ATTRIBUTE_CONTROL, BATCH_HEADER_SIZE
from kbroker._core.wire.message_set cimport message_as_batch
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_BASE_OFFSET, BATCH_BAD_COUNT, BATCH_OK, BATCH_OLD_MAGIC, BATCH_TOO_SHORT, batch_header, batch_info_t,
    batch_verify,
)
from kbroker._core.wire.transaction_marker cimport MARKER_ABORT, NO_MARKER, marker_t, read_marker

ctypedef struct answer_t:
    # What a leader has sent, on its way into the log.
    const uint8_t *records
    int64_t size                 # bytes of good, whole batches
    int64_t at                   # the byte up to which they are in the log
    bint follows_on              # the log ended where the fetch began; it may have begun elsewhere since, for a batch
    int finding                  # what is wrong with the first batch that is not good
    int32_t code                 # the error code of the finding

ctypedef struct run_t:
    # The batches from answer_t.at on that are written together.
    int64_t size                 # bytes
    ended_t aborted              # what its first batch aborts; first_offset -1: nothing

# --- checking -----------------------------------------------------------------------------------------

cdef inline int look_at(const uint8_t *data, int64_t size, bint verify, batch_info_t *info) noexcept nogil:
    """Read the batch or message at `data` into `info`; `verify`: and check its CRC. Return BATCH_OK or a finding."""
    cdef int finding = batch_verify(data, size, info) if verify else batch_header(data, size, info)
    if finding == BATCH_OLD_MAGIC:
        return message_as_batch(data, size, verify, info)
    return finding


cdef int misfit(partition_t *p, const batch_info_t *info, int64_t next_offset, int32_t latest_epoch,
                const leader_state_t *leader) noexcept nogil:
    """Return BATCH_OK if an intact batch may follow on a log that ends at `next_offset`, else what is wrong with it."""
    if info.base_offset < next_offset or info.base_offset < 0:
        return BATCH_BAD_BASE_OFFSET
    if info.last_offset_delta < 0 or info.base_offset > INT64_MAX - 1 - info.last_offset_delta:
        return BATCH_BAD_COUNT
    # A topic that is not compacted has no gaps but those of earlier, below the high watermark.
    if info.base_offset > next_offset and info.base_offset >= leader.high_watermark and not p.options.compacted:
        return BATCH_BAD_BASE_OFFSET
    # Messages of the old formats, and batches of a leader without epochs, have none (-1).
    if info.leader_epoch > leader.leader_epoch or info.leader_epoch < -1 or 0 <= info.leader_epoch < latest_epoch:
        return BATCH_BAD_BASE_OFFSET
    return BATCH_OK


cdef void check(partition_t *p, answer_t *answer, int64_t size, const leader_state_t *leader) noexcept nogil:
    """Find out how many of the `size` bytes are good batches. The last one may be cut off, unless it is the only one.

    No CRC covers base offset and leader epoch. So a batch behind a gap or of a newer epoch is good only if the one
    behind it follows on; if there is none, it is left for the next answer, which begins with it. The log's end is
    looked at again under the lock.
    """
    cdef batch_info_t info
    cdef int64_t next_offset = atomic_load_i64(&p.log_end_offset)
    cdef int32_t latest_epoch = atomic_load_i32(&p.newest_epoch)
    cdef int64_t leap_at = -1        # where the last batch begins if it is behind a gap or of a newer epoch, else -1
    cdef bint leaps
    answer.finding = BATCH_OK
    answer.code = 0
    while answer.size < size:
        answer.finding = look_at(answer.records + answer.size, size - answer.size, True, &info)
        if answer.finding == BATCH_TOO_SHORT and answer.size:
            answer.finding = BATCH_OK
            break
        if answer.finding != BATCH_OK:
            answer.code = CORRUPT_MESSAGE
            break
        if answer.size == 0 and info.base_offset < next_offset:
            next_offset = info.base_offset           # an empty log may begin inside the batch
        answer.finding = misfit(p, &info, next_offset, latest_epoch, leader)
        if answer.finding != BATCH_OK:
            answer.code = INVALID_RECORD
            if leap_at >= 0:
                answer.size = leap_at                # it is not known which of the two is wrong
            return
        leaps = info.base_offset > next_offset or info.leader_epoch > latest_epoch
        leap_at = answer.size if leaps else -1
        next_offset = info.base_offset + info.last_offset_delta + 1
        if info.leader_epoch > latest_epoch:
            latest_epoch = info.leader_epoch
        answer.size += info.size
    if leap_at > 0:
        answer.size = leap_at

# --- appending ----------------------------------------------------------------------------------------

cdef int partition_follow(partition_t *p, const uint8_t *records, int64_t size, const leader_state_t *leader,
                          followed_t *followed) noexcept nogil:
    cdef answer_t answer
    cdef need_t need
    cdef int code = 0
    memset(followed, 0, sizeof(followed_t))
    memset(&answer, 0, sizeof(answer))
    answer.records = records
    check(p, &answer, size, leader)
    while True:
        mutex_lock(&p.append_lock)
        code = follow_locked(p, &answer, leader, &need)
        if code != NEEDS_HANDLER:
            followed.log_end_offset = p.log_end_offset
            followed.high_watermark = p.high_watermark
            followed.leader_epoch = p.newest_epoch
            followed.must_flush = must_flush(p, leader)
            followed.starts_later = code == 0 and leader.log_start_offset > p.log_start_offset
        mutex_unlock(&p.append_lock)
        if code == NEEDS_HANDLER:
            code = meet_need(p, &need)
            if code == 0:
                continue
            # Nothing is known of the log any more but what it said before.
            followed.log_end_offset = atomic_load_i64(&p.log_end_offset)
            followed.high_watermark = atomic_load_i64(&p.high_watermark)
            followed.leader_epoch = atomic_load_i32(&p.newest_epoch)
            followed.must_flush = must_flush(p, leader)
        break
    followed.size = answer.at
    if code == 0 or code == INVALID_RECORD:
        followed.finding = answer.finding
    return answer.code if code == 0 else code


cdef bint must_flush(partition_t *p, const leader_state_t *leader) noexcept nogil:
    """Return whether a flush must come before the leader is told of the log end, if the flush policy asks for a flush.

    A replica that lacks committed records is not in sync, and what it tells of its end counts for nobody. Its flush
    begins too, but it fetches on meanwhile.
    """
    if not is_flush_due(p):
        return False
    if atomic_load_i64(&p.log_end_offset) < leader.high_watermark:
        request_flush(p)
        return False
    return True


cdef int follow_locked(partition_t *p, answer_t *answer, const leader_state_t *leader, need_t *need) noexcept nogil:
    """Append the batches that are not in the log yet, up to the first that needs storage.Log (append_lock held)."""
    cdef run_t run
    cdef int code = refusal(p)
    need.kind = NEED_OPEN
    need.base_offset = -1
    need.leader_epoch = -1
    if code:
        return code
    if p.role != ROLE_FOLLOWER or p.leader_epoch != leader.leader_epoch:
        return FENCED_LEADER_EPOCH
    if p.rolling:
        need.kind = NEED_ROLL
        need.base_offset = p.segments[p.segment_count - 1].base_offset
        return NEEDS_HANDLER
    if not answer.follows_on:
        if leader.fetch_offset not in (-1, p.log_end_offset):
            answer.finding = BATCH_OK                # the batches may be good, and a hole would pass for a gap
            answer.code = 0
            return 0
        answer.follows_on = True
    while answer.at < answer.size:
        code = plan(p, answer, leader, &run, need)
        if run.size:
            code = write(p, answer.records + answer.at, &run)
            if code == 0:
                code = take_in(p, answer, &run)
        if code:
            return code
    follow_high_watermark(p, leader.high_watermark)
    return 0


cdef int plan(partition_t *p, answer_t *answer, const leader_state_t *leader, run_t *run,
              need_t *need) noexcept nogil:
    """Find the batches that may be written now (append_lock held).

    Returns 0: `run` is set. If `run` is empty, returns NEEDS_HANDLER with `need`, or INVALID_RECORD with
    `answer.finding`.
    """
    cdef segment_t *s = p.segments[p.segment_count - 1]
    cdef segment_t ahead = s[0]
    cdef pending_index_t pending = s.pending[0]
    cdef batch_info_t info
    cdef placed_t placed
    cdef marker_t marker
    cdef int64_t next_offset = p.log_end_offset
    cdef const uint8_t *data
    ahead.pending = &pending
    placed.segment = &ahead
    run.size = 0
    run.aborted.first_offset = -1
    while answer.at + run.size < answer.size:
        data = answer.records + answer.at + run.size
        look_at(data, answer.size - answer.at - run.size, False, &info)      # checked: it is whole
        place(&placed, &info, ahead.size)
        answer.finding = misfit(p, &info, next_offset, p.newest_epoch, leader)
        if answer.finding != BATCH_OK:
            if run.size == 0 and begins_inside(p, &placed, next_offset):
                need.kind = NEED_BEGIN
                need.base_offset = placed.base_offset
                answer.finding = BATCH_OK
                return NEEDS_HANDLER
            answer.size = answer.at + run.size       # what follows is not appended
            answer.code = INVALID_RECORD
            return 0 if run.size else INVALID_RECORD
        need.kind = NEED_NOTHING
        need.base_offset = s.base_offset
        if info.leader_epoch > p.newest_epoch:
            need.kind = NEED_EPOCH
            need.base_offset = placed.base_offset
            need.leader_epoch = info.leader_epoch
        elif roll_due(p, &ahead, info.size, placed.last_offset, placed.max_timestamp):
            need.kind = NEED_ROLL
            if ahead.size == 0:                      # offsets are left out: too many for the 31 bits of the indexes
                need.kind = NEED_BEGIN
                need.base_offset = placed.base_offset
            elif run.size == 0 and placed.last_offset - p.log_end_offset > INT32_MAX:
                leave_out(p, placed.base_offset)     # the new segment begins with the batch
        elif is_pending_full(&ahead):
            if s.index_fd < 0 or s.time_index_fd < 0:
                need.kind = NEED_INDEX
            else:
                pretend_spill(&ahead)
        if need.kind == NEED_NOTHING and marker_of(data, &info, &marker) == MARKER_ABORT:
            if run.size:
                return 0                             # what it aborts is known when the batches before it are taken in
            producers_foresee_end(p.producers, info.producer_id, placed.base_offset, &run.aborted)
            placed.aborted = run.aborted
            if run.aborted.first_offset != -1 and s.aborted_fd < 0:
                need.kind = NEED_ABORTED
        if need.kind != NEED_NOTHING:
            return 0 if run.size else NEEDS_HANDLER
        count_in_segment(&ahead, &info, &placed, p.options.index_interval_bytes)
        next_offset = placed.last_offset + 1
        run.size += info.size
    return 0


cdef inline void place(placed_t *placed, const batch_info_t *info, int64_t position) noexcept nogil:
    placed.base_offset = info.base_offset
    placed.last_offset = info.base_offset + info.last_offset_delta
    placed.max_timestamp = info.max_timestamp
    placed.position = position
    placed.aborted.first_offset = -1


cdef inline bint begins_inside(partition_t *p, const placed_t *placed, int64_t next_offset) noexcept nogil:
    """Return whether the log is empty and begins inside this batch: DeleteRecords has set the leader's start there."""
    return (p.log_start_offset == next_offset and 0 <= placed.base_offset < next_offset
            and placed.last_offset >= next_offset)


cdef inline void leave_out(partition_t *p, int64_t next_offset) noexcept nogil:
    """Let the log end at `next_offset`: compaction has removed the records up to there on the leader."""
    if next_offset > p.log_end_offset:
        mutex_lock(&p.lock)
        atomic_store_i64(&p.log_end_offset, next_offset)
        mutex_unlock(&p.lock)


cdef inline void pretend_spill(segment_t *ahead) noexcept nogil:
    ahead.index_entries += ahead.pending.count
    ahead.time_index_entries += ahead.pending.time_count
    ahead.pending.count = 0
    ahead.pending.time_count = 0


cdef inline int32_t marker_of(const uint8_t *data, const batch_info_t *info, marker_t *marker) noexcept nogil:
    """Read the marker that a batch is. Return its type; NO_MARKER if it is none."""
    if (not info.attributes & ATTRIBUTE_CONTROL or info.producer_id < 0 or info.record_count == 0
            or info.attributes & ATTRIBUTE_CODEC_MASK):
        return NO_MARKER
    return read_marker(data + BATCH_HEADER_SIZE, data + info.size, marker)


cdef int write(partition_t *p, const uint8_t *records, const run_t *run) noexcept nogil:
    """Write a run to the active segment, and what it aborts to the .txnindex (append_lock held).

    Returns 0 or an error code. Readers see the records only after `take_in`.
    """
    cdef segment_t *s = p.segments[p.segment_count - 1]
    cdef batch_info_t info
    cdef int64_t started_ns = monotonic_ns()
    cdef int failed = io_write(s.file_system, s.fd, records, run.size, s.size)
    if failed == 0 and run.aborted.first_offset != -1:
        look_at(records, run.size, False, &info)
        failed = write_aborted_entry(p, s, info.producer_id, &run.aborted, info.base_offset)
    if failed:
        return write_failed(p, s, failed)
    note_write_time(p, started_ns)
    return 0

# --- taking in ----------------------------------------------------------------------------------------

cdef int take_in(partition_t *p, answer_t *answer, run_t *run) noexcept nogil:
    """Make a written run part of the log (append_lock held). Returns 0, or an error code: the rest was cut off."""
    cdef segment_t *s = p.segments[p.segment_count - 1]
    cdef const uint8_t *records = answer.records + answer.at
    cdef batch_info_t info
    cdef placed_t placed
    cdef int64_t now_ms = monotonic_ns() // 1000000
    cdef int64_t known = 0           # bytes of the batches that the producer table knows
    cdef int64_t at = 0
    cdef int failed
    placed.segment = s
    while at < run.size:
        failed = spill_indexes(p, s) if is_pending_full(s) else 0
        if failed:
            return write_failed(p, s, failed)
        # No more than there is surely room for in the indexes: what the disk does not take is not to be known either.
        known = remember(p, records, at, run.size, pending_room(s))
        if known == at:
            failed = io_truncate(s.file_system, s.fd, s.size)
            return write_failed(p, s, failed) if failed else UNKNOWN_SERVER_ERROR
        mutex_lock(&p.lock)
        while at < known:
            look_at(records + at, run.size - at, False, &info)
            place(&placed, &info, s.size)
            if at == 0:
                placed.aborted = run.aborted
            add_to_segment(p, &info, &placed)
            at += info.size
        atomic_store_i64(&p.log_end_offset, placed.last_offset + 1)
        if p.unflushed_since_ms < 0:
            atomic_store_i64(&p.unflushed_since_ms, now_ms)
        p.last_append_ms = now_ms
        mutex_unlock(&p.lock)
        answer.at = records + at - answer.records
    return 0


cdef int64_t remember(partition_t *p, const uint8_t *records, int64_t at, int64_t size, int32_t most) noexcept nogil:
    """Enter batches of a run, from the byte `at` on and at most so many, into the producer table (append_lock held).

    Returns the byte where the first batch begins that is not entered. That is `at` if memory is out.
    """
    cdef batch_info_t info
    cdef marker_t marker
    cdef ended_t ended
    cdef int32_t entered = 0
    cdef int failed
    while at < size and entered < most:
        look_at(records + at, size - at, False, &info)
        if info.producer_id >= 0:
            failed = 0
            if not info.attributes & ATTRIBUTE_CONTROL:
                failed = producers_remember(p.producers, &info, info.base_offset, info.max_timestamp)
            elif marker_of(records + at, &info, &marker) != NO_MARKER:
                failed = producers_end(p.producers, &info, &marker, info.base_offset, info.max_timestamp, &ended)
                if failed == 0 and ended.first_offset >= 0:
                    mutex_lock(&p.lock)
                    failed = 0 if note_ended(p, ended.first_offset, info.base_offset) else -1
                    mutex_unlock(&p.lock)
            if failed:
                break
        at += info.size
        entered += 1
    return at


cdef void follow_high_watermark(partition_t *p, int64_t high_watermark) noexcept nogil:
    """Raise the high watermark to the leader's, at most to the log's end, and wake who waits (append_lock held).

    It never falls: what was committed once stays committed, also under a new leader that does not know it yet.
    """
    mutex_lock(&p.lock)
    atomic_store_i64(&p.first_undecided, producers_first_undecided(p.producers))
    if high_watermark > p.log_end_offset:
        high_watermark = p.log_end_offset
    if high_watermark > p.high_watermark:
        move_high_watermark(p, high_watermark)
    elif settle_last_stable(p):
        wake_fetches(p, 0, INT32_MAX, 0)     # nobody counts the bytes: the fetches look again
    mutex_unlock(&p.lock)


cdef int partition_follow_start(partition_t *p, int64_t log_start_offset) noexcept nogil:
    cdef need_t need
    need.kind = NEED_START
    need.base_offset = log_start_offset
    need.leader_epoch = -1
    return meet_need(p, &need)
