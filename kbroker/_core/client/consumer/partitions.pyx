"""The partitions that a consumer fetches; the contract is in partitions.pxd."""

from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.futex cimport futex_wake_all
from kbroker._core.base.sync cimport (
    atomic_add_i32, atomic_add_i64, atomic_load_i32, atomic_load_i64, mutex_destroy, mutex_init, mutex_lock, mutex_t,
    mutex_unlock,
)
from kbroker._core.client.consumer.chunk cimport chunk_free
from kbroker._core.client.consumer.fetch_response cimport fetch_answer_t
from kbroker._core.client.pump cimport Engine

cdef enum:
    # Bits of fetch_partition_t.paused.
    PAUSED = 1                   # by the user
    HELD = 2                     # for good, as the partition is about to be removed


cdef void partition_release(fetch_partition_t *p) noexcept nogil:
    p.refs -= 1
    if p.refs == 0:
        free(p.topic)
        free(p)

cdef void ready_free(ready_t *ready) noexcept nogil:
    if ready.chunk != NULL:
        chunk_free(ready.chunk)
    partition_release(ready.partition)
    free(ready)

cdef class FetchPartitions(Engine):

    def __cinit__(self, *_args, **_keywords):
        mutex_init(&self.lock, NULL)
        self.ready_end = &self.ready
        self.by_name = {}

    def __dealloc__(self):
        # No request is under way: the pump answers everything before it releases its engines.
        cdef ready_t *ready
        cdef news_t *news
        cdef int32_t i
        while self.ready != NULL:
            ready = self.ready
            self.ready = ready.next
            ready_free(ready)
        while self.news != NULL:
            news = self.news
            self.news = news.next
            partition_release(news.partition)
            free(news)
        for i in range(self.partition_count):
            partition_release(self.partitions[i])
        free(self.partitions)
        mutex_destroy(&self.lock)

    # --- what is fetched ------------------------------------------------------------------------------------

    cdef fetch_partition_t *find(self, topic, partition) except NULL:
        address = self.by_name.get((topic, partition))
        if address is None:
            raise KeyError(f"{topic}-{partition} is not assigned")
        return <fetch_partition_t *><size_t>address

    def assign(self, str topic not None, int32_t partition, int64_t offset=-1, int32_t epoch=-1):
        """Begin to fetch a partition from `offset` on. With -1 the offset is not known yet: `seek` will set it.

        `epoch` is the leader epoch of the record before `offset`, -1 if it is not known. Raises ValueError if the
        partition is assigned already.
        """
        cdef fetch_partition_t *p
        cdef fetch_partition_t **grown
        cdef bytes name = topic.encode()
        if (topic, partition) in self.by_name:
            raise ValueError(f"{topic}-{partition} is assigned already")
        if not 0 < len(name) < 0x8000:
            raise ValueError(f"a topic's name of {len(name)} bytes")
        p = self.revive(name, partition, offset, epoch)
        if p != NULL:
            self.by_name[topic, partition] = <size_t>p
            return
        p = <fetch_partition_t *>calloc(1, sizeof(fetch_partition_t))
        if p == NULL:
            raise MemoryError()
        p.topic = <uint8_t *>malloc(len(name))
        if p.topic == NULL:
            free(p)
            raise MemoryError()
        memcpy(p.topic, <const char *>name, len(name))
        p.topic_size = <int16_t>len(name)
        p.partition = partition
        p.refs = 1
        p.assigned = True
        p.node_id = p.read_node_id = p.session_node_id = p.leader_epoch = -1
        p.high_watermark = p.last_stable_offset = p.log_start_offset = -1
        p.stop_offset = INT64_MAX
        mutex_lock(&self.lock)
        grown = <fetch_partition_t **>with_room(self.partitions, self.partition_count, &self.partition_capacity,
                                                sizeof(void *))
        if grown != NULL:
            self.partitions = grown
            grown[self.partition_count] = p
            self.partition_count += 1
            self.move(p, offset, epoch)
        mutex_unlock(&self.lock)
        if grown == NULL:
            free(p.topic)
            free(p)
            raise MemoryError()
        self.by_name[topic, partition] = <size_t>p

    cdef fetch_partition_t *revive(self, bytes name, int32_t partition, int64_t offset, int32_t epoch) noexcept:
        """Assign a partition again that was removed and is still in the list. Return NULL if it is not there."""
        cdef fetch_partition_t *found = NULL
        cdef fetch_partition_t *p
        cdef const char *topic = name
        cdef Py_ssize_t size = len(name)
        cdef int32_t i
        mutex_lock(&self.lock)
        for i in range(self.partition_count):
            p = self.partitions[i]
            if not p.assigned and p.partition == partition and p.topic_size == size \
                    and memcmp(p.topic, topic, <size_t>size) == 0:
                found = p
        if found != NULL:
            self.move(found, offset, epoch)
            found.assigned = True
            found.paused = found.blocked = False
            found.node_id = found.read_node_id = found.leader_epoch = -1
            found.high_watermark = found.last_stable_offset = found.log_start_offset = -1
            found.stop_offset = INT64_MAX
        mutex_unlock(&self.lock)
        return found

    def remove(self, str topic not None, int32_t partition):
        """Fetch a partition no longer, and drop its records that wait. Raises KeyError if it is not assigned."""
        cdef fetch_partition_t *p = self.find(topic, partition)
        self.leave_unread(topic, partition)
        del self.by_name[topic, partition]
        mutex_lock(&self.lock)
        p.assigned = False
        self.move(p, -1, -1)
        mutex_unlock(&self.lock)
        self.wake()

    def seek(self, str topic not None, int32_t partition, int64_t offset, int32_t epoch=-1):
        """Go on at `offset`, -1 if it is not known. Drop records that wait or are under way, and forget errors.

        `epoch` is the leader epoch of the record before `offset`, -1 if it is not known. Raises KeyError if the
        partition is not assigned.
        """
        cdef fetch_partition_t *p = self.find(topic, partition)
        self.leave_unread(topic, partition)
        mutex_lock(&self.lock)
        self.move(p, offset, epoch)
        p.blocked = False
        mutex_unlock(&self.lock)
        self.wake()

    def stop_at(self, str topic not None, int32_t partition, int64_t offset):
        """Stop fetching a partition at `offset`: no Fetch asks for records there or behind.

        Records behind it are handed out if an answer brings them anyway. A poll does not wait once every partition has
        come to its stop offset, or its broker has no more records before it.
        """
        cdef fetch_partition_t *p = self.find(topic, partition)
        mutex_lock(&self.lock)
        p.stop_offset = offset
        mutex_unlock(&self.lock)
        self.awaken()
        self.wake()

    @property
    def has_reached_stops(self):
        """Whether every assigned partition has come to its stop offset and no records wait to be polled."""
        cdef bint found
        mutex_lock(&self.lock)
        found = self.is_through()
        mutex_unlock(&self.lock)
        return found

    cdef bint is_through(self) noexcept nogil:
        """Return whether `has_reached_stops` is true; False if no partition is assigned. The caller holds the lock."""
        cdef const fetch_partition_t *p
        cdef bint found = False
        cdef int32_t i
        for i in range(self.partition_count):
            p = self.partitions[i]
            if p.assigned:
                found = True
                if p.begun or p.blocked or p.fetch_offset < p.stop_offset:
                    return False
        return found and self.ready == NULL

    def lead(self, str topic not None, int32_t partition, int32_t node_id, int32_t leader_epoch=-1):
        """Set the leader of a partition, -1 if it is not known. Fetching goes on if an error had stopped it."""
        cdef fetch_partition_t *p = self.find(topic, partition)
        mutex_lock(&self.lock)
        p.node_id = node_id
        p.leader_epoch = leader_epoch
        p.read_node_id = -1
        p.blocked = False
        mutex_unlock(&self.lock)
        self.wake()

    def pause(self, str topic not None, int32_t partition):
        """Neither fetch nor hand out records of a partition until `resume`. Records that wait are kept."""
        self.find(topic, partition).paused |= PAUSED
        self.leave_unread(topic, partition)
        self.wake()

    def hold(self, str topic not None, int32_t partition):
        """Neither fetch nor hand out records of a partition until it is removed, whatever `resume` does.

        For a partition that another consumer is to get.
        """
        self.find(topic, partition).paused |= HELD
        self.leave_unread(topic, partition)
        self.wake()

    def resume(self, str topic not None, int32_t partition):
        self.find(topic, partition).paused &= ~PAUSED
        self.awaken()
        self.wake()

    def is_paused(self, str topic not None, int32_t partition):
        return (self.find(topic, partition).paused & PAUSED) != 0

    def position(self, str topic not None, int32_t partition):
        """The offset of the next record that is handed out; -1 if it is not known."""
        return self.epochs(topic, partition)[0]

    def epochs(self, str topic not None, int32_t partition):
        """Return (position, its epoch, next offset to fetch, its epoch).

        Each epoch is the leader epoch of the record before the offset. All values are -1 if they are not known.
        """
        cdef fetch_partition_t *p = self.find(topic, partition)
        cdef int64_t position = -1
        cdef int32_t epoch = -1
        cdef int64_t fetch_offset
        cdef int32_t fetch_epoch
        cdef bint is_unread = self.find_unread(topic, partition, &position, &epoch)
        mutex_lock(&self.lock)
        if not is_unread:
            position = p.position
            epoch = p.position_epoch
        fetch_offset = p.fetch_offset
        fetch_epoch = p.fetch_epoch
        mutex_unlock(&self.lock)
        return position, epoch, fetch_offset, fetch_epoch

    def watermarks(self, str topic not None, int32_t partition):
        """Return (log start offset, last stable offset, high watermark) of the last answer; -1: not known."""
        cdef fetch_partition_t *p = self.find(topic, partition)
        return p.log_start_offset, p.last_stable_offset, p.high_watermark

    def assigned(self):
        """Return (topic, partition) for each assigned partition."""
        return list(self.by_name)

    @property
    def is_assigned(self):
        """Whether a partition is assigned."""
        return len(self.by_name) > 0

    @property
    def buffered_bytes(self):
        return atomic_load_i64(&self.ready_bytes)

    def wake(self):
        """Have the pump's thread look again whether there is something to fetch."""
        if self.pump is not None:
            with nogil:
                self.pump.wake(self)

    cdef void move(self, fetch_partition_t *p, int64_t offset, int32_t epoch) noexcept nogil:
        """Set the position of a partition, give it a new generation and drop its chunks. The caller holds the lock."""
        cdef ready_t **link = &self.ready
        cdef ready_t *ready
        self.generations += 1
        p.generation = self.generations
        p.fetch_offset = p.position = offset
        p.fetch_epoch = p.position_epoch = epoch
        p.begun = False
        while link[0] != NULL:
            ready = link[0]
            if ready.partition == p:
                link[0] = ready.next
                atomic_add_i64(&self.ready_bytes, -ready.chunk.size)
                ready_free(ready)
            else:
                link = &ready.next
        self.ready_end = link

    # --- iteration over what was polled: poll.pyx overrides find_unread and put_back ---------------------------

    cdef bint find_unread(self, topic, partition, int64_t *position, int32_t *epoch) except -1:
        """Set `position` and `epoch` if the partition's position is not the one that its fetch_partition_t has.

        Returns False, and sets nothing, if it is that one. The two differ while iteration has not read the partition's
        records to their end, and after a poll whose records nobody got.
        """
        return False

    cdef int put_back(self) except -1:
        """End iteration. The next poll hands out first what the iteration has left."""
        return 0

    cdef int leave_unread(self, topic, partition) except -1:
        """End iteration as `put_back` does, if it has records of this partition that it has not given."""
        if self.iterator is not None and (topic, partition) in self.unread:
            self.put_back()
        return 0

    # --- what Python decides --------------------------------------------------------------------------------

    cdef void say(self, fetch_partition_t *p, const fetch_answer_t *answer, int16_t error) noexcept nogil:
        """Stop fetching a partition after an error, and tell Python.

        `answer` may be NULL. The caller holds the lock.
        """
        cdef news_t *news = <news_t *>malloc(sizeof(news_t))
        if news == NULL:
            return               # the partition is fetched again, and fails again
        p.blocked = True
        p.refs += 1
        news.partition = p
        news.generation = p.generation
        news.error = error
        news.offset = p.fetch_offset
        news.leader_id = answer.leader_id if answer != NULL else -1
        news.leader_epoch = answer.leader_epoch if answer != NULL else -1
        news.next = self.news
        self.news = news
        self.pump.tell(self)

    def take_news(self):
        """Return (topic, partition, error code, offset, leader id, leader epoch) of partitions stopped by an error.

        `lead` and `seek` let such a partition go on. The leader is the one that the broker named in its answer, -1 if
        it named none.
        """
        cdef news_t *news
        cdef news_t *next
        mutex_lock(&self.lock)
        news = self.news
        self.news = NULL
        mutex_unlock(&self.lock)
        found = []
        while news != NULL:
            next = news.next
            if news.generation == news.partition.generation and news.partition.assigned:
                topic = (<const char *>news.partition.topic)[:news.partition.topic_size].decode()
                found.append((topic, news.partition.partition, news.error, news.offset, news.leader_id,
                              news.leader_epoch))
            mutex_lock(&self.lock)
            partition_release(news.partition)
            mutex_unlock(&self.lock)
            free(news)
            news = next
        found.reverse()
        return found
    cdef void purge(self) noexcept nogil:
        """Take partitions out of the list that are neither assigned nor in a session. The caller holds the lock."""
        cdef fetch_partition_t *p
        cdef int32_t i = 0
        while i < self.partition_count:
            p = self.partitions[i]
            if not p.assigned and p.session_node_id < 0:
                self.partition_count -= 1
                self.partitions[i] = self.partitions[self.partition_count]
                partition_release(p)
            else:
                i += 1

    cdef void awaken(self) noexcept nogil:
        atomic_add_i32(&self.signal, 1)
        if atomic_load_i32(&self.waiting):
            futex_wake_all(&self.signal)
        if atomic_load_i32(&self.listening) and self.pump is not None:
            self.pump.wake(self)
