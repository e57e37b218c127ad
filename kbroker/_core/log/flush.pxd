"""Flushing: which partitions want a flush, and one fdatasync for all acknowledgements that wait for it (acks.pxd).

A partition that wants a flush is queued once in its log directory. Flusher threads run `flusher_loop`.
"""

from libc.stdint cimport int64_t

from kbroker._core.log.partition cimport log_dir_t, partition_t

# Queue the partition for a flusher thread, which flushes it soon. Does not wait.
cdef void request_flush(partition_t *p) noexcept nogil
# Note that the log is in another directory from now on. Its files are closed, and the directories outlive it.
cdef void partition_set_directory(partition_t *p, log_dir_t *to) noexcept nogil
# The body of a flusher thread, until log_dir_t.stopping. It flushes what is queued before it returns.
cdef void flusher_loop(log_dir_t *d) noexcept nogil
# Return when everything below offset `until` (-1: the log's end at the call) is on the device: by an fdatasync, or by
# the one of another caller. Releases the acknowledgements that waited for it. Returns 0 or a Kafka error code.
cdef int partition_flush(partition_t *p, int64_t until) noexcept nogil
# The offset below which segments need no recovery, because their records and indexes are on the device (`lock` held).
cdef int64_t recovery_point_locked(partition_t *p) noexcept nogil
