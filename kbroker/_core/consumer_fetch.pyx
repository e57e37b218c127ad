"""A consumer's fetching; the contract is in consumer_fetch.pxd."""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from kbroker._core.arrays cimport with_room
from kbroker._core.client_pump cimport Engine
from kbroker._core.client_socket cimport answered_t, client_socket_t, exchange_t, frame_take, iovec, socket_close, socket_send
from kbroker._core.consumer_chunk cimport (
    aborted_t, chunk_free, chunk_index, chunk_new, chunk_t, fetch_buffer_new, fetch_buffer_t, fetch_buffer_unref,
)
from kbroker._core.consumer_fetch_request cimport (
    FIRST_FETCH_VERSION, LAST_FETCH_VERSION, fetch_ask_t, write_fetch,
)
from kbroker._core.consumer_fetch_response cimport (
    answers_free, answers_init, answers_move, fetch_answer_t, fetch_answers_t, parse_answers, read_aborted,
)
from kbroker._core.consumer_records cimport Chunk, Records, new_chunk, new_records
from kbroker._core.cursor cimport writer_free, writer_init
from kbroker._core.receive_buffers cimport buffer_free
from kbroker._core.record_batch cimport BATCH_OK
from kbroker._core.sync cimport (
    atomic_add_i32, atomic_add_i64, atomic_load_i32, atomic_load_i64, mutex_destroy, mutex_init, mutex_lock, mutex_t, mutex_unlock,
)

from kbroker._core.consumer_records import UnreadableRecords

cdef extern from * nogil:
    """
    #include <linux/futex.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static inline int64_t monotonic_ms(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
    }
    /* Until *p is not `value`, woken, a signal, or so long. */
    static inline void futex_wait(int32_t *p, int32_t value, int64_t timeout_ms) {
        struct timespec t = {timeout_ms / 1000, timeout_ms % 1000 * 1000000};
        syscall(SYS_futex, p, FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
    }
    static inline void futex_wake_all(int32_t *p) { syscall(SYS_futex, p, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0); }
    """
    int64_t monotonic_ms()
    void futex_wait(int32_t *p, int32_t value, int64_t timeout_ms)
    void futex_wake_all(int32_t *p)

cdef enum:
    FETCH = 1
    READ_COMMITTED = 1
    UNSUPPORTED_VERSION = 35
    FETCH_SESSION_ID_NOT_FOUND = 70
    PAUSED = 1                       # bits of fetch_partition_t.paused: by the user
    HELD = 2                         # for good: it is about to be removed
    MOST_WAIT_MS = 500               # a signal that another thread was given is seen after so long
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    BACKOFF_MS = 100                 # after an error of a whole Fetch
    PREFERRED_REPLICA_MS = 300_000   # how long a preferred replica is, as Java's metadata.max.age.ms
    NOT_ASKED = -1

# --- partitions -------------------------------------------------------------------------------------

cdef void partition_release(fetch_partition_t *p) noexcept nogil:
    """With the lock."""
    p.refs -= 1
    if p.refs == 0:
        free(p.topic)
        free(p)

cdef void ready_free(ready_t *ready) noexcept nogil:
    if ready.chunk != NULL:
        chunk_free(ready.chunk)
    partition_release(ready.partition)
    free(ready)

cdef void request_free(fetch_request_t *request) noexcept nogil:
    """With the lock."""
    cdef int32_t i
    for i in range(request.asked_count):
        partition_release(request.asked[i].partition)
    free(request.asked)
    writer_free(&request.out)
    free(request)


