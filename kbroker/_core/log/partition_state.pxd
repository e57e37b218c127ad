"""What Python drives a partition's hot state with; storage.Log is the one who does."""

from libc.stdint cimport int32_t

from kbroker._core.log.segment_list cimport SegmentList

cdef class PartitionState(SegmentList):
    """Python's handle on one partition_t."""
    cdef list leave(self, int32_t state)
