"""Partitions by topic name and by topic id: hash tables under one lock, which is held for one lookup.

The table also knows the topics of a cluster that have partitions on other brokers only (`set_elsewhere`): a request for
one of those is answered NOT_LEADER_OR_FOLLOWER, not UNKNOWN_TOPIC_OR_PARTITION.
"""

from libc.stdint cimport int16_t, int32_t, uint8_t

from kbroker._core.base.mailbox cimport mailbox_t
from kbroker._core.base.sync cimport mutex_t
from kbroker._core.log.partition cimport partition_t

cdef enum:
    MOST_TOPIC_NAME = 249      # bytes: no topic has a longer name

ctypedef struct topic_id_t:
    uint8_t topic_id[16]
    int32_t partitions         # how many partitions of the topic are registered
    topic_id_t *next

ctypedef struct elsewhere_t:
    # A topic of the cluster; partitions that are registered here come before it.
    uint8_t topic_id[16]
    char *topic                # UTF-8, owned
    int16_t topic_size
    int32_t partition_count
    elsewhere_t *name_next
    elsewhere_t *id_next

ctypedef struct partition_table_t:
    mutex_t lock
    int32_t bucket_count       # of each of the three tables, a power of two
    int32_t count              # partitions
    partition_t **by_name
    partition_t **by_id
    topic_id_t **topic_ids
    int32_t elsewhere_count
    int32_t elsewhere_buckets  # of each of the next two, a power of two, or 0
    elsewhere_t **elsewhere_by_name
    elsewhere_t **elsewhere_by_id

cdef class ReplicaNews:
    """A mailbox for partitions of which a follower may be let into the ISR."""
    cdef mailbox_t box

cdef class PartitionTable:
    """All partitions that this broker has, by (topic name, partition) and by (topic id, partition)."""
    cdef partition_table_t *table
    cdef readonly ReplicaNews news     # None: its partitions have no followers
    # Any thread. find, find_by_id: a reference that the caller owns, or NULL.
    cdef partition_t *find(self, const uint8_t *topic, int32_t topic_size, int32_t partition_id) noexcept nogil
    cdef partition_t *find_by_id(self, const uint8_t *topic_id, int32_t partition_id) noexcept nogil
    cdef bint knows_topic_id(self, const uint8_t *topic_id) noexcept nogil
    # Whether a partition that was not found is on other brokers.
    cdef bint is_elsewhere(self, const uint8_t *topic, int32_t topic_size, int32_t partition_id) noexcept nogil
    cdef bint is_elsewhere_by_id(self, const uint8_t *topic_id, int32_t partition_id) noexcept nogil
