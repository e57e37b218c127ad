"""The leader's followers and the high watermark; see replicas.pxd."""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint32_t
from libc.string cimport memmove

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.links cimport chain_push, chain_remove
from kbroker._core.base.mailbox cimport post
from kbroker._core.base.sync cimport *
from kbroker._core.log.acks cimport acks_complete
from kbroker._core.log.partition cimport *
from kbroker._core.wire.error_codes cimport NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH

cdef enum:
    TOLD_EVERY_MS = 100          # how often ReplicaNews is told of one follower that may be let in
    CHECK_LASTS_MS = 3000        # how long after a check of the lead a client is told that its offset is out of range


cdef follower_t *find_follower(partition_t *p, int32_t node_id) noexcept nogil:
    cdef int32_t i
    for i in range(p.follower_count):
        if p.followers[i].node_id == node_id:
            return &p.followers[i]
    return NULL


cdef int follower_of(partition_t *p, int32_t node_id, int64_t broker_epoch, follower_t **found) noexcept nogil:
    """Find the follower that fetches (`lock` held). Returns 0 or an error code."""
    found[0] = NULL
    if p.role != ROLE_LEADER:
        return NOT_LEADER_OR_FOLLOWER
    found[0] = find_follower(p, node_id)
    if found[0] == NULL:
        return UNKNOWN_LEADER_EPOCH
    if 0 <= broker_epoch < found[0].broker_epoch:
        return NOT_LEADER_OR_FOLLOWER        # a fetch of the broker's former life
    return 0


cdef int replicas_check_position(partition_t *p, fetch_position_t *at) noexcept nogil:
    cdef int code
    mutex_lock(&p.lock)
    code = check_position(p, at)
    mutex_unlock(&p.lock)
    return code


cdef int replicas_serve(partition_t *p, int32_t node_id, int64_t broker_epoch, fetch_position_t *at,
                        int64_t log_start_offset, int64_t now_ms, bint is_noted) noexcept nogil:
    cdef follower_t *f = NULL
    cdef int code
    mutex_lock(&p.lock)
    code = follower_of(p, node_id, broker_epoch, &f)
    if code == 0:
        at.in_sync = f.in_sync
        code = check_position(p, at)
    if code == 0 and at.diverging_epoch < 0 and not p.log_start_offset <= at.offset <= p.log_end_offset:
        code = OFFSET_OUT_OF_RANGE
    if code == 0 and at.diverging_epoch < 0 and is_noted and not is_incomparable(p, at, log_start_offset):
        note(p, f, broker_epoch, at.offset, log_start_offset, replica_clock(p, now_ms))
    mutex_unlock(&p.lock)
    return code


cdef bint is_incomparable(partition_t *p, const fetch_position_t *at, int64_t log_start_offset) noexcept nogil:
    """Return whether a follower may have other records than were deleted here (`lock` held).

    Its newest epoch is older than all that this log still knows, and its log begins before this one. When it has heard
    where this log begins, such records are gone.
    """
    return (log_start_offset < p.log_start_offset and p.epoch_count > 0
            and 0 <= at.last_fetched_epoch < p.epochs[0].epoch)


cdef int check_position(partition_t *p, fetch_position_t *at) noexcept nogil:
    """Do what `replicas_check_position` does (`lock` held). The rules are Kafka's: KIP-595, UnifiedLog.read."""
    cdef int32_t low = 0
    cdef int32_t high = p.epoch_count
    cdef int32_t middle
    cdef int32_t epoch = at.last_fetched_epoch
    cdef int64_t end = p.log_end_offset
    at.diverging_epoch = -1
    at.diverging_end = -1
    if epoch < 0:
        return 0
    if p.epoch_count == 0 or epoch > p.epochs[p.epoch_count - 1].epoch:
        return OFFSET_OUT_OF_RANGE
    while low < high:                # the first epoch above the one asked for
        middle = (low + high) >> 1
        if p.epochs[middle].epoch <= epoch:
            low = middle + 1
        else:
            high = middle
    if low < p.epoch_count:
        end = p.epochs[low].start_offset
    if low > 0:
        epoch = p.epochs[low - 1].epoch
    if at.offset < p.log_start_offset:
        return OFFSET_OUT_OF_RANGE
    if epoch < at.last_fetched_epoch or end < at.offset:
        at.diverging_epoch = epoch
        at.diverging_end = end
    return 0


