"""What Python drives a partition's hot state with; storage.Log is the one who does."""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.partition cimport log_dir_t, partition_t, segment_t

cdef class LogDirectory:
    """A log directory's flush queue and health, shared by its partitions."""
    cdef log_dir_t dir
    cdef readonly str path
    cdef object on_offline     # callable(reason) or None; called once, on the thread that saw the failure

cdef class SegmentHandle:
    """A segment that has left its log; keeps the descriptor until dropped, so that no reader has to close it."""
    cdef segment_t *s

cdef class PartitionState:
    """Python's handle on one partition_t."""
    cdef partition_t *p
    cdef readonly LogDirectory directory
    cdef readonly str topic
    cdef readonly int partition_id
    cdef list leave(self, int32_t state)
    cdef bint grow_segments(self) noexcept
    cdef int64_t set_rolling(self, bint rolling) noexcept
