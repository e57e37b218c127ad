"""Looks at all partitions of a fetch; see look.pxd."""

from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sync cimport atomic_load_i32, atomic_load_i64, mutex_lock, mutex_unlock
from kbroker._core.base.throttle cimport throttle_wait_ms
from kbroker._core.log.partition cimport (
    NEED_OPEN, NEEDS_HANDLER, ROLE_ALONE, ROLE_FOLLOWER, ROLE_STOPPED, meet_need, need_t, partition_t,
    partition_visible_end, refusal,
)
from kbroker._core.log.position cimport partition_read, patience_t
from kbroker._core.log.replicas cimport (
    fetch_position_t, replicas_check_position, replicas_know_no_more, replicas_serve,
)
from kbroker._core.server.fetch.fetch cimport ELSEWHERE, fetch_entry_t, fetch_t
from kbroker._core.wire.apis cimport FETCH_FOLLOWERS_FROM
from kbroker._core.wire.error_codes cimport (
    UNKNOWN_SERVER_ERROR, OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH,
)

cdef enum:
    # Reads of logs (4 KiB or a batch's header each) that one look may make: a millisecond on a processor, a tenth of a
    # second on a handler. Near a log's end none is needed, elsewhere one or two per partition with the default of
    # index.interval.bytes.
    MOST_PIECES = 1000
    MOST_PIECES_ELSEWHERE = 100000

    LISTED_ABORTED_SIZE = 16     # bytes of an aborted transaction in a response; fetch.max.bytes limits them
    MOST_UNKNOWN_WAIT = 1000     # unknown partitions; a fetch that names more is not parked


cdef int read_entry(fetch_t *f, fetch_entry_t *e, int64_t left, bint at_least_one, patience_t *patience) noexcept nogil:
    cdef int64_t limit = min(<int64_t>e.max_bytes, left)
    cdef int32_t leader_epoch
    cdef int code
    e.diverging_epoch = -1
    e.throttled = False
    if atomic_load_i32(&e.partition.role) == ROLE_STOPPED:
        return NOT_LEADER_OR_FOLLOWER    # no leader epoch is known either, so none can be too new
    if e.current_leader_epoch >= 0:
        leader_epoch = atomic_load_i32(&e.partition.leader_epoch)
        if e.current_leader_epoch < leader_epoch:
            return FENCED_LEADER_EPOCH
        if e.current_leader_epoch > leader_epoch:
            return UNKNOWN_LEADER_EPOCH
    if atomic_load_i32(&e.partition.role) != ROLE_ALONE or f.replica_id >= 0 or e.last_fetched_epoch >= 0:
        code = read_as_replica(f, e, patience.may_block)
        if code:
            return code
        if e.diverging_epoch >= 0 or e.throttled:
            limit = 0            # no records; only the offsets of the log are read
            at_least_one = False
    e.visible_end = partition_visible_end(e.partition, f.until)
    code = partition_read(e.partition, e.offset, max(limit, 0), at_least_one, f.until, patience, &e.read)
    if e.diverging_epoch >= 0:
        return 0                 # its offset need not be in this log
    if code == 0 and e.read.segment != NULL and limit < 0:
        return UNKNOWN_SERVER_ERROR      # Kafka's log answers a negative size so
    if code == OFFSET_OUT_OF_RANGE and f.replica_id < 0 and e.offset > atomic_load_i64(&e.partition.log_end_offset):
        return replicas_know_no_more(e.partition, monotonic_ms())
    return code


cdef int read_offsets(fetch_t *f, fetch_entry_t *e, patience_t *patience) noexcept nogil:
    """Read only the log's offsets, for a client that is to fetch from another replica."""
    cdef int32_t leader_epoch = atomic_load_i32(&e.partition.leader_epoch)
    if 0 <= e.current_leader_epoch < leader_epoch:
        return FENCED_LEADER_EPOCH
    if e.current_leader_epoch > leader_epoch:
        return UNKNOWN_LEADER_EPOCH
    partition_read(e.partition, e.offset, 0, False, f.until, patience, &e.read)
    return 0