cdef class FetchEngine(Engine):
    """Fetches what is assigned, and hands it out. Methods are for any thread unless they say otherwise; poll is for one at a time.

    `inflate(codec, data)` returns bytes or raises BadInput. `on_told` is called when `take_news` has something.
    """

    def __cinit__(self, *_args, **_keywords):
        mutex_init(&self.lock, NULL)
        self.ready_end = &self.ready
        self.by_name = {}
        self.begun = []
        self.errors = []

    def __init__(self, inflate, *, str client_id="", str rack="", bint read_committed=False, int min_bytes=1, int max_wait_ms=500,
                 int max_bytes=52428800, int max_partition_bytes=1048576, int64_t queued_max_bytes=67108864, bint check_crcs=True,
                 int64_t request_timeout_ms=30000):
        self.inflate = inflate
        self.client_id = client_id.encode()
        self.rack = rack.encode()
        self.options.client_id = self.client_id
        self.options.client_id_size = <int16_t>len(self.client_id)
        self.options.rack = self.rack
        self.options.rack_size = <int16_t>len(self.rack)
        self.options.isolation_level = READ_COMMITTED if read_committed else 0
        self.options.min_bytes = min_bytes
        self.options.max_wait_ms = max_wait_ms
        self.options.max_bytes = max_bytes
        self.options.max_partition_bytes = max_partition_bytes
        self.queued_max_bytes = queued_max_bytes
        self.check_crcs = check_crcs
        self.request_timeout_ms = request_timeout_ms

    def __dealloc__(self):
        # Nothing is under way: the pump has answered everything before it let go of its engines.
        cdef ready_t *ready
        cdef fetch_node_t *node
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
        while self.nodes != NULL:
            node = self.nodes
            self.nodes = node.next
            free(node)
        mutex_destroy(&self.lock)

    # --- what is fetched ------------------------------------------------------------------------------------

    cdef fetch_partition_t *find(self, topic, partition) except NULL:
        address = self.by_name.get((topic, partition))
        if address is None:
            raise KeyError(f"{topic}-{partition} is not assigned")
        return <fetch_partition_t *><size_t>address

    def assign(self, str topic not None, int32_t partition, int64_t offset=-1):
        """Begin with a partition, from `offset` on; -1: it is not known yet, `seek` says it. ValueError when it is assigned already."""
        cdef fetch_partition_t *p
        cdef fetch_partition_t **grown
        cdef bytes name = topic.encode()
        if (topic, partition) in self.by_name:
            raise ValueError(f"{topic}-{partition} is assigned already")
        if not 0 < len(name) < 0x8000:
            raise ValueError(f"a topic's name of {len(name)} bytes")
        p = self.revive(name, partition, offset)
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
        mutex_lock(&self.lock)
        grown = <fetch_partition_t **>with_room(self.partitions, self.partition_count, &self.partition_capacity, sizeof(void *))
        if grown != NULL:
            self.partitions = grown
            grown[self.partition_count] = p
            self.partition_count += 1
            self.move(p, offset)
        mutex_unlock(&self.lock)
        if grown == NULL:
            free(p.topic)
            free(p)
            raise MemoryError()
        self.by_name[topic, partition] = <size_t>p

    cdef fetch_partition_t *revive(self, bytes name, int32_t partition, int64_t offset) noexcept:
        """A partition that was removed and that a session still has; NULL: there is none."""
        cdef fetch_partition_t *found = NULL
        cdef fetch_partition_t *p
        cdef const char *topic = name
        cdef Py_ssize_t size = len(name)
        cdef int32_t i
        mutex_lock(&self.lock)
        for i in range(self.partition_count):
            p = self.partitions[i]
            if not p.assigned and p.partition == partition and p.topic_size == size and memcmp(p.topic, topic, <size_t>size) == 0:
                found = p
        if found != NULL:
            self.move(found, offset)
            found.assigned = True
            found.paused = found.blocked = False
            found.node_id = found.read_node_id = found.leader_epoch = -1
            found.high_watermark = found.last_stable_offset = found.log_start_offset = -1
        mutex_unlock(&self.lock)
        return found

    def remove(self, str topic not None, int32_t partition):
        """No more of a partition: what waits is dropped."""
        cdef fetch_partition_t *p = self.find(topic, partition)
        del self.by_name[topic, partition]
        mutex_lock(&self.lock)
        p.assigned = False
        self.move(p, -1)
        mutex_unlock(&self.lock)
        self.wake()

    def seek(self, str topic not None, int32_t partition, int64_t offset):
        """Go on at `offset`; -1: not known. What waits is dropped, what is under way when it comes. An error is forgotten."""
        cdef fetch_partition_t *p = self.find(topic, partition)
        mutex_lock(&self.lock)
        self.move(p, offset)
        p.blocked = False
        mutex_unlock(&self.lock)
        self.wake()

    def lead(self, str topic not None, int32_t partition, int32_t node_id, int32_t leader_epoch=-1):
        """Who leads a partition, -1 nobody that is known. Fetching goes on after an error."""
        cdef fetch_partition_t *p = self.find(topic, partition)
        mutex_lock(&self.lock)
        p.node_id = node_id
        p.leader_epoch = leader_epoch
        p.read_node_id = -1
        p.blocked = False
        mutex_unlock(&self.lock)
        self.wake()

    def pause(self, str topic not None, int32_t partition):
        """Neither fetch nor hand out, until `resume`; what waits is kept."""
        self.find(topic, partition).paused |= PAUSED
        self.wake()

    def hold(self, str topic not None, int32_t partition):
        """The same until it is removed, whatever the user resumes: somebody else is to have it."""
        self.find(topic, partition).paused |= HELD
        self.wake()

    def resume(self, str topic not None, int32_t partition):
        self.find(topic, partition).paused &= ~PAUSED
        self.awaken()
        self.wake()

    def is_paused(self, str topic not None, int32_t partition):
        return (self.find(topic, partition).paused & PAUSED) != 0

    def position(self, str topic not None, int32_t partition):
        """The offset of the next record that poll gives; -1 not known."""
        return self.find(topic, partition).position

    def watermarks(self, str topic not None, int32_t partition):
        """(log start offset, last stable offset, high watermark) as the last answer had them; -1 not known."""
        cdef fetch_partition_t *p = self.find(topic, partition)
        return p.log_start_offset, p.last_stable_offset, p.high_watermark

    def assigned(self):
        """(topic, partition) of all that is assigned."""
        return list(self.by_name)

    @property
    def buffered_bytes(self):
        return atomic_load_i64(&self.ready_bytes)

    def wake(self):
        """Look again what there is to fetch."""
        if self.pump is not None:
            with nogil:
                self.pump.wake(self)

    cdef void move(self, fetch_partition_t *p, int64_t offset) noexcept nogil:
        """With the lock."""
        cdef ready_t **link = &self.ready
        cdef ready_t *ready
        self.generations += 1
        p.generation = self.generations
        p.fetch_offset = p.position = offset
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

    # --- what Python decides --------------------------------------------------------------------------------

    cdef void say(self, fetch_partition_t *p, const fetch_answer_t *answer, int16_t error) noexcept nogil:
        """With the lock."""
        cdef news_t *news = <news_t *>malloc(sizeof(news_t))
        if news == NULL:
            return               # it is fetched again and fails again
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
        """(topic, partition, error code, offset, leader's id, leader's epoch) of partitions that stand still: `lead` and `seek` let them go on.

        The leader is what the broker said it is, -1 when it did not.
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
                found.append((topic, news.partition.partition, news.error, news.offset, news.leader_id, news.leader_epoch))
            mutex_lock(&self.lock)
            partition_release(news.partition)
            mutex_unlock(&self.lock)
            free(news)
            news = next
        found.reverse()
        return found

    # --- asking, on the pump's thread -----------------------------------------------------------------------

    cdef fetch_node_t *node_of(self, int32_t node_id) noexcept nogil:
        cdef fetch_node_t *node = self.nodes
        while node != NULL and node.node_id != node_id:
            node = node.next
        if node == NULL:
            node = <fetch_node_t *>calloc(1, sizeof(fetch_node_t))
            if node != NULL:
                node.node_id = node_id
                node.next = self.nodes
                self.nodes = node
        return node

    cdef void purge(self) noexcept nogil:
        """With the lock: partitions that nobody needs any more go."""
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

    cdef void turn(self, int64_t now_ms) noexcept nogil:
        cdef fetch_node_t *node
        cdef client_socket_t *socket
        cdef int32_t i
        cdef bint wanted
        self.due_ms = -1
        mutex_lock(&self.lock)
        self.purge()
        for i in range(self.partition_count):
            if source_of(self.partitions[i], now_ms) >= 0:
                self.node_of(source_of(self.partitions[i], now_ms))
        mutex_unlock(&self.lock)
        node = self.nodes
        while node != NULL:
            if node.not_before_ms > now_ms:
                if self.due_ms < 0 or node.not_before_ms < self.due_ms:
                    self.due_ms = node.not_before_ms
            elif not node.under_way and atomic_load_i64(&self.ready_bytes) < self.queued_max_bytes:
                mutex_lock(&self.lock)
                wanted = self.has_work(node, now_ms)
                mutex_unlock(&self.lock)
                socket = self.pump.socket_of(node.node_id) if wanted else NULL
                if socket != NULL:
                    self.send(node, socket, now_ms)
            node = node.next

    cdef bint has_work(self, fetch_node_t *node, int64_t now_ms) noexcept nogil:
        cdef int32_t i
        for i in range(self.partition_count):
            if is_wanted(self.partitions[i], node.node_id, now_ms):
                return True
        return False

    cdef void send(self, fetch_node_t *node, client_socket_t *socket, int64_t now_ms) noexcept nogil:
        cdef int16_t version = min(socket.versions[FETCH], <int16_t>LAST_FETCH_VERSION)
        cdef fetch_request_t *request = NULL
        cdef int32_t i
        mutex_lock(&self.lock)
        if version >= FIRST_FETCH_VERSION:
            request = self.prepare(node, version, now_ms)
        else:
            for i in range(self.partition_count):
                if is_wanted(self.partitions[i], node.node_id, now_ms):
                    self.say(self.partitions[i], NULL, UNSUPPORTED_VERSION)
        node.under_way = request != NULL
        mutex_unlock(&self.lock)
        if request == NULL:
            return
        request.exchange.api_key = FETCH
        request.exchange.api_version = version
        request.exchange.deadline_ms = now_ms + self.options.max_wait_ms + self.request_timeout_ms
        request.exchange.pieces = &request.piece
        request.exchange.piece_count = 1
        request.exchange.owner = <void *>self
        request.exchange.answered = <answered_t><void *>fetch_answered
        socket_send(socket, &request.exchange)

    cdef fetch_request_t *prepare(self, fetch_node_t *node, int16_t version, int64_t now_ms) noexcept nogil:
        """With the lock. NULL when memory is out."""
        cdef size_t most = <size_t>self.partition_count
        cdef fetch_request_t *request = <fetch_request_t *>calloc(1, sizeof(fetch_request_t))
        cdef fetch_ask_t *asks = <fetch_ask_t *>malloc(2 * most * sizeof(fetch_ask_t))
        cdef fetch_ask_t *forgotten = asks + most
        cdef asked_t *asked = <asked_t *>malloc(most * sizeof(asked_t))
        cdef fetch_partition_t *p
        cdef fetch_ask_t ask
        cdef int32_t ask_count = 0
        cdef int32_t forgotten_count = 0
        cdef int32_t i
        cdef bint incremental = version >= 7 and node.session_epoch > 0
        if request == NULL or asks == NULL or asked == NULL:
            free(request)
            free(asks)
            free(asked)
            return NULL
        writer_init(&request.out)
        request.node = node
        request.full = not incremental
        request.asked = asked
        self.first = (self.first + 1) % self.partition_count
        for i in range(self.partition_count):
            p = self.partitions[(self.first + i) % self.partition_count]
            ask.topic = p.topic
            ask.topic_size = p.topic_size
            ask.partition = p.partition
            ask.leader_epoch = p.leader_epoch
            ask.offset = p.fetch_offset
            if not is_wanted(p, node.node_id, now_ms):
                if p.session_node_id == node.node_id:
                    p.session_node_id = -1
                    forgotten[forgotten_count] = ask
                    forgotten_count += incremental
                continue
            p.refs += 1
            asked[request.asked_count].partition = p
            asked[request.asked_count].generation = p.generation
            asked[request.asked_count].offset = p.fetch_offset
            request.asked_count += 1
            if p.session_node_id >= 0 and p.session_node_id != node.node_id:
                # The other broker's session would go on bringing it from where it was.
                self.node_of(p.session_node_id).session_epoch = 0
                p.session_node_id = -1
            if (not incremental or p.session_node_id < 0 or p.session_offset != p.fetch_offset
                    or p.session_leader_epoch != p.leader_epoch):
                asks[ask_count] = ask
                ask_count += 1
            p.session_node_id = node.node_id
            p.session_offset = p.fetch_offset
            p.session_leader_epoch = p.leader_epoch
        write_fetch(&request.out, version, &self.options, node.session_id, node.session_epoch, asks, ask_count, forgotten, forgotten_count)
        free(asks)
        if request.out.failed:
            self.forget_session(node)
            request_free(request)
            return NULL
        request.piece.iov_base = request.out.data
        request.piece.iov_len = request.out.size
        return request

    # --- answers, on the pump's thread ----------------------------------------------------------------------

    cdef void forget_session(self, fetch_node_t *node) noexcept nogil:
        """With the lock: the next request is a full one, which ends the broker's session, if there is one."""
        cdef int32_t i
        node.session_epoch = 0
        for i in range(self.partition_count):
            if self.partitions[i].session_node_id == node.node_id:
                self.partitions[i].session_node_id = -1

    cdef bint take_answer(self, fetch_request_t *request, client_socket_t *socket, const uint8_t *body, int64_t size) noexcept nogil:
        """False: it was not one."""
        cdef fetch_answers_t answers
        cdef int32_t *places = NULL
        cdef chunk_t **chunks = NULL
        cdef int64_t now_ms = monotonic_ms()
        cdef int32_t i
        cdef bint good = False
        answers_init(&answers)
        if parse_answers(&answers, request.exchange.api_version, body, size) == 0:
            places = <int32_t *>malloc(sizeof(int32_t) * max(answers.count, 1))
            chunks = <chunk_t **>calloc(max(answers.count, 1), sizeof(chunk_t *))
            good = places != NULL and chunks != NULL and self.make_chunks(request, socket, body, &answers, places, chunks)
        if good:
            mutex_lock(&self.lock)
            self.settle_session(request, &answers, now_ms)
            for i in range(answers.count):
                if places[i] != NOT_ASKED:
                    self.settle(&request.asked[places[i]], &answers.answers[i], chunks[i], now_ms)
            mutex_unlock(&self.lock)
        elif chunks != NULL:
            for i in range(answers.count):
                if chunks[i] != NULL:
                    chunk_free(chunks[i])
        free(places)
        free(chunks)
        answers_free(&answers)
        return good

    cdef bint make_chunks(self, fetch_request_t *request, client_socket_t *socket, const uint8_t *body, fetch_answers_t *answers,
                          int32_t *places, chunk_t **chunks) noexcept nogil:
        """Which ask each answer is for, and its records, looked through. False: memory is out."""
        cdef int16_t version = request.exchange.api_version
        cdef const uint8_t *before = body
        cdef uint8_t *taken
        cdef int64_t capacity = 0
        cdef int64_t records_size = 0
        cdef fetch_buffer_t *buffer = NULL
        cdef fetch_answer_t *answer
        cdef aborted_t *aborted
        cdef int32_t place = 0
        cdef int32_t i
        cdef int failed = 0
        for i in range(answers.count):
            answer = &answers.answers[i]
            place = asked_place(request, answer, place)
            places[i] = place
            if place == NOT_ASKED:
                place = 0
            elif answer.error == 0:
                records_size += answer.records_size
        if records_size == 0:
            return True
        taken = frame_take(socket, &body, &capacity)
        if taken == NULL:
            return False
        answers_move(answers, body - before)
        buffer = fetch_buffer_new(taken, capacity)
        if buffer == NULL:
            buffer_free(taken, capacity)
            return False
        for i in range(answers.count):
            answer = &answers.answers[i]
            if places[i] == NOT_ASKED or answer.error or answer.records_size == 0:
                continue
            chunks[i] = chunk_new(buffer, request.asked[places[i]].offset)
            aborted = <aborted_t *>malloc(sizeof(aborted_t) * max(answer.aborted_count, 1))
            if chunks[i] == NULL or aborted == NULL:
                failed = -1
            else:
                read_aborted(answer, version, aborted)
                failed = chunk_index(chunks[i], answer.records, answer.records_size,
                                     aborted if self.options.isolation_level == READ_COMMITTED else NULL, answer.aborted_count,
                                     self.check_crcs)
            free(aborted)
            if failed:
                break
        fetch_buffer_unref(buffer)
        return not failed

    cdef void settle_session(self, fetch_request_t *request, const fetch_answers_t *answers, int64_t now_ms) noexcept nogil:
        cdef fetch_node_t *node = request.node
        if answers.throttle_ms > 0:
            node.not_before_ms = now_ms + answers.throttle_ms
        if answers.error:
            self.forget_session(node)
            if answers.error == FETCH_SESSION_ID_NOT_FOUND:
                node.session_id = 0
            elif not FETCH_SESSION_ID_NOT_FOUND < answers.error <= FETCH_SESSION_TOPIC_ID_ERROR:
                node.not_before_ms = max(node.not_before_ms, now_ms + BACKOFF_MS)
        elif answers.session_id == 0:
            self.forget_session(node)
            node.session_id = 0
        elif request.full or node.session_epoch > 0:
            node.session_id = answers.session_id
            node.session_epoch = 1 if request.full or node.session_epoch == 0x7fffffff else node.session_epoch + 1

    cdef void settle(self, asked_t *asked, const fetch_answer_t *answer, chunk_t *chunk, int64_t now_ms) noexcept nogil:
        """With the lock: one partition's answer."""
        cdef fetch_partition_t *p = asked.partition
        cdef ready_t *ready
        if asked.generation != p.generation:
            self.dropped += 1
            if chunk != NULL:
                chunk_free(chunk)
            return
        asked.generation = -1    # a second answer for it would come too late
        if answer.error:
            if p.read_node_id >= 0:
                p.read_node_id = -1
            else:
                self.say(p, answer, answer.error)
            return
        p.high_watermark = answer.high_watermark
        p.last_stable_offset = answer.last_stable_offset
        p.log_start_offset = answer.log_start_offset
        if chunk == NULL:
            if answer.preferred_replica >= 0 and p.read_node_id < 0:
                p.read_node_id = answer.preferred_replica
                p.read_until_ms = now_ms + PREFERRED_REPLICA_MS
            return
        ready = <ready_t *>malloc(sizeof(ready_t))
        if ready == NULL:
            chunk_free(chunk)
            return               # it is fetched again
        p.fetch_offset = chunk.next_offset
        p.blocked = chunk.finding != BATCH_OK    # until poll has come to it and raised it
        p.refs += 1
        ready.partition = p
        ready.generation = p.generation
        ready.chunk = chunk
        ready.next = NULL
        self.ready_end[0] = ready
        self.ready_end = &ready.next
        atomic_add_i64(&self.ready_bytes, chunk.size)

    cdef void awaken(self) noexcept nogil:
        atomic_add_i32(&self.signal, 1)
        if atomic_load_i32(&self.waiting):
            futex_wake_all(&self.signal)

    # --- handing out ----------------------------------------------------------------------------------------

    def poll(self, int64_t timeout_ms, int64_t max_records):
        """The next records, at most so many; none when there are none within the time, or after `interrupt`.

        Raises what `raise_in_poll` was given, and UnreadableRecords once all before it has been given: then position stays where it is.
        Gives the GIL back while it waits; KeyboardInterrupt and other exceptions of signal handlers come out.
        """
        cdef Records records
        cdef int64_t until_ms = monotonic_ms() + timeout_ms
        cdef int64_t left_ms
        cdef int32_t seen
        while True:
            seen = atomic_load_i32(&self.signal)
            self.raise_one()
            records = new_records()
            self.take_begun(records, max_records)
            self.take_ready(records, max_records - records.count)
            if records.count:
                return records
            self.raise_one()
            left_ms = until_ms - monotonic_ms()
            if left_ms <= 0 or self.interrupted:
                self.interrupted = False
                return records
            atomic_add_i32(&self.waiting, 1)
            with nogil:
                futex_wait(&self.signal, seen, min(left_ms, <int64_t>MOST_WAIT_MS))
            atomic_add_i32(&self.waiting, -1)
            PyErr_CheckSignals()

    def interrupt(self):
        """A poll that waits returns, or the next one does."""
        self.interrupted = True
        self.awaken()

    def raise_in_poll(self, error):
        """The next poll raises it."""
        self.errors.append((error, None, 0))
        self.awaken()

    cdef int raise_one(self) except -1:
        cdef fetch_partition_t *p
        while self.errors:
            error, key, generation = self.errors.pop(0)
            if key is None:
                raise error
            if key not in self.by_name:
                continue
            p = self.find(key[0], key[1])
            if p.generation == generation:
                mutex_lock(&self.lock)
                self.move(p, p.position)
                p.blocked = False
                mutex_unlock(&self.lock)
                self.wake()
                raise error
        return 0

    cdef int stop_at(self, error, tuple key, int64_t generation) except -1:
        """A partition whose next records cannot be read: nothing behind them is handed out."""
        cdef fetch_partition_t *p
        if key in self.by_name:
            p = self.find(key[0], key[1])
            mutex_lock(&self.lock)
            if p.generation == generation:
                self.move(p, p.position)
                p.blocked = True
                generation = p.generation
            mutex_unlock(&self.lock)
            self.errors.append((error, key, generation))
        return 0

    cdef int deliver(self, Records records, Chunk chunk, tuple key, int64_t generation, int64_t first, int64_t most) except -1:
        cdef fetch_partition_t *p
        cdef int64_t end = min(chunk.chunk.record_count, first + most)
        cdef int64_t position
        cdef bint current
        if key not in self.by_name:
            return 0
        p = self.find(key[0], key[1])
        try:
            position = chunk.offset_of(end)
        except UnreadableRecords as error:
            return self.stop_at(error, key, generation)
        mutex_lock(&self.lock)
        current = p.generation == generation
        if current:
            p.position = position
        mutex_unlock(&self.lock)
        if not current:
            return 0
        if end > first:
            records.add(chunk, first, end)
        if end < chunk.chunk.record_count:
            self.begun.append((chunk, key, generation, end))
            p.begun = True
        elif chunk.chunk.finding != BATCH_OK:
            self.stop_at(chunk.error, key, generation)
        return 0

    cdef int take_begun(self, Records records, int64_t most) except -1:
        """What an earlier poll has left over of a chunk."""
        cdef fetch_partition_t *p
        begun, self.begun = self.begun, []
        for chunk, key, generation, first in begun:
            if key not in self.by_name:
                continue
            p = self.find(key[0], key[1])
            if p.generation != generation:
                continue
            p.begun = False
            if p.paused or records.count >= most:
                self.begun.append((chunk, key, generation, first))
                p.begun = True
            else:
                self.deliver(records, chunk, key, generation, first, most - records.count)
        return 0

    cdef int take_ready(self, Records records, int64_t most) except -1:
        cdef ready_t *ready
        cdef ready_t **link
        cdef chunk_t *chunk
        cdef int64_t generation
        cdef int64_t end = records.count + most
        cdef Chunk made
        cdef bint freed = False
        while records.count < end:
            mutex_lock(&self.lock)
            link = &self.ready
            while link[0] != NULL and (link[0].partition.paused or link[0].partition.begun):
                link = &link[0].next
            ready = link[0]
            if ready != NULL:
                link[0] = ready.next
                if ready.next == NULL:
                    self.ready_end = link
                atomic_add_i64(&self.ready_bytes, -ready.chunk.size)
            mutex_unlock(&self.lock)
            if ready == NULL:
                break
            freed = True
            key = key_of(ready.partition)
            chunk = ready.chunk
            ready.chunk = NULL
            generation = ready.generation
            mutex_lock(&self.lock)
            ready_free(ready)
            mutex_unlock(&self.lock)
            try:
                made = new_chunk(chunk, key[0], key[1], self.inflate)
            except UnreadableRecords as error:
                self.stop_at(error, key, generation)
                continue
            self.deliver(records, made, key, generation, 0, end - records.count)
        if freed:
            self.wake()
        return 0


