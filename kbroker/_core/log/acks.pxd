"""Acknowledgements that wait until a record is replicated, flushed, or both. The struct is in partition.pxd."""

from libc.stdint cimport int16_t, int32_t

from kbroker._core.log.partition cimport ack_waiter_t, partition_t

# Link the waiter to `p`, with a reference, and request a flush if it waits for one. Returns false and leaves `pending`
# alone when there is nothing to wait for: the record is replicated and flushed already, or waiter.error has the error
# code. Either way acks_forget has to be called later.
cdef bint acks_await(partition_t *p, ack_waiter_t *waiter) noexcept nogil
# End the wait of a waiter that still waits with an error code; a no-op for others. Any thread that keeps the waiter
# alive.
cdef void acks_give_up(ack_waiter_t *waiter, int16_t code) noexcept nogil
# Drop the waiter's reference. It waits no more.
cdef void acks_forget(ack_waiter_t *waiter) noexcept nogil
# Release the waiters whose records are replicated and flushed (`lock` held). Returns how many waited for a flush.
cdef int32_t acks_complete(partition_t *p) noexcept nogil
# Release all waiters with an error code, or only those that wait for a flush (`lock` held).
cdef void acks_fail(partition_t *p, int code, bint only_flush) noexcept nogil