cdef int read_as_replica(fetch_t *f, fetch_entry_t *e, bint may_block) noexcept nogil:
    """Do what comes before the read of a cluster's partition: role, follower, last fetched epoch.

    Returns 0 or an error code; NEEDS_HANDLER, without `may_block` only: the log is closed.
    """
    cdef partition_t *p = e.partition
    cdef fetch_position_t at
    cdef need_t need
    cdef int32_t role = atomic_load_i32(&p.role)
    cdef int code
    at.diverging_epoch = at.diverging_end = -1
    if role == ROLE_STOPPED or (role == ROLE_FOLLOWER and (f.replica_id >= 0 or f.version < FETCH_FOLLOWERS_FROM)):
        return NOT_LEADER_OR_FOLLOWER
    code = refusal(p)
    if code == NEEDS_HANDLER and may_block:
        need.kind = NEED_OPEN
        need.base_offset = -1
        code = meet_need(p, &need)
    if code:
        return code
    at.offset = e.offset
    at.last_fetched_epoch = e.last_fetched_epoch
    if f.replica_id < 0:
        code = replicas_check_position(p, &at)
    elif role == ROLE_ALONE:
        code = UNKNOWN_LEADER_EPOCH      # it has no followers
    else:
        at.in_sync = False
        code = replicas_serve(p, f.replica_id, f.replica_epoch, &at, e.follower_start, monotonic_ms(), not f.noted)
        # KIP-73: only a replica that is not in sync waits, or its wait would hold back what is committed.
        e.throttled = (code == 0 and p.options.leader_throttled and not at.in_sync
                       and is_over_throttle(f))
    e.diverging_epoch = at.diverging_epoch
    e.diverging_end = at.diverging_end
    if code == UNKNOWN_LEADER_EPOCH and e.current_leader_epoch < 0:
        return NOT_LEADER_OR_FOLLOWER    # its sender is too old to know the other error
    return code


cdef inline bint is_over_throttle(const fetch_t *f) noexcept nogil:
    return f.cache.throttle != NULL and throttle_wait_ms(f.cache.throttle, monotonic_ms()) > 0


cdef int look(fetch_t *f, bint may_block) noexcept nogil:
    cdef int64_t left = min(f.max_bytes, f.cache.fetch_max_bytes)
    cdef int64_t aborted_left = f.cache.fetch_max_bytes // LISTED_ABORTED_SIZE
    cdef int32_t unknown = 0
    cdef patience_t patience
    cdef bint at_least_one = True
    cdef bint interesting = False
    cdef fetch_entry_t *e
    cdef int32_t i
    cdef int code
    patience.may_block = may_block
    patience.pieces = MOST_PIECES_ELSEWHERE if may_block else MOST_PIECES
    f.bytes_ready = 0
    f.answer_now = f.max_wait_ms <= 0
    for i in range(f.entry_count):
        e = &f.entries[i]
        drop_read(e)
        if e.unknown == ELSEWHERE:
            f.answer_now = interesting = True
            continue
        if e.preferred >= 0:
            f.answer_now = interesting = True
            e.error = <int16_t>read_offsets(f, e, &patience)
            if e.error:
                e.preferred = -1
            continue
        if e.unknown:
            unknown += 1
            continue
        interesting = True
        code = read_entry(f, e, left, at_least_one, &patience)
        if code == NEEDS_HANDLER:
            drop_read(e)
            return NEEDS_HANDLER
        e.error = <int16_t>code
        if code != 0:
            drop_read(e)
            f.answer_now = True
        elif e.diverging_epoch >= 0:
            f.answer_now = True
        elif e.read.segment != NULL:
            at_least_one = False
            f.bytes_ready += e.read.size
            left -= e.read.size
            aborted_left -= e.read.aborted_count
        if f.bytes_ready > 0 and (aborted_left < 0 or patience.pieces < 0):
            left = 0             # the client fetches the others next
            f.answer_now = True
        left = max(left, 0)      # a negative max_bytes is an error of the first partition only, as in Kafka
    f.noted = True
    if (not interesting or unknown > MOST_UNKNOWN_WAIT
            or f.bytes_ready >= min(f.min_bytes, min(f.max_bytes, f.cache.fetch_max_bytes))):
        f.answer_now = True
    if not f.answer_now and f.bytes_ready > 0:
        f.answer_now = has_older_segment(f)
    return 0


cdef bint has_older_segment(fetch_t *f) noexcept nogil:
    """Return whether a region is of an inactive segment: it cannot grow, so it is no use to wait for more."""
    cdef fetch_entry_t *e
    cdef bint older = False
    cdef int32_t i
    for i in range(f.entry_count):
        e = &f.entries[i]
        if e.read.segment != NULL and not older:
            mutex_lock(&e.partition.lock)
            older = (e.partition.segment_count == 0
                     or e.partition.segments[e.partition.segment_count - 1] != e.read.segment)
            mutex_unlock(&e.partition.lock)
    return older
