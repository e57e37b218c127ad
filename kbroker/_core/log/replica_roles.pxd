"""The part of a PartitionState that says what this broker is for the partition: alone, leader, follower, or stopped."""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.log.segment_indexes cimport SegmentIndexes

cdef class ReplicaRoles(SegmentIndexes):
    """The part of PartitionState that has its role and, of a leader, its followers; never made alone."""
    cdef int64_t begin(self, int32_t role, int32_t leader_epoch) noexcept nogil
