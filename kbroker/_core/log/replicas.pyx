"""The leader's followers and the high watermark; see replicas.pxd."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t
from libc.string cimport memmove

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.mailbox cimport post
from kbroker._core.base.sync cimport *
from kbroker._core.log.acks cimport acks_complete
from kbroker._core.log.partition cimport *
from kbroker._core.wire.error_codes cimport NOT_LEADER_OR_FOLLOWER, UNKNOWN_LEADER_EPOCH

cdef enum:
    TOLD_EVERY_MS = 100          # how often ReplicaNews is told of one follower that may be let in


cdef follower_t *find_follower(partition_t *p, int32_t node_id) noexcept nogil:
    cdef int32_t i
    for i in range(p.follower_count):
        if p.followers[i].node_id == node_id:
            return &p.followers[i]
    return NULL


cdef int replicas_fetched(partition_t *p, int32_t node_id, int64_t broker_epoch, int64_t offset,
                          int64_t log_start_offset, int64_t now_ms) noexcept nogil:
    cdef follower_t *f
    cdef int64_t leader_end
    cdef int code = 0
    cdef bint moved
    mutex_lock(&p.lock)
    f = find_follower(p, node_id) if p.role == ROLE_LEADER else NULL
    if p.role != ROLE_LEADER:
        code = NOT_LEADER_OR_FOLLOWER
    elif f == NULL:
        code = UNKNOWN_LEADER_EPOCH
    elif 0 <= broker_epoch < f.broker_epoch:
        code = NOT_LEADER_OR_FOLLOWER        # a fetch of the broker's former life
    else:
        now_ms = replica_clock(p, now_ms)
        leader_end = p.log_end_offset
        if offset >= leader_end:
            f.last_caught_up_ms = max(f.last_caught_up_ms, now_ms)
        elif offset >= f.last_fetch_leader_end:
            f.last_caught_up_ms = max(f.last_caught_up_ms, f.last_fetch_ms)
        f.last_fetch_leader_end = max(f.last_fetch_leader_end, leader_end)
        f.last_fetch_ms = now_ms
        f.broker_epoch = max(f.broker_epoch, broker_epoch)
        f.log_start_offset = log_start_offset
        moved = f.log_end_offset != offset
        f.log_end_offset = offset
        if moved:
            replicas_advance(p, now_ms)
        if not f.counts and f.live and offset >= p.high_watermark and offset >= p.epoch_start_offset:
            tell(p, f, now_ms)
    mutex_unlock(&p.lock)
    return code


cdef void tell(partition_t *p, follower_t *f, int64_t now_ms) noexcept nogil:
    """Tell ReplicaNews that a follower may be let in (`lock` held)."""
    if f.told_ms and now_ms - f.told_ms < TOLD_EVERY_MS:
        return
    f.told_ms = now_ms
    if p.news_mail.box != NULL and not p.news_posted:
        p.news_posted = True
        partition_ref(p)
        post(&p.news_mail)


cdef inline bint is_caught_up(partition_t *p, const follower_t *f, int64_t now_ms) noexcept nogil:
    return f.log_end_offset == p.log_end_offset or now_ms - f.last_caught_up_ms <= p.options.replica_lag_ms


cdef bint replicas_advance(partition_t *p, int64_t now_ms) noexcept nogil:
    cdef int64_t end = p.log_end_offset
    cdef follower_t *f
    cdef int32_t i
    if p.in_sync_count < replicas_needed(p):
        return False
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