cdef void note(partition_t *p, follower_t *f, int64_t broker_epoch, int64_t offset, int64_t log_start_offset,
               int64_t now_ms) noexcept nogil:
    """Note a fetch of a follower (`lock` held)."""
    cdef int64_t leader_end = p.log_end_offset
    cdef bint moved = f.log_end_offset != offset
    if offset >= leader_end:
        f.last_caught_up_ms = max(f.last_caught_up_ms, now_ms)
    elif offset >= f.last_fetch_leader_end:
        f.last_caught_up_ms = max(f.last_caught_up_ms, f.last_fetch_ms)
    f.last_fetch_leader_end = max(f.last_fetch_leader_end, leader_end)
    f.last_fetch_ms = now_ms
    f.broker_epoch = max(f.broker_epoch, broker_epoch)
    f.log_start_offset = log_start_offset
    f.log_end_offset = offset
    if moved:
        replicas_advance(p, now_ms)
    f.ready = False
    if not f.counts and f.live and offset >= p.high_watermark and offset >= p.epoch_start_offset:
        tell(p, f, now_ms)
    if p.low_waiters != NULL:
        low_watermark_moved(p)


cdef void tell(partition_t *p, follower_t *f, int64_t now_ms) noexcept nogil:
    """Tell ReplicaNews that a follower may be let in (`lock` held)."""
    if f.told_ms and now_ms - f.told_ms < TOLD_EVERY_MS:
        return
    f.told_ms = now_ms
    f.ready = True
    post_news(p)


cdef void post_news(partition_t *p) noexcept nogil:
    """Have the partition among the news (`lock` held)."""
    if p.news_mail.box != NULL and not p.news_posted:
        p.news_posted = True
        partition_ref(p)
        post(&p.news_mail)


cdef int replicas_know_no_more(partition_t *p, int64_t now_ms) noexcept nogil:
    cdef int code = OFFSET_OUT_OF_RANGE
    mutex_lock(&p.lock)
    if (p.role == ROLE_LEADER and p.follower_count and p.news_mail.box != NULL
            and (p.lead_checked_ms == 0 or now_ms - p.lead_checked_ms > CHECK_LASTS_MS)):
        code = NOT_LEADER_OR_FOLLOWER
        p.lead_doubted = True
        post_news(p)
    mutex_unlock(&p.lock)
    return code


cdef int64_t low_watermark(partition_t *p) noexcept nogil:
    cdef int64_t low = p.log_start_offset
    cdef int32_t i
    for i in range(p.follower_count):
        if p.followers[i].live and p.followers[i].log_start_offset < low:
            low = p.followers[i].log_start_offset
    return low


cdef bint low_await(partition_t *p, ack_waiter_t *waiter) noexcept nogil:
    cdef bint waits = False
    partition_ref(p)
    waiter.partition = p
    waiter.linked = False
    mutex_lock(&p.lock)
    if p.role == ROLE_FOLLOWER or p.role == ROLE_STOPPED:
        waiter.error[0] = NOT_LEADER_OR_FOLLOWER
    elif low_watermark(p) < waiter.offset:
        chain_push(p.low_waiters, waiter, waiter.next, waiter.previous)
        waiter.linked = waits = True
    mutex_unlock(&p.lock)
    return waits


cdef void low_give_up(ack_waiter_t *waiter, int16_t code) noexcept nogil:
    cdef partition_t *p = waiter.partition
    mutex_lock(&p.lock)
    if waiter.linked:
        release_low(p, waiter, code)
    mutex_unlock(&p.lock)


cdef void low_watermark_moved(partition_t *p) noexcept nogil:
    cdef int64_t low = low_watermark(p)
    cdef ack_waiter_t *waiter = p.low_waiters
    cdef ack_waiter_t *next_one
    while waiter != NULL:
        next_one = waiter.next
        if waiter.offset <= low:
            release_low(p, waiter, 0)
        waiter = next_one


cdef void release_low(partition_t *p, ack_waiter_t *waiter, int16_t code) noexcept nogil:
    chain_remove(p.low_waiters, waiter, waiter.next, waiter.previous)
    waiter.linked = False
    if code:
        waiter.error[0] = code
    if atomic_add_i32(waiter.pending, -1) == 0:
        post(waiter.mail)


