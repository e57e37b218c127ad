"""Flushing logs; see flush.pxd."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t

from kbroker._core.base.clock cimport monotonic_ns
from kbroker._core.base.links cimport queue_push, queue_remove
from kbroker._core.base.sync cimport *
from kbroker._core.log.acks cimport acks_complete, acks_fail
from kbroker._core.log.io cimport io_sync
from kbroker._core.log.partition cimport *
from kbroker._core.log.replicas cimport replicas_advance

cdef enum:
    # partition_t.flush_state
    FLUSH_IDLE = 0
    FLUSH_QUEUED = 1
    FLUSH_RUNNING = 2
    FLUSH_RUNNING_AGAIN = 3

    FLUSH_DUE = -102             # look_for_unflushed, besides NEEDS_HANDLER

ctypedef struct unflushed_t:
    # The oldest segment that is not on the device.
    segment_t *segment           # a reference
    int64_t end                  # its fdatasync makes everything below this offset durable
    int64_t appended_ms          # partition_t.last_append_ms
    uint32_t truncations         # partition_t.truncations
    bint is_last                 # it is the active segment
    need_t need                  # with NEEDS_HANDLER only

# --- the queue of a log directory -------------------------------------------------------------------

cdef void request_flush(partition_t *p) noexcept nogil:
    cdef log_dir_t *d = lock_directory(p)
    if p.flush_state == FLUSH_IDLE:
        enqueue_flush(d, p)
        partition_ref(p)
    elif p.flush_state == FLUSH_RUNNING:
        p.flush_state = FLUSH_RUNNING_AGAIN
    mutex_unlock(&d.lock)


cdef log_dir_t *lock_directory(partition_t *p) noexcept nogil:
    """Return the directory that the log is in, with its lock held: the log does not move meanwhile."""
    cdef log_dir_t *d
    while True:
        d = p.dir
        mutex_lock(&d.lock)
        if d == p.dir:
            return d
        mutex_unlock(&d.lock)


cdef void partition_set_directory(partition_t *p, log_dir_t *to) noexcept nogil:
    cdef log_dir_t *d
    cdef bint queued
    mutex_lock(&p.flush_lock)
    mutex_lock(&p.append_lock)
    mutex_lock(&p.lock)
    d = lock_directory(p)
    queued = p.flush_state == FLUSH_QUEUED
    if queued:
        queue_remove(d.flush_head, d.flush_tail, p, p.flush_next)
    p.dir = to
    mutex_unlock(&d.lock)
    if queued:
        mutex_lock(&to.lock)
        enqueue_flush(to, p)
        mutex_unlock(&to.lock)
    mutex_unlock(&p.lock)
    mutex_unlock(&p.append_lock)
    mutex_unlock(&p.flush_lock)


cdef void enqueue_flush(log_dir_t *d, partition_t *p) noexcept nogil:
    p.flush_state = FLUSH_QUEUED
    queue_push(d.flush_head, d.flush_tail, p, p.flush_next)
    condition_signal(&d.wanted)


cdef void flusher_loop(log_dir_t *d) noexcept nogil:
    cdef partition_t *p
    cdef log_dir_t *now
    cdef bint again
    mutex_lock(&d.lock)
    while True:
        while d.flush_head == NULL and not d.stopping:
            condition_wait(&d.wanted, &d.lock)
        p = d.flush_head
        if p == NULL:
            break
        d.flush_head = p.flush_next
        p.flush_state = FLUSH_RUNNING
        mutex_unlock(&d.lock)
        partition_flush(p, -1)
        now = lock_directory(p)      # it may have moved meanwhile
        again = p.flush_state == FLUSH_RUNNING_AGAIN
        if again:
            enqueue_flush(now, p)
        else:
            p.flush_state = FLUSH_IDLE
        mutex_unlock(&now.lock)
        if not again:
            partition_unref(p)
        mutex_lock(&d.lock)
    mutex_unlock(&d.lock)

# --- one partition ----------------------------------------------------------------------------------

cdef int32_t first_unflushed(partition_t *p) noexcept nogil:
    """Return the index of the oldest segment not known to be on the device; -1 without segments (`lock` held)."""
    cdef int32_t i = p.segment_count - 1
    while i > 0 and (p.segments[i].base_offset > p.flushed_offset or p.segments[i - 1].indexes_dirty):
        i -= 1
    return i


cdef int64_t recovery_point_locked(partition_t *p) noexcept nogil:
    """Return the offset below which segments need no recovery: records and indexes are on the device (`lock` held)."""
    cdef int32_t i = first_unflushed(p)
    if i < 0 or i == p.segment_count - 1:
        return p.flushed_offset
    return p.segments[i].base_offset if p.segments[i].base_offset < p.flushed_offset else p.flushed_offset


cdef int partition_flush(partition_t *p, int64_t until) noexcept nogil:
    cdef unflushed_t next
    cdef int failed
    cdef int code
    cdef bint is_news
    while True:
        mutex_lock(&p.flush_lock)
        mutex_lock(&p.lock)
        if until < 0:
            until = p.log_end_offset
        code = look_for_unflushed(p, until, &next)
        if code == FLUSH_DUE:
            mutex_unlock(&p.lock)
            failed = sync_segment(p, &next)
            # Never tried again, not even by a thread that waits for the lock: the kernel may have dropped the unwritten
            # pages.
            is_news = failed != 0 and take_offline(p)
            mutex_unlock(&p.flush_lock)
            if is_news:
                tell_offline(p, failed)
            continue
        if code != NEEDS_HANDLER:
            if code:
                acks_fail(p, code, False)
            else:
                acks_complete(p)
            mutex_unlock(&p.lock)
            mutex_unlock(&p.flush_lock)
            return code
        mutex_unlock(&p.lock)
        mutex_unlock(&p.flush_lock)
        # Without flush_lock: storage.Log flushes too, while it holds its own lock.
        code = meet_need(p, &next.need)
        if code:
            # The acks that wait for a flush get the error; the records stay and are flushed when that works again.
            mutex_lock(&p.lock)
            acks_fail(p, code, True)
            mutex_unlock(&p.lock)
            return code


cdef int look_for_unflushed(partition_t *p, int64_t until, unflushed_t *next) noexcept nogil:
    """Return the next step of a flush (`lock` held).

    FLUSH_DUE: sync next.segment, a reference. NEEDS_HANDLER: meet `next.need`. Else the outcome: 0 or an error code.
    """
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
        next.need.kind = NEED_SEGMENT if s.fd < 0 else NEED_DIRECTORY
        next.need.base_offset = s.base_offset
        return NEEDS_HANDLER
    segment_ref(s)
    next.segment = s
    next.end = p.log_end_offset if next.is_last else p.segments[i + 1].base_offset
    next.truncations = p.truncations
    next.appended_ms = p.last_append_ms
    return FLUSH_DUE


cdef int sync_segment(partition_t *p, unflushed_t *next) noexcept nogil:
    """Sync the segment with fdatasync and drop the reference to it (`flush_lock` held).

    Returns 0 after the acks that waited for it are released, or -errno.
    """
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
        if failed == 0 and s.aborted_fd >= 0:
            failed = io_sync(s.file_system, s.aborted_fd)
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
            wake_fetches(p, INT32_MAX, INT32_MAX, 0)
        if p.options.flush_messages == 1 and p.role == ROLE_LEADER:
            replicas_advance(p, replica_clock(p, monotonic_ns() // 1000000))
    completed = acks_complete(p)
    mutex_unlock(&p.lock)
    segment_unref(s)
    atomic_add_i64(&p.dir.acks_flushed, completed)
    return 0