cdef tuple key_of(const fetch_partition_t *p):
    return (<const char *>p.topic)[:p.topic_size].decode(), p.partition

cdef int32_t source_of(fetch_partition_t *p, int64_t now_ms) noexcept nogil:
    """The broker that a partition is fetched from, -1 not known."""
    if p.read_node_id >= 0 and now_ms >= p.read_until_ms:
        p.read_node_id = -1
    return p.read_node_id if p.read_node_id >= 0 else p.node_id

cdef bint is_wanted(fetch_partition_t *p, int32_t node_id, int64_t now_ms) noexcept nogil:
    return p.assigned and not p.paused and not p.blocked and p.fetch_offset >= 0 and source_of(p, now_ms) == node_id

cdef int32_t asked_place(const fetch_request_t *request, const fetch_answer_t *answer, int32_t start) noexcept nogil:
    """Which ask it answers. Answers come about in the order of the asks: `start` is where the last one was."""
    cdef int32_t i
    cdef int32_t place
    cdef const fetch_partition_t *p
    for i in range(request.asked_count):
        place = (start + i) % request.asked_count
        p = request.asked[place].partition
        if (p.partition == answer.partition and p.topic_size == answer.topic_size
                and memcmp(p.topic, answer.topic, <size_t>p.topic_size) == 0):
            return place
    return NOT_ASKED

cdef void fetch_answered(FetchEngine engine, exchange_t *exchange, client_socket_t *socket, const uint8_t *body, int64_t size,
                         const char *reason) noexcept nogil:
    cdef fetch_request_t *request = <fetch_request_t *>exchange
    cdef bint good = body != NULL and engine.take_answer(request, socket, body, size)
    cdef fetch_node_t *node = request.node
    if body != NULL and not good:
        socket_close(socket, b"the answer to a Fetch is none")
    mutex_lock(&engine.lock)
    if not good:
        engine.forget_session(node)
    node.under_way = False
    request_free(request)
    mutex_unlock(&engine.lock)
    engine.awaken()
    engine.pump.wake(engine)
