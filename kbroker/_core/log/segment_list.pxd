"""The class with which Python, that is storage.Log, changes a partition's list of segments."""

from libc.stdint cimport int64_t

from kbroker._core.log.directory cimport LogDirectory
from kbroker._core.log.partition cimport partition_t, segment_t

cdef class SegmentHandle:
    """A segment that has left its log.

    It keeps the descriptor open until it is dropped, so no reader has to close it.
    """
    cdef segment_t *s

cdef class SegmentList:
    """The part of PartitionState that handles segments, never made alone. Owns one reference of the partition_t."""
    cdef partition_t *p
    cdef readonly LogDirectory directory
    cdef readonly str topic
    cdef readonly int partition_id
    cdef bint grow_segments(self) noexcept
    cdef int64_t set_rolling(self, bint rolling) noexcept

cdef SegmentHandle handle_of(segment_t *s)     # takes over the caller's reference
