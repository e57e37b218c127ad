"""The producer's queues; see accumulator.pxd."""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, ETIMEDOUT
from libc.stdint cimport INT32_MAX, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.futex cimport futex_wait, futex_wake_all
from kbroker._core.base.links cimport queue_push
from kbroker._core.base.sync cimport (
    atomic_add_i32, atomic_load_i32, atomic_store_i32, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.client.producer.outgoing cimport (
    NUMBER_STEP,
    OUTGOING_FAILED,
    outgoing_new,
    outgoing_settle,
    outgoing_unref,
    pool_free,
    pool_give,
    pool_take,
    put_record,
    record_body_size,
)
from kbroker._core.client.producer.outgoing_list cimport list_push
from kbroker._core.client.producer.partitioner cimport partition_for, partitioner_init
from kbroker._core.wire.layout cimport BATCH_HEADER_SIZE
from kbroker._core.wire.varint cimport varlong_size

cdef enum:
    FIRST_WINDOWS = 8


# --- adding -------------------------------------------------------------------------------------------

cdef void make_active(accumulator_t *a, queue_t *queue) noexcept nogil:
    if not queue.active:
        queue.active = True
        queue.next_active = a.active
        a.active = queue


cdef void compress_later(accumulator_t *a, outgoing_t *batch) noexcept nogil:
    batch.codec = a.codec
    batch.compressing = True
    atomic_add_i32(&batch.references, 1)
    queue_push(a.raw_head, a.raw_tail, batch, batch.next_raw)
    atomic_add_i32(&a.raw_came, 1)
    futex_wake_all(&a.raw_came)


cdef void seal_open(accumulator_t *a, queue_t *queue) noexcept nogil:
    cdef outgoing_t *batch = queue.open
    if batch == NULL:
        return
    queue.open = NULL
    queue.last_size = batch.size
    list_push(&queue.sealed, batch)
    if a.codec:
        compress_later(a, batch)


cdef outgoing_t *open_batch(accumulator_t *a, queue_t *queue, int64_t size, int64_t timestamp) noexcept nogil:
    cdef outgoing_t *batch = outgoing_new()
    cdef int64_t wanted = BATCH_HEADER_SIZE + size
    if batch == NULL:
        return NULL
    if queue.last_size > wanted:
        wanted = queue.last_size
    batch.data = pool_take(&a.pool, wanted, &batch.capacity)
    if batch.data == NULL:
        outgoing_unref(batch)
        return NULL
    batch.queue = queue
    batch.base_timestamp = timestamp
    batch.max_timestamp = timestamp
    batch.made_ms = monotonic_ms()
    a.next_number += NUMBER_STEP
    batch.number_step = NUMBER_STEP
    batch.number = a.next_number
    batch.older = a.newest
    if a.newest == NULL:
        a.oldest = batch
    else:
        a.newest.newer = batch
    a.newest = batch
    batch.charged = BATCH_HEADER_SIZE
    a.used += BATCH_HEADER_SIZE
    queue.open = batch
    make_active(a, queue)
    return batch


cdef bint grow(accumulator_t *a, outgoing_t *batch, int64_t size) noexcept nogil:
    """Make room for `size` more bytes in a batch. Return False if memory is out."""
    cdef int64_t capacity = 0
    cdef int64_t wanted = batch.size + size
    cdef uint8_t *data
    # At least twice the room at once, so that copying stays a small part of the work.
    data = pool_take(&a.pool, wanted if wanted > 2 * batch.capacity else 2 * batch.capacity, &capacity)
    if data == NULL:
        return False
    memcpy(data, batch.data, <size_t>batch.size)
    pool_give(&a.pool, batch.data, batch.capacity)
    batch.data = data
    batch.capacity = capacity
    return True


cdef int accumulator_add(accumulator_t *a, topic_t *topic, int32_t *partition, const incoming_t *record,
                         outgoing_t **into, bint *wake) noexcept nogil:
    cdef outgoing_t *batch
    cdef queue_t *queue
    cdef int64_t body = 0
    cdef int64_t size = 0
    cdef int64_t timestamp_delta = 0
    if a.refusal:
        return a.refusal
    if partition[0] < 0:
        partition[0] = partition_for(&a.partitioner, &topic.spread, record.key, record.key_size,
                                     record.value_size + record.key_size + record.headers_size + 6)
    if partition[0] >= topic.spread.count or partition[0] < 0:
        return NO_SUCH_PARTITION
    queue = topic.queues[partition[0]]
    batch = queue.open
    if batch != NULL:
        timestamp_delta = record.timestamp - batch.base_timestamp
        body = record_body_size(timestamp_delta, batch.count, record.key_size, record.value_size, record.headers_size)
        size = body + varlong_size(body)
        if batch.size + size > a.batch_size or batch.count >= a.batch_records:
            seal_open(a, queue)
            wake[0] = True
            batch = NULL
    if batch == NULL:
        timestamp_delta = 0
        body = record_body_size(0, 0, record.key_size, record.value_size, record.headers_size)
        size = body + varlong_size(body)
    if BATCH_HEADER_SIZE + size > a.max_record_size:
        return TOO_LARGE
    if (a.used + size + BATCH_HEADER_SIZE > a.most_used and a.used) or (a.most_records and a.records >= a.most_records):
        # Open batches are sent now, before linger_ms has passed: only that makes room.
        wake[0] = True
        return NO_ROOM
    if batch == NULL:
        batch = open_batch(a, queue, size, record.timestamp)
        if batch == NULL:
            return MEMORY_IS_OUT
        if queue.in_flight == 0:
            wake[0] = True
    elif batch.size + size > batch.capacity and not grow(a, batch, size):
        return MEMORY_IS_OUT
    put_record(batch.data + batch.size, body, timestamp_delta, batch.count, record.key, record.key_size, record.value,
               record.value_size, record.headers, record.headers_size)
    if record.timestamp > batch.max_timestamp:
        batch.max_timestamp = record.timestamp
    batch.size += size
    batch.charged += size
    batch.count += 1
    a.used += size
    a.records += 1
    if a.window_ms:
        count_records(a, topic, record.timestamp, 1, max(record.key_size, 0) + max(record.value_size, 0))
    into[0] = batch
    return ADDED


cdef window_t *window_of(window_t *windows, int64_t room, int64_t start, int64_t window_ms) noexcept nogil:
    """Return the place of the window that begins at `start` in the hash table, or the free place where it belongs."""
    cdef int64_t i = (start // window_ms) & (room - 1)
    while windows[i].records and windows[i].start != start:
        i = (i + 1) & (room - 1)
    return &windows[i]


cdef bint more_windows(accumulator_t *a, topic_t *topic) noexcept nogil:
    cdef int64_t room = 2 * topic.window_room if topic.window_room else FIRST_WINDOWS
    cdef window_t *made = <window_t *>calloc(<size_t>room, sizeof(window_t))
    cdef int64_t i
    if made == NULL:
        return False
    for i in range(topic.window_room):
        if topic.windows[i].records:
            window_of(made, room, topic.windows[i].start, a.window_ms)[0] = topic.windows[i]
    free(topic.windows)
    topic.windows = made
    topic.window_room = room
    return True


cdef void count_records(accumulator_t *a, topic_t *topic, int64_t timestamp, int64_t records,
                        int64_t size) noexcept nogil:
    cdef int64_t start = timestamp - timestamp % a.window_ms
    cdef window_t *window
    # If memory is out, these records are not counted.
    if records == 0 or (2 * topic.window_count >= topic.window_room and not more_windows(a, topic)):
        return
    window = window_of(topic.windows, topic.window_room, start, a.window_ms)
    if window.records == 0:
        window.start = start
        topic.window_count += 1
    window.records += records
    window.size += size


cdef bint batch_done(accumulator_t *a, outgoing_t *batch, int32_t state) noexcept nogil:
    cdef bint was_oldest = batch == a.oldest
    if batch.older != NULL:
        batch.older.newer = batch.newer
    else:
        a.oldest = batch.newer
    if batch.newer != NULL:
        batch.newer.older = batch.older
    else:
        a.newest = batch.older
    batch.older = NULL
    batch.newer = NULL
    batch.queue = NULL
    if not batch.compressing:                # else the compressor may be reading it: the last unref frees it
        pool_give(&a.pool, batch.data, batch.capacity)
        batch.data = NULL
    a.used -= batch.charged
    a.records -= batch.count
    atomic_add_i32(&a.room, 1)
    if atomic_load_i32(&a.waiting):
        futex_wake_all(&a.room)
    if was_oldest:
        atomic_add_i32(&a.progress, 1)
        if atomic_load_i32(&a.flushing):
            futex_wake_all(&a.progress)
    if outgoing_settle(batch, state):
        return True
    outgoing_unref(batch)
    return False

# --- for Python ---------------------------------------------------------------------------------------

cdef void free_topic(topic_t *topic) noexcept nogil:
    cdef int32_t i
    for i in range(topic.spread.count):
        free(topic.queues[i])
    free(topic.queues)
    free(topic.available)
    free(topic.windows)
    free(topic.name)
    free(topic)


cdef bint set_partition_count(topic_t *topic, int32_t count) noexcept nogil:
    """Add queues until the topic has `count` partitions; queues are never removed. Return False if memory is out."""
    cdef void *grown = realloc(topic.queues, <size_t>count * sizeof(queue_t *))
    cdef queue_t *queue
    if grown == NULL:
        return False
    topic.queues = <queue_t **>grown
    grown = realloc(topic.available, <size_t>count * sizeof(int32_t))
    if grown == NULL:
        return False
    topic.available = <int32_t *>grown
    topic.spread.available = topic.available
    while topic.spread.count < count:
        queue = <queue_t *>calloc(1, sizeof(queue_t))
        if queue == NULL:
            return False
        queue.topic = topic
        queue.partition_id = topic.spread.count
        queue.leader = -1
        queue.leader_epoch = -1
        queue.producer_id = -1
        queue.producer_epoch = -1
        topic.queues[topic.spread.count] = queue
        topic.spread.count += 1
    return True


cdef class Topic:
    """A topic's queues. Valid as long as its Accumulator."""

    def __init__(self):
        raise TypeError("made by Accumulator.set_topic")


@cython.final
cdef class Accumulator:
    """The queues of one producer. Every method may be called from any thread."""

    def __cinit__(self, *, int64_t memory, int64_t records, int64_t max_record_size, int64_t batch_size,
                  int64_t linger_ms=0, int32_t batch_records=INT32_MAX, int codec=0, int partitioner=0,
                  int64_t sticky_bytes=16384, bint idempotent=False, bint transactional=False):
        memset(&self.a, 0, sizeof(accumulator_t))
        mutex_init(&self.a.lock, NULL)
        if not BATCH_HEADER_SIZE < max_record_size <= INT32_MAX or not 0 <= batch_size <= INT32_MAX:
            raise ValueError(f"max_record_size={max_record_size}, batch_size={batch_size}")
        self.a.most_used = memory
        self.a.most_records = records
        self.a.max_record_size = max_record_size
        self.a.batch_size = batch_size
        self.a.batch_records = batch_records
        self.a.linger_ms = linger_ms
        self.a.codec = codec
        self.a.idempotent = idempotent
        self.a.transactional = transactional
        self.a.producer_id = -1
        self.a.producer_epoch = -1
        self.a.pool.most_kept = memory // 2
        partitioner_init(&self.a.partitioner, partitioner, sticky_bytes)
        self.topics = {}

    def __dealloc__(self):
        cdef topic_t *topic
        cdef outgoing_t *batch
        while self.a.raw_head != NULL:
            batch = self.a.raw_head
            self.a.raw_head = batch.next_raw
            outgoing_unref(batch)
        while self.a.oldest != NULL:
            batch = self.a.oldest
            if batch_done(&self.a, batch, OUTGOING_FAILED):
                outgoing_unref(batch)
        while self.a.topics != NULL:
            topic = self.a.topics
            self.a.topics = topic.next
            free_topic(topic)
        pool_free(&self.a.pool)
        mutex_destroy(&self.a.lock)

    def set_topic(self, str name not None, leaders not None, leader_epochs=None) -> None:
        """Set the leader of each partition as the metadata say, -1 for none. Records can then be sent to the topic.

        Raises ValueError if the topic has no partitions.
        """
        cdef Topic topic = self.topics.get(name)
        cdef bytes encoded = name.encode()
        cdef topic_t *made
        cdef queue_t *queue
        cdef int32_t i
        cdef int32_t count = len(leaders)
        cdef bint fits = True
        if count == 0:
            raise ValueError(f"{name} has no partitions")
        nodes = [int(leader) for leader in leaders]
        epochs = [-1] * count if leader_epochs is None else [int(epoch) for epoch in leader_epochs]
        if topic is None:
            made = <topic_t *>calloc(1, sizeof(topic_t))
            if made == NULL:
                raise MemoryError()
            made.name = <char *>malloc(len(encoded) + 1)
            if made.name == NULL:
                free(made)
                raise MemoryError()
            memcpy(made.name, <char *>encoded, len(encoded) + 1)
            made.name_size = <int32_t>len(encoded)
            made.spread.sticky = -1
            topic = Topic.__new__(Topic)
            topic.t = made
            topic.name = name
        else:
            made = NULL
        mutex_lock(&self.a.lock)
        if made != NULL:
            made.next = self.a.topics
            self.a.topics = made
        if count > topic.t.spread.count:
            fits = set_partition_count(topic.t, count)
        topic.t.spread.available_count = 0
        for i in range(count if count < topic.t.spread.count else topic.t.spread.count):
            queue = topic.t.queues[i]
            queue.leader = nodes[i]
            queue.leader_epoch = epochs[i]
            if not queue.muted:
                queue.told = False
            if queue.leader >= 0:
                topic.t.available[topic.t.spread.available_count] = i
                topic.t.spread.available_count += 1
        mutex_unlock(&self.a.lock)
        if not fits:
            raise MemoryError()
        self.topics[name] = topic
        self.wake()

    cdef int wake(self) except -1:
        if self.a.wake != NULL:
            self.a.wake(self.a.waker)
        return 0

    cdef int await_room(self, int32_t seen, int64_t deadline_ms) except -1:
        return sleep_on(&self.a.room, seen, &self.a.waiting, deadline_ms)

    cdef int64_t seal(self) except -1:
        """Seal all open batches, so that they are sent without waiting for linger_ms.

        Return the number of the newest batch.
        """
        cdef queue_t *queue
        cdef int64_t last
        mutex_lock(&self.a.lock)
        queue = self.a.active
        while queue != NULL:
            seal_open(&self.a, queue)
            queue = queue.next_active
        last = self.a.next_number
        mutex_unlock(&self.a.lock)
        self.wake()
        return last

    def count_windows(self, int64_t window_ms) -> None:
        """Count records from now on, by topic and by window of `window_ms` of their timestamps."""
        if window_ms <= 0:
            raise ValueError(f"window_ms={window_ms}")
        mutex_lock(&self.a.lock)
        self.a.window_ms = window_ms
        mutex_unlock(&self.a.lock)

    def take_windows(self) -> list:
        """Return the counts since the last call: (topic, start of the window, records, bytes of keys and values)."""
        cdef list found = []
        cdef topic_t *topic
        cdef window_t *windows
        cdef int64_t room
        cdef int64_t i
        mutex_lock(&self.a.lock)
        topic = self.a.topics
        mutex_unlock(&self.a.lock)
        while topic != NULL:                 # topics are never freed, and new ones come before the first
            mutex_lock(&self.a.lock)
            windows, room = topic.windows, topic.window_room
            topic.windows, topic.window_room, topic.window_count = NULL, 0, 0
            mutex_unlock(&self.a.lock)
            try:
                for i in range(room):
                    if windows[i].records:
                        found.append((topic.name.decode(), windows[i].start, windows[i].records, windows[i].size))
            finally:
                free(windows)
            topic = topic.next
        return found

    def set_idempotent(self, bint idempotent) -> None:
        """Set whether the producer is idempotent and needs a producer id. To be called before anything is sent."""
        mutex_lock(&self.a.lock)
        self.a.idempotent = idempotent
        mutex_unlock(&self.a.lock)
        self.wake()

    def shut(self) -> None:
        """Accept no records until `open` is called. What is queued is sent without waiting for linger_ms."""
        self.refuse(IS_SHUT)
        self.seal()

    def abandon(self) -> None:
        """Accept no more records in a child process after a fork, even if a thread held the lock during the fork."""
        mutex_init(&self.a.lock, NULL)
        self.a.refusal = IS_SHUT

    def open(self) -> None:
        """Take records again after `shut`, unless the accumulator is closed."""
        mutex_lock(&self.a.lock)
        self.a.refusal = IS_CLOSED if self.a.closed else ADDED
        mutex_unlock(&self.a.lock)

    cdef int refuse(self, int refusal) except -1:
        mutex_lock(&self.a.lock)
        self.a.refusal = IS_CLOSED if self.a.closed else refusal
        atomic_add_i32(&self.a.room, 1)
        futex_wake_all(&self.a.room)
        mutex_unlock(&self.a.lock)
        return 0

    def flush(self, timeout_ms=None) -> bool:
        """Send everything that was added before, without lingering, and wait until it is delivered or has failed.

        Return False if that takes longer than `timeout_ms`; None: no limit.
        """
        cdef int64_t deadline = -1 if timeout_ms is None else monotonic_ms() + <int64_t>timeout_ms
        cdef int64_t last
        cdef int32_t seen
        cdef bint done
        last = self.seal()
        while True:
            mutex_lock(&self.a.lock)
            seen = atomic_load_i32(&self.a.progress)
            done = self.a.oldest == NULL or self.a.oldest.number > last
            mutex_unlock(&self.a.lock)
            if done:
                return True
            if not sleep_on(&self.a.progress, seen, &self.a.flushing, deadline):
                return False

    def begin_flush(self) -> int:
        """Begin what `flush` does, without waiting. Return the number to call `is_flushed` with."""
        return self.seal()

    def is_flushed(self, int64_t last) -> bool:
        """Whether everything that was queued at the `begin_flush` that returned `last` is delivered or has failed."""
        cdef bint done
        mutex_lock(&self.a.lock)
        done = self.a.oldest == NULL or self.a.oldest.number > last
        mutex_unlock(&self.a.lock)
        return done

    def listen(self) -> None:
        """Have the engine tell Python, once, when a batch is done.

        Then there is room again, and a flush may have ended.
        """
        self.a.heard = atomic_load_i32(&self.a.room)
        atomic_store_i32(&self.a.listening, 1)
        self.wake()

    def close(self) -> None:
        """Accept no more records, for good."""
        mutex_lock(&self.a.lock)
        self.a.closed = True
        atomic_add_i32(&self.a.raw_came, 1)
        futex_wake_all(&self.a.raw_came)
        mutex_unlock(&self.a.lock)
        self.refuse(IS_CLOSED)

    @property
    def bytes_used(self) -> int:
        """Bytes of the batches that are neither delivered nor failed."""
        return self.a.used

    @property
    def record_count(self) -> int:
        """The number of records that are neither delivered nor failed."""
        return self.a.records


cdef int sleep_on(int32_t *word, int32_t seen, int32_t *sleepers, int64_t deadline_ms) except -1:
    """Sleep until `word` is no longer `seen`. Return 0 if the deadline (monotonic, -1: none) passes first.

    Raises the exception of a signal handler, as KeyboardInterrupt.
    """
    cdef int64_t left
    cdef int result
    while atomic_load_i32(word) == seen:
        left = next_sleep_ms(deadline_ms)
        if left == 0:
            return 0
        with nogil:
            atomic_add_i32(sleepers, 1)
            result = futex_wait(word, seen, left)
            atomic_add_i32(sleepers, -1)
        if result == -EINTR or result == -ETIMEDOUT:
            PyErr_CheckSignals()
    return 1
