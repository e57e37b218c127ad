"""Partitions by name and by topic id: a hash table with one lock, held for one look."""

from libc.stdint cimport int32_t, uint8_t

from kbroker._core.base.sync cimport mutex_t
from kbroker._core.log.partition cimport partition_t

cdef enum:
    MOST_TOPIC_NAME = 249      # bytes: a longer name is no topic's

ctypedef struct topic_id_t:
    uint8_t topic_id[16]
    int32_t partitions         # how many of it are registered
    topic_id_t *next

ctypedef struct registry_t:
    mutex_t lock
    int32_t bucket_count       # a power of two, the same for the three
    int32_t count
    partition_t **by_name
    partition_t **by_id
    topic_id_t **topic_ids

cdef class Registry:
    """All partitions this broker leads, by (topic name, partition) and by (topic id, partition)."""
    cdef registry_t *table
    # A reference for the caller, or NULL.
    cdef partition_t *find(self, const uint8_t *topic, int32_t topic_size, int32_t partition_id) noexcept nogil
    cdef partition_t *find_by_id(self, const uint8_t *topic_id, int32_t partition_id) noexcept nogil
    cdef bint knows_topic_id(self, const uint8_t *topic_id) noexcept nogil
