"""Acknowledgements that wait for replicas or a flush; see acks.pxd.

The waiters of a partition ascend by offset. So a look at them ends at the first one that nothing can have completed.
"""

from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._core.base.mailbox cimport post
from kbroker._core.base.sync cimport *
from kbroker._core.log.flush cimport request_flush
from kbroker._core.log.partition cimport *
from kbroker._core.log.replicas cimport replicas_needed
from kbroker._core.wire.error_codes cimport NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_LEADER_OR_FOLLOWER


cdef bint acks_await(partition_t *p, ack_waiter_t *waiter) noexcept nogil:
    cdef int code
    cdef bint waits
    partition_ref(p)
    waiter.partition = p
    waiter.linked = False
    mutex_lock(&p.lock)
    code = refusal(p)
    if code == NEEDS_HANDLER:
        code = 0                     # closed, which flushes; its acks are answered
    if code == 0 and waiter.for_replicas and (p.role != ROLE_LEADER or p.led_since != waiter.led_since):
        code = NOT_LEADER_OR_FOLLOWER
    waits = code == 0 and not is_complete(p, waiter)
    if waits:
        link(p, waiter)
    elif code == 0:
        code = outcome(p, waiter)
    mutex_unlock(&p.lock)
    if code:
        waiter.error[0] = <int16_t>code
    if waits and waiter.for_flush:
        request_flush(p)
    return waits


cdef inline bint is_complete(partition_t *p, const ack_waiter_t *waiter) noexcept nogil:
    return ((not waiter.for_replicas or p.high_watermark > waiter.offset)
            and (not waiter.for_flush or p.flushed_offset > waiter.offset))


cdef inline int outcome(partition_t *p, const ack_waiter_t *waiter) noexcept nogil:
    """Return the error code of a complete waiter: the ISR may have shrunk since the append."""
    if waiter.for_replicas and p.maximal_count < replicas_needed(p):
        return NOT_ENOUGH_REPLICAS_AFTER_APPEND
    return 0


cdef void link(partition_t *p, ack_waiter_t *waiter) noexcept nogil:
    cdef ack_waiter_t *before = p.ack_waiters_tail
    while before != NULL and before.offset > waiter.offset:
        before = before.previous
    waiter.previous = before
    waiter.next = before.next if before != NULL else p.ack_waiters
    if before != NULL:
        before.next = waiter
    else:
        p.ack_waiters = waiter
    if waiter.next != NULL:
        waiter.next.previous = waiter
    else:
        p.ack_waiters_tail = waiter
    waiter.linked = True


cdef void release(partition_t *p, ack_waiter_t *waiter, int code) noexcept nogil:
    """Unlink a waiter and tell its owner, who may free it as soon as the slot's last waiter has posted the mail."""
    if waiter.previous != NULL:
        waiter.previous.next = waiter.next
    else:
        p.ack_waiters = waiter.next
    if waiter.next != NULL:
        waiter.next.previous = waiter.previous
    else:
        p.ack_waiters_tail = waiter.previous
    waiter.linked = False
    if code:
        waiter.error[0] = <int16_t>code
    if atomic_add_i32(waiter.pending, -1) == 0:
        post(waiter.mail)


cdef void acks_give_up(ack_waiter_t *waiter, int16_t code) noexcept nogil:
    cdef partition_t *p = waiter.partition
    mutex_lock(&p.lock)
    if waiter.linked:
        release(p, waiter, code)
    mutex_unlock(&p.lock)


cdef void acks_forget(ack_waiter_t *waiter) noexcept nogil:
    if waiter.partition != NULL:
        partition_unref(waiter.partition)
        waiter.partition = NULL


cdef int32_t acks_complete(partition_t *p) noexcept nogil:
    cdef int64_t end = max(p.high_watermark if p.role == ROLE_LEADER else 0, p.flushed_offset)
    cdef ack_waiter_t *waiter = p.ack_waiters
    cdef ack_waiter_t *next_one
    cdef int32_t flushed = 0
    while waiter != NULL and waiter.offset < end:
        next_one = waiter.next
        if is_complete(p, waiter):
            flushed += waiter.for_flush
            release(p, waiter, outcome(p, waiter))
        waiter = next_one
    return flushed


cdef void acks_fail(partition_t *p, int code, bint only_flush) noexcept nogil:
    cdef ack_waiter_t *waiter = p.ack_waiters
    cdef ack_waiter_t *next_one
    while waiter != NULL:
        next_one = waiter.next
        if waiter.for_flush or not only_flush:
            release(p, waiter, code)
        waiter = next_one
