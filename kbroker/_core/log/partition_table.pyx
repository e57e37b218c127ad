"""Partitions by name and by topic id; see partition_table.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from kbroker._core.base.seeded_hash cimport seeded_hash
from kbroker._core.base.sync cimport mutex_destroy, mutex_init, mutex_lock, mutex_unlock
from kbroker._core.log.partition cimport partition_ref, partition_t, partition_unref
from kbroker._core.log.partition_state cimport PartitionState


cdef inline uint32_t hash_of(const uint8_t *topic, int64_t size, int32_t partition_id) noexcept nogil:
    return <uint32_t>seeded_hash(topic, size, <uint32_t>partition_id)


cdef class PartitionTable:
    """All partitions that this broker leads. Every method may be called from any thread."""

    def __cinit__(self):
        self.table = <partition_table_t *>calloc(1, sizeof(partition_table_t))
        if self.table == NULL:
            raise MemoryError
        mutex_init(&self.table.lock, NULL)
        if resize(self.table, 256) < 0:
            raise MemoryError

    def __dealloc__(self):
        cdef partition_table_t *table = self.table
        cdef partition_t *p
        cdef partition_t *next_one
        cdef topic_id_t *topic
        cdef topic_id_t *next_topic
        cdef int32_t i
        if table == NULL:
            return
        for i in range(table.bucket_count):
            p = table.by_name[i]
            while p != NULL:
                next_one = p.name_next
                partition_unref(p)
                p = next_one
            topic = table.topic_ids[i]
            while topic != NULL:
                next_topic = topic.next
                free(topic)
                topic = next_topic
        mutex_destroy(&table.lock)
        free(table.by_name)
        free(table.by_id)
        free(table.topic_ids)
        free(table)

    def __len__(self):
        return self.table.count

    @property
    def longest_chain(self):
        """The number of partitions in the longest chain of the table by name."""
        cdef partition_t *p
        cdef int32_t i
        cdef int32_t length
        cdef int32_t longest = 0
        mutex_lock(&self.table.lock)
        for i in range(self.table.bucket_count):
            length = 0
            p = self.table.by_name[i]
            while p != NULL:
                length += 1
                p = p.name_next
            longest = max(longest, length)
        mutex_unlock(&self.table.lock)
        return longest

    def add(self, PartitionState state not None):
        """Register a partition. It must not be registered yet, here or in another table."""
        cdef partition_table_t *table = self.table
        cdef partition_t *p = state.p
        cdef bint added
        with nogil:
            mutex_lock(&table.lock)
            added = register_partition(table, p)
            mutex_unlock(&table.lock)
        if not added:
            raise MemoryError

    def remove(self, PartitionState state not None):
        """Unregister a partition; references to it stay valid. No-op when it is not registered."""
        cdef partition_table_t *table = self.table
        cdef partition_t *p = state.p
        cdef bint removed
        with nogil:
            mutex_lock(&table.lock)
            removed = unregister_partition(table, p)
            mutex_unlock(&table.lock)
            if removed:
                partition_unref(p)

    def contains(self, str topic not None, int partition_id):
        """Return whether the partition is registered."""
        cdef bytes name = topic.encode()
        cdef partition_t *p = self.find(<const uint8_t *>PyBytes_AS_STRING(name), <int32_t>len(name), partition_id)
        if p != NULL:
            partition_unref(p)
        return p != NULL

    cdef partition_t *find(self, const uint8_t *topic, int32_t topic_size, int32_t partition_id) noexcept nogil:
        cdef partition_table_t *table = self.table
        cdef partition_t *p
        cdef uint32_t value
        if topic_size > MOST_TOPIC_NAME:
            return NULL          # not hashed: a request can repeat a long name at a cost of four bytes
        value = hash_of(topic, topic_size, partition_id)
        mutex_lock(&table.lock)
        p = table.by_name[value & <uint32_t>(table.bucket_count - 1)]
        while p != NULL and not (
            p.partition_id == partition_id and p.topic_size == topic_size
            and memcmp(p.topic, topic, <size_t>topic_size) == 0
        ):
            p = p.name_next
        if p != NULL:
            partition_ref(p)
        mutex_unlock(&table.lock)
        return p

    cdef partition_t *find_by_id(self, const uint8_t *topic_id, int32_t partition_id) noexcept nogil:
        cdef partition_table_t *table = self.table
        cdef partition_t *p
        cdef uint32_t value = hash_of(topic_id, 16, partition_id)
        mutex_lock(&table.lock)
        p = table.by_id[value & <uint32_t>(table.bucket_count - 1)]
        while p != NULL and not (p.partition_id == partition_id and memcmp(p.topic_id, topic_id, 16) == 0):
            p = p.id_next
        if p != NULL:
            partition_ref(p)
        mutex_unlock(&table.lock)
        return p

    cdef bint knows_topic_id(self, const uint8_t *topic_id) noexcept nogil:
        cdef partition_table_t *table = self.table
        cdef bint known
        mutex_lock(&table.lock)
        known = find_topic(table, topic_id)[0] != NULL
        mutex_unlock(&table.lock)
        return known


cdef inline topic_id_t **find_topic(partition_table_t *table, const uint8_t *topic_id) noexcept nogil:
    """Return the link that points to the topic, or the link at the end of its chain, which is NULL."""
    cdef topic_id_t **link = &table.topic_ids[hash_of(topic_id, 16, 0) & <uint32_t>(table.bucket_count - 1)]
    while link[0] != NULL and memcmp(link[0].topic_id, topic_id, 16) != 0:
        link = &link[0].next
    return link


cdef inline void chain(partition_table_t *table, partition_t *p) noexcept nogil:
    cdef uint32_t mask = <uint32_t>(table.bucket_count - 1)
    cdef uint32_t at = hash_of(<uint8_t *>p.topic, p.topic_size, p.partition_id) & mask
    p.name_next = table.by_name[at]
    table.by_name[at] = p
    at = hash_of(p.topic_id, 16, p.partition_id) & mask
    p.id_next = table.by_id[at]
    table.by_id[at] = p


cdef bint register_partition(partition_table_t *table, partition_t *p) noexcept nogil:
    cdef topic_id_t **link
    cdef topic_id_t *topic
    if table.count >= table.bucket_count and resize(table, table.bucket_count * 2) < 0:
        return False
    link = find_topic(table, p.topic_id)
    if link[0] == NULL:
        topic = <topic_id_t *>calloc(1, sizeof(topic_id_t))
        if topic == NULL:
            return False
        memcpy(topic.topic_id, p.topic_id, 16)
        link[0] = topic
    link[0].partitions += 1
    chain(table, p)
    partition_ref(p)
    table.count += 1
    return True


cdef bint unregister_partition(partition_table_t *table, partition_t *p) noexcept nogil:
    cdef uint32_t mask = <uint32_t>(table.bucket_count - 1)
    cdef partition_t **link = &table.by_name[
        hash_of(<uint8_t *>p.topic, p.topic_size, p.partition_id) & mask
    ]
    cdef topic_id_t **topic_link
    cdef topic_id_t *topic
    while link[0] != NULL and link[0] != p:
        link = &link[0].name_next
    if link[0] == NULL:
        return False
    link[0] = p.name_next
    link = &table.by_id[hash_of(p.topic_id, 16, p.partition_id) & mask]
    while link[0] != p:
        link = &link[0].id_next
    link[0] = p.id_next
    topic_link = find_topic(table, p.topic_id)
    topic = topic_link[0]
    topic.partitions -= 1
    if topic.partitions == 0:
        topic_link[0] = topic.next
        free(topic)
    table.count -= 1
    return True


cdef int resize(partition_table_t *table, int32_t bucket_count) noexcept nogil:
    """Change the number of buckets. Returns 0, or -1 when memory is out and nothing has changed."""
    cdef partition_t **by_name = <partition_t **>calloc(<size_t>bucket_count, sizeof(partition_t *))
    cdef partition_t **by_id = <partition_t **>calloc(<size_t>bucket_count, sizeof(partition_t *))
    cdef topic_id_t **topic_ids = <topic_id_t **>calloc(<size_t>bucket_count, sizeof(topic_id_t *))
    cdef partition_t **old_by_name = table.by_name
    cdef topic_id_t **old_topic_ids = table.topic_ids
    cdef partition_t *p
    cdef partition_t *next_one
    cdef topic_id_t *topic
    cdef topic_id_t *next_topic
    cdef topic_id_t **link
    cdef int32_t old_count = table.bucket_count
    cdef int32_t i
    if by_name == NULL or by_id == NULL or topic_ids == NULL:
        free(by_name)
        free(by_id)
        free(topic_ids)
        return -1
    free(table.by_id)
    table.by_name = by_name
    table.by_id = by_id
    table.topic_ids = topic_ids
    table.bucket_count = bucket_count
    for i in range(old_count):
        p = old_by_name[i]
        while p != NULL:
            next_one = p.name_next
            chain(table, p)
            p = next_one
        topic = old_topic_ids[i]
        while topic != NULL:
            next_topic = topic.next
            link = find_topic(table, topic.topic_id)
            topic.next = NULL
            link[0] = topic
            topic = next_topic
    free(old_by_name)
    free(old_topic_ids)
    return 0
