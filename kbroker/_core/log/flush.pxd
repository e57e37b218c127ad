"""Flushing: which partitions want a flush, which acknowledgements wait for it, and one fdatasync for them all.

A partition that wants a flush is queued once in its log directory. Flusher threads run `flusher_loop`.
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.log.partition cimport ack_waiter_t, log_dir_t, partition_t

# Link the waiter and request a flush. Returns false and links nothing, `pending` untouched, when the waiter's record is
# flushed already, or when the directory is offline or the partition is deleted: `waiter.error` then has the error code.
cdef bint partition_await_flush(partition_t *p, ack_waiter_t *waiter) noexcept nogil
# Release the waiters up to flushed_offset (`code` 0), or all of them with the error code `code` (`lock` held). Returns
# how many references the caller has to drop with drop_refs once it has released the lock.
cdef int32_t complete_acks(partition_t *p, int code) noexcept nogil
cdef void drop_refs(partition_t *p, int32_t count) noexcept nogil
# Queue the partition for a flusher thread, which flushes it soon. Does not wait.
cdef void request_flush(partition_t *p) noexcept nogil
# The body of a flusher thread, until log_dir_t.stopping. It flushes what is queued before it returns.
cdef void flusher_loop(log_dir_t *d) noexcept nogil
# Return when everything below offset `until` (-1: the log's end at the call) is on the device: by an fdatasync, or by
# the one of another caller. Releases the acknowledgements that waited for it. Returns 0 or a Kafka error code.
cdef int partition_flush(partition_t *p, int64_t until) noexcept nogil
# The offset below which segments need no recovery, because their records and indexes are on the device (`lock` held).
cdef int64_t recovery_point_locked(partition_t *p) noexcept nogil
