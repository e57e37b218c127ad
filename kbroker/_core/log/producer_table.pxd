"""The table of producers.pxd as Python sees it. Recovery and tests fill one; PartitionState.open copies it."""

from kbroker._core.log.producers cimport producers_t

cdef class ProducerTable:
    """The producers of one partition. Owns the table."""
    cdef producers_t *table
