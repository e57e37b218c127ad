"""Flushing: who wants a partition on the device, who waits for it, and the one fdatasync that serves them all.

A partition that wants a flush is queued once in its log directory; flusher threads run `flusher_loop`.
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.log.partition cimport ack_waiter_t, log_dir_t, partition_t

# Link the waiter and ask the flushers; false when it is flushed already (nothing linked, `pending` untouched). When the
# directory is offline: false, and `error` is KAFKA_STORAGE_ERROR.
cdef bint partition_await_flush(partition_t *p, ack_waiter_t *waiter) noexcept nogil
# Release waiters up to flushed_offset, or all of them with an error code (`lock` held). How many references to drop, by
# drop_refs, without the lock.
cdef int32_t complete_acks(partition_t *p, int code) noexcept nogil
cdef void drop_refs(partition_t *p, int32_t count) noexcept nogil
# Let a flusher do it, soon.
cdef void request_flush(partition_t *p) noexcept nogil
# Body of a flusher thread, until log_dir_t.stopping; what is queued is flushed before it returns.
cdef void flusher_loop(log_dir_t *d) noexcept nogil
# fdatasync what is not on the device below offset `until` (-1: the log's end at the call), unless another one's call does
# it meanwhile, and release the acks that waited for it. 0 or a Kafka error code.
cdef int partition_flush(partition_t *p, int64_t until) noexcept nogil
# Segments that end below this need no recovery (`lock` held): records and indexes are on the device.
cdef int64_t recovery_point_locked(partition_t *p) noexcept nogil
