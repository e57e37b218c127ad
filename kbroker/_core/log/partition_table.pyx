"""Partitions by name and by topic id; see partition_table.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from kbroker._core.base.mailbox cimport (
    mail_t, mailbox_close, mailbox_open, mailbox_t, mailbox_wait, mailbox_wake, take_all, take_next,
)
from kbroker._core.base.seeded_hash cimport seeded_hash
from kbroker._core.base.sync cimport mutex_destroy, mutex_init, mutex_lock, mutex_unlock
from kbroker._core.log.partition cimport partition_ref, partition_t, partition_unref
from kbroker._core.log.partition_state cimport PartitionState


cdef inline uint32_t hash_of(const uint8_t *topic, int64_t size, int32_t partition_id) noexcept nogil:
    return <uint32_t>seeded_hash(topic, size, <uint32_t>partition_id)


cdef inline partition_t *partition_of(mail_t *mail) noexcept nogil:
    cdef partition_t *laid = <partition_t *>mail
    return <partition_t *>(<char *>mail - (<char *>&laid.news_mail - <char *>laid))


cdef class ReplicaNews:
    """Partitions that this broker leads and of which a follower may be let into the ISR.

    A follower's fetch posts them, once until they are taken. One thread waits and takes.
    """

    def __cinit__(self):
        if mailbox_open(&self.box) < 0:
            raise MemoryError("no descriptor for a mailbox")

    def __dealloc__(self):
        mailbox_close(&self.box)

    def wait(self, int timeout_ms=-1):
        """Block until there is news, until `wake` is called, or until `timeout_ms` (-1: no limit) passes.

        Return whether there is news.
        """
        cdef bint came
        with nogil:
            came = mailbox_wait(&self.box, timeout_ms)
        return came

    def wake(self):
        """Let `wait` return."""
        with nogil:
            mailbox_wake(&self.box)

    def take(self):
        """Return the news: (topic, partition id), each once."""
        cdef mail_t *mails = take_all(&self.box)
        cdef partition_t *p
        taken = []
        while mails != NULL:
            p = partition_of(take_next(&mails))
            with nogil:
                mutex_lock(&p.lock)
                p.news_posted = False
                mutex_unlock(&p.lock)
            taken.append((p.topic[:p.topic_size].decode(), p.partition_id))
            partition_unref(p)
        return taken


cdef class PartitionTable:
    """All partitions that this broker has. Every method may be called from any thread."""

    def __cinit__(self, bint has_news=False):
        """Make an empty table. `has_news`: its partitions have followers, of which `news` tells."""
        self.news = ReplicaNews() if has_news else None
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
        cdef elsewhere_t *gone
        cdef int32_t i
        if table == NULL:
            return
        for i in range(table.bucket_count):
            p = table.by_name[i]
            while p != NULL:
                next_one = p.name_next
                leave_news(p)
                partition_unref(p)
                p = next_one
            topic = table.topic_ids[i]
            while topic != NULL:
                next_topic = topic.next
                free(topic)
                topic = next_topic
        if self.news is not None:
            self.news.take()
        for i in range(table.elsewhere_buckets):
            while table.elsewhere_by_name[i] != NULL:
                gone = table.elsewhere_by_name[i]
                table.elsewhere_by_name[i] = gone.name_next
                free_elsewhere(gone)
        free(table.elsewhere_by_name)
        free(table.elsewhere_by_id)
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
        cdef mailbox_t *box = &self.news.box if self.news is not None else NULL
        cdef bint added
        with nogil:
            mutex_lock(&table.lock)
            added = register_partition(table, p)
            mutex_unlock(&table.lock)
            if added and box != NULL:
                mutex_lock(&p.lock)
                p.news_mail.box = box
                mutex_unlock(&p.lock)
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
                leave_news(p)
                partition_unref(p)

    def set_elsewhere(self, str topic not None, bytes topic_id not None, int32_t partition_count):
        """Note that the cluster has a topic with so many partitions, which other brokers may have.

        It replaces what was noted of the topic before.
        """
        cdef partition_table_t *table = self.table
        cdef bytes name = topic.encode()
        cdef elsewhere_t *known
        cdef elsewhere_t *old
        cdef bint added
        if len(topic_id) != 16 or not 0 < len(name) <= MOST_TOPIC_NAME:
            raise ValueError(f"topic id of {len(topic_id)} bytes, name of {len(name)} bytes")
        known = <elsewhere_t *>calloc(1, sizeof(elsewhere_t))
        if known == NULL:
            raise MemoryError
        known.topic = <char *>malloc(<size_t>len(name))
        if known.topic == NULL:
            free(known)
            raise MemoryError
        memcpy(known.topic, PyBytes_AS_STRING(name), <size_t>len(name))
        memcpy(known.topic_id, PyBytes_AS_STRING(topic_id), 16)
        known.topic_size = <int16_t>len(name)
        known.partition_count = partition_count
        with nogil:
            mutex_lock(&table.lock)
            old = unlink_elsewhere(table, <uint8_t *>known.topic, known.topic_size)
            added = link_elsewhere(table, known)
            mutex_unlock(&table.lock)
        free_elsewhere(old)
        if not added:
            free_elsewhere(known)
            raise MemoryError

    def forget_elsewhere(self, str topic not None):
        """Note that the cluster does not have the topic any more. No-op if it is not known."""
        cdef bytes name = topic.encode()
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(name)
        cdef int32_t size = <int32_t>len(name)
        cdef elsewhere_t *old
        with nogil:
            mutex_lock(&self.table.lock)
            old = unlink_elsewhere(self.table, data, size)
            mutex_unlock(&self.table.lock)
        free_elsewhere(old)

    def knows_elsewhere(self, str topic not None, int partition_id):
        """Return whether `set_elsewhere` has told of this partition, be it here or not."""
        cdef bytes name = topic.encode()
        return self.is_elsewhere(<const uint8_t *>PyBytes_AS_STRING(name), <int32_t>len(name), partition_id)

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
        known = find_topic(table, topic_id)[0] != NULL or elsewhere_by_id(table, topic_id) != NULL
        mutex_unlock(&table.lock)
        return known

    cdef bint is_elsewhere(self, const uint8_t *topic, int32_t topic_size, int32_t partition_id) noexcept nogil:
        cdef partition_table_t *table = self.table
        cdef elsewhere_t **link
        cdef bint found = False
        if table.elsewhere_count == 0 or topic_size > MOST_TOPIC_NAME:
            return False
        mutex_lock(&table.lock)
        if table.elsewhere_buckets:
            link = elsewhere_by_name(table, topic, topic_size)
            found = link[0] != NULL and 0 <= partition_id < link[0].partition_count
        mutex_unlock(&table.lock)
        return found

    cdef bint is_elsewhere_by_id(self, const uint8_t *topic_id, int32_t partition_id) noexcept nogil:
        cdef partition_table_t *table = self.table
        cdef elsewhere_t *known
        cdef bint found = False
        if table.elsewhere_count == 0:
            return False
        mutex_lock(&table.lock)
        known = elsewhere_by_id(table, topic_id)
        found = known != NULL and 0 <= partition_id < known.partition_count
        mutex_unlock(&table.lock)
        return found


cdef void leave_news(partition_t *p) noexcept nogil:
    mutex_lock(&p.lock)
    p.news_mail.box = NULL
    mutex_unlock(&p.lock)

# --- topics on other brokers --------------------------------------------------------------------------

cdef void free_elsewhere(elsewhere_t *known) noexcept nogil:
    if known != NULL:
        free(known.topic)
        free(known)


cdef elsewhere_t **elsewhere_by_name(partition_table_t *table, const uint8_t *topic, int32_t size) noexcept nogil:
    """Return the link to the topic, or the link at the end of its chain, which is NULL. There are buckets."""
    cdef elsewhere_t **link = &table.elsewhere_by_name[
        hash_of(topic, size, 0) & <uint32_t>(table.elsewhere_buckets - 1)
    ]
    while link[0] != NULL and not (link[0].topic_size == size and memcmp(link[0].topic, topic, <size_t>size) == 0):
        link = &link[0].name_next
    return link


cdef elsewhere_t *elsewhere_by_id(partition_table_t *table, const uint8_t *topic_id) noexcept nogil:
    cdef elsewhere_t *known
    if table.elsewhere_buckets == 0:
        return NULL
    known = table.elsewhere_by_id[hash_of(topic_id, 16, 0) & <uint32_t>(table.elsewhere_buckets - 1)]
    while known != NULL and memcmp(known.topic_id, topic_id, 16) != 0:
        known = known.id_next
    return known


cdef elsewhere_t *unlink_elsewhere(partition_table_t *table, const uint8_t *topic, int32_t size) noexcept nogil:
    """Take a topic out of the table and return it; NULL: it is not there."""
    cdef elsewhere_t **link
    cdef elsewhere_t *known
    if table.elsewhere_buckets == 0:
        return NULL
    link = elsewhere_by_name(table, topic, size)
    known = link[0]
    if known == NULL:
        return NULL
    link[0] = known.name_next
    link = &table.elsewhere_by_id[hash_of(known.topic_id, 16, 0) & <uint32_t>(table.elsewhere_buckets - 1)]
    while link[0] != known:
        link = &link[0].id_next
    link[0] = known.id_next
    table.elsewhere_count -= 1
    return known


cdef void chain_elsewhere(partition_table_t *table, elsewhere_t *known) noexcept nogil:
    cdef uint32_t mask = <uint32_t>(table.elsewhere_buckets - 1)
    cdef uint32_t at = hash_of(<uint8_t *>known.topic, known.topic_size, 0) & mask
    known.name_next = table.elsewhere_by_name[at]
    table.elsewhere_by_name[at] = known
    at = hash_of(known.topic_id, 16, 0) & mask
    known.id_next = table.elsewhere_by_id[at]
    table.elsewhere_by_id[at] = known


cdef bint link_elsewhere(partition_table_t *table, elsewhere_t *known) noexcept nogil:
    """Put a topic into the table, which does not have it. False: memory is out, and nothing has changed."""
    cdef elsewhere_t **by_name
    cdef elsewhere_t **by_id
    cdef elsewhere_t **old_by_name = table.elsewhere_by_name
    cdef elsewhere_t *moved
    cdef int32_t old_count = table.elsewhere_buckets
    cdef int32_t count = old_count * 2 if old_count else 64
    cdef int32_t i
    if table.elsewhere_count >= old_count:
        by_name = <elsewhere_t **>calloc(<size_t>count, sizeof(elsewhere_t *))
        by_id = <elsewhere_t **>calloc(<size_t>count, sizeof(elsewhere_t *))
        if by_name == NULL or by_id == NULL:
            free(by_name)
            free(by_id)
            return False
        free(table.elsewhere_by_id)
        table.elsewhere_by_name = by_name
        table.elsewhere_by_id = by_id
        table.elsewhere_buckets = count
        for i in range(old_count):
            while old_by_name[i] != NULL:
                moved = old_by_name[i]
                old_by_name[i] = moved.name_next
                chain_elsewhere(table, moved)
        free(old_by_name)
    chain_elsewhere(table, known)
    table.elsewhere_count += 1
    return True

# --- partitions that are here -------------------------------------------------------------------------


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
