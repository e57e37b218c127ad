"""Partitions by topic name and by topic id: hash tables under one lock, which is held for one lookup."""

from libc.stdint cimport int32_t, uint8_t

from kbroker._core.base.sync cimport mutex_t
from kbroker._core.log.partition cimport partition_t

cdef enum:
    MOST_TOPIC_NAME = 249      # bytes: no topic has a longer name

ctypedef struct topic_id_t:
    uint8_t topic_id[16]
    int32_t partitions         # how many partitions of the topic are registered
    topic_id_t *next

ctypedef struct partition_table_t:
    mutex_t lock
    int32_t bucket_count       # of each of the three tables, a power of two
    int32_t count              # partitions
    partition_t **by_name
    partition_t **by_id
    topic_id_t **topic_ids

cdef class PartitionTable:
    """All partitions this broker leads, by (topic name, partition) and by (topic id, partition)."""
    cdef partition_table_t *table
    # Any thread. find, find_by_id: a reference that the caller owns, or NULL.
    cdef partition_t *find(self, const uint8_t *topic, int32_t topic_size, int32_t partition_id) noexcept nogil
    cdef partition_t *find_by_id(self, const uint8_t *topic_id, int32_t partition_id) noexcept nogil
    cdef bint knows_topic_id(self, const uint8_t *topic_id) noexcept nogil
