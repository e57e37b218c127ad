"""The class with which Python, that is storage.Log, opens, writes and maps the index files of segments."""

from kbroker._core.log.segment_list cimport SegmentList

cdef class SegmentIndexes(SegmentList):
    """The part of PartitionState that handles index files, never made alone."""
