"""The class with which Python, that is storage.Log, drives the hot state of a partition."""

from libc.stdint cimport int32_t

from kbroker._core.log.replica_roles cimport ReplicaRoles

cdef class PartitionState(ReplicaRoles):
    """Python's handle on one partition_t."""
    cdef list leave(self, int32_t state)