cdef void low_waiters_fail(partition_t *p, int16_t code) noexcept nogil:
    while p.low_waiters != NULL:
        release_low(p, p.low_waiters, code)


cdef inline bint is_caught_up(partition_t *p, const follower_t *f, int64_t now_ms) noexcept nogil:
    return f.log_end_offset == p.log_end_offset or now_ms - f.last_caught_up_ms <= p.options.replica_lag_ms


cdef bint replicas_advance(partition_t *p, int64_t now_ms) noexcept nogil:
    cdef int64_t end = p.log_end_offset
    cdef follower_t *f
    cdef int32_t i
    if p.in_sync_count < replicas_needed(p):
        return False
    if p.options.flush_messages == 1 and p.flushed_offset < end:
        end = p.flushed_offset               # the followers have flushed what they have fetched, too
    for i in range(p.follower_count):
        f = &p.followers[i]
        if f.log_end_offset < end and (f.counts or (f.live and is_caught_up(p, f, now_ms))):
            end = f.log_end_offset
    if end <= p.high_watermark:
        return False
    move_high_watermark(p, end)
    return True


cdef bint note_ended(partition_t *p, int64_t first_offset, int64_t offset) noexcept nogil:
    cdef ended_transaction_t *grown
    if offset < p.high_watermark:
        return True
    # A transaction that began later and has ended earlier holds nothing back that this one does not.
    while p.ended_count and p.ended[p.ended_count - 1].first_offset >= first_offset:
        p.ended_count -= 1
    grown = <ended_transaction_t *>with_room(p.ended, p.ended_count, &p.ended_capacity, sizeof(ended_transaction_t))
    if grown == NULL:
        return False
    p.ended = grown
    p.ended[p.ended_count].first_offset = first_offset
    p.ended[p.ended_count].offset = offset
    p.ended_count += 1
    return True


cdef int64_t bytes_between(partition_t *p, int64_t start, int64_t end) noexcept nogil:
    """Return the bytes of the batches from offset `start` to `end`; INT32_MAX when that is not known (`lock` held).

    It is known of the newest batches of the active segment.
    """
    cdef int64_t from_position
    cdef int64_t to_position = -1
    if end == p.log_end_offset and p.segment_count:
        to_position = p.segments[p.segment_count - 1].size
    else:
        to_position = tail_position(p, end)
    from_position = tail_position(p, start)
    return to_position - from_position if from_position >= 0 and to_position > from_position else INT32_MAX


cdef int64_t tail_position(partition_t *p, int64_t offset) noexcept nogil:
    """Return the position of the batch that begins with `offset`; -1 when the tail ring does not have it."""
    cdef uint32_t low = p.tail_count - TAIL_RING if p.tail_count > TAIL_RING else 0
    cdef uint32_t high = p.tail_count
    cdef uint32_t middle
    while low < high:
        middle = low + (high - low) // 2
        if p.tail[middle & (TAIL_RING - 1)].base_offset < offset:
            low = middle + 1
        else:
            high = middle
    if low == p.tail_count or p.tail[low & (TAIL_RING - 1)].base_offset != offset:
        return -1
    return p.tail[low & (TAIL_RING - 1)].position


cdef void move_high_watermark(partition_t *p, int64_t offset) noexcept nogil:
    cdef int64_t before = p.high_watermark
    cdef int64_t stable_before = p.last_stable_offset
    cdef int64_t stable_bytes = 0
    cdef int32_t passed = 0
    atomic_store_i64(&p.high_watermark, offset)
    while passed < p.ended_count and p.ended[passed].offset < offset:
        passed += 1
    if passed:
        p.ended_count -= passed
        memmove(p.ended, p.ended + passed, <size_t>p.ended_count * sizeof(ended_transaction_t))
    if settle_last_stable(p) and p.fetch_waiters != NULL:
        stable_bytes = bytes_between(p, stable_before, p.last_stable_offset)
    if p.fetch_waiters != NULL:
        wake_fetches(p, bytes_between(p, before, offset), stable_bytes, 0)
    if p.ack_waiters != NULL:
        acks_complete(p)
