"""A consumer's fetching; the contract is in fetch.pxd."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp

from kbroker._core.base.receive_buffers cimport buffer_free, buffers_keep
from kbroker._core.base.sync cimport (
    atomic_add_i64, atomic_load_i32, atomic_load_i64, atomic_store_i32, mutex_lock, mutex_unlock,
)
from kbroker._core.client.consumer.chunk cimport (
    aborted_t, chunk_free, chunk_index, chunk_new, chunk_t, fetch_buffer_new, fetch_buffer_t, fetch_buffer_unref,
)
from kbroker._core.client.consumer.fetch_request cimport LAST_VERSION_WITH_NAMES, fetch_ask_t, write_fetch
from kbroker._core.client.consumer.fetch_response cimport (
    answers_free, answers_init, answers_move, fetch_answer_t, fetch_answers_t, parse_answers, read_aborted,
)
from kbroker._core.client.consumer.partitions cimport fetch_partition_t, partition_release, ready_t
from kbroker._core.client.consumer.poll cimport FetchPoll
from kbroker._core.client.socket cimport answered_t, client_socket_t, exchange_t, frame_take, socket_close, socket_send
from kbroker._core.wire.apis cimport API_FETCH, READ_COMMITTED, READ_UNCOMMITTED
from kbroker._core.wire.cursor cimport writer_free, writer_init
from kbroker._core.wire.error_codes cimport (
    UNSUPPORTED_VERSION, FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR,
)
from kbroker._core.wire.record_batch cimport BATCH_OK

cdef enum:
    BACKOFF_MS = 100                 # no request to a broker for so long after an error of a whole Fetch
    PREFERRED_REPLICA_MS = 300_000   # how long a preferred replica stays one, as Java's metadata.max.age.ms
    UNREACHED_MS = 2_000             # a preferred replica that cannot be connected to for so long is given up
    NOT_ASKED = -1


cdef void request_free(fetch_request_t *request) noexcept nogil:
    """Free a request and its references to partitions. The caller holds the lock."""
    cdef int32_t i
    for i in range(request.asked_count):
        partition_release(request.asked[i].partition)
    free(request.asked)
    writer_free(&request.out)
    free(request)


cdef class FetchEngine(FetchPoll):
    """Fetches the records of the assigned partitions and hands them out.

    Methods may be called from any thread unless they say otherwise; `poll` from one thread at a time.
    `inflate(codec, data, magic)` returns bytes or raises BadInput. `on_told` is called when `take_news` has something.
    """

    def __init__(self, inflate, *, str client_id="", str rack="", bint read_committed=False, int min_bytes=1,
                 int max_wait_ms=500, int max_bytes=52428800, int max_partition_bytes=1048576,
                 int64_t queued_max_bytes=67108864, bint check_crcs=True, int64_t request_timeout_ms=30000):
        self.inflate = inflate
        self.client_id = client_id.encode()
        self.rack = rack.encode()
        self.options.client_id = self.client_id
        self.options.client_id_size = <int16_t>len(self.client_id)
        self.options.rack = self.rack
        self.options.replica_id = -1
        self.options.replica_epoch = -1
        self.options.rack_size = <int16_t>len(self.rack)
        self.options.isolation_level = READ_COMMITTED if read_committed else READ_UNCOMMITTED
        self.options.min_bytes = min_bytes
        self.options.max_wait_ms = max_wait_ms
        self.options.max_bytes = max_bytes
        self.options.max_partition_bytes = max_partition_bytes
        if self.queued_max_bytes == 0:
            self.queued_max_bytes = queued_max_bytes
            buffers_keep(queued_max_bytes // 2)
        self.check_crcs = check_crcs
        self.request_timeout_ms = request_timeout_ms

    def __dealloc__(self):
        cdef fetch_node_t *node
        buffers_keep(-(self.queued_max_bytes // 2))
        while self.nodes != NULL:
            node = self.nodes
            self.nodes = node.next
            free(node)

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
    cdef void turn(self, int64_t now_ms) noexcept nogil:
        cdef fetch_node_t *node
        cdef client_socket_t *socket
        cdef int32_t i
        cdef bint wanted
        self.due_ms = -1
        if atomic_load_i32(&self.listening) and atomic_load_i32(&self.signal) != self.heard:
            atomic_store_i32(&self.listening, 0)
            self.pump.tell(self)
        mutex_lock(&self.lock)
        self.purge()
        for i in range(self.partition_count):
            if source_of(self.partitions[i], now_ms) >= 0:
                self.node_of(source_of(self.partitions[i], now_ms))
        mutex_unlock(&self.lock)
        node = self.nodes
        while node != NULL:
            if node.not_before_ms > now_ms:
                self.be_due(node.not_before_ms)
            elif not node.under_way and atomic_load_i64(&self.ready_bytes) < self.queued_max_bytes:
                mutex_lock(&self.lock)
                wanted = self.has_work(node, now_ms)
                mutex_unlock(&self.lock)
                socket = self.pump.socket_of(node.node_id) if wanted else NULL
                if socket != NULL:
                    node.unreached_ms = 0
                    self.send(node, socket, now_ms)
                elif wanted:
                    self.wait_for(node, now_ms)
            node = node.next

    cdef void be_due(self, int64_t at_ms) noexcept nogil:
        if self.due_ms < 0 or at_ms < self.due_ms:
            self.due_ms = at_ms

    cdef void wait_for(self, fetch_node_t *node, int64_t now_ms) noexcept nogil:
        """Note that the engine waits for a connection to a broker.

        When it has waited for UNREACHED_MS, partitions that were read from this broker as a follower are read from
        their leaders.
        """
        if node.unreached_ms == 0:
            node.unreached_ms = now_ms
        elif now_ms - node.unreached_ms >= UNREACHED_MS:
            node.unreached_ms = 0
            self.prefer_no_longer(node.node_id)
            self.be_due(now_ms)
            return
        self.be_due(node.unreached_ms + UNREACHED_MS)

    cdef void prefer_no_longer(self, int32_t node_id) noexcept nogil:
        """Read from their leaders those partitions that were read from this broker as their preferred replica."""
        cdef int32_t i
        mutex_lock(&self.lock)
        for i in range(self.partition_count):
            if self.partitions[i].read_node_id == node_id:
                self.partitions[i].read_node_id = -1
        mutex_unlock(&self.lock)

    cdef void socket_closed(self, client_socket_t *socket) noexcept nogil:
        self.prefer_no_longer(socket.node_id)

    cdef bint has_work(self, fetch_node_t *node, int64_t now_ms) noexcept nogil:
        cdef int32_t i
        for i in range(self.partition_count):
            if is_wanted(self.partitions[i], node.node_id, now_ms):
                return True
        return False

    cdef void send(self, fetch_node_t *node, client_socket_t *socket, int64_t now_ms) noexcept nogil:
        cdef int16_t version = min(socket.versions[API_FETCH], <int16_t>LAST_VERSION_WITH_NAMES)
        cdef fetch_request_t *request = NULL
        cdef int32_t i
        mutex_lock(&self.lock)
        if version >= 0:
            request = self.new_request(node, version, now_ms)
        else:
            for i in range(self.partition_count):
                if is_wanted(self.partitions[i], node.node_id, now_ms):
                    self.say(self.partitions[i], NULL, UNSUPPORTED_VERSION)
        node.under_way = request != NULL
        mutex_unlock(&self.lock)
        if request == NULL:
            return
        request.exchange.api_key = API_FETCH
        request.exchange.api_version = version
        request.exchange.deadline_ms = now_ms + self.options.max_wait_ms + self.request_timeout_ms
        request.exchange.pieces = &request.piece
        request.exchange.piece_count = 1
        request.exchange.owner = <void *>self
        request.exchange.answered = <answered_t><void *>fetch_answered
        socket_send(socket, &request.exchange)

    cdef fetch_request_t *new_request(self, fetch_node_t *node, int16_t version, int64_t now_ms) noexcept nogil:
        """Make the next request to a broker. Return NULL if memory is out. The caller holds the lock."""
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
            ask.topic_id = NULL
            ask.last_epoch = -1
            ask.log_start_offset = -1
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
                # The session of the broker that was asked before would go on bringing the partition from its old
                # offset.
                self.node_of(p.session_node_id).session_epoch = 0
                p.session_node_id = -1
            if (not incremental or p.session_node_id < 0 or p.session_offset != p.fetch_offset
                    or p.session_leader_epoch != p.leader_epoch):
                asks[ask_count] = ask
                ask_count += 1
            p.session_node_id = node.node_id
            p.session_offset = p.fetch_offset
            p.session_leader_epoch = p.leader_epoch
        write_fetch(&request.out, version, &self.options, node.session_id, node.session_epoch, asks, ask_count,
                    forgotten, forgotten_count)
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
        """Make the next request to the broker a full one, which ends its session. The caller holds the lock."""
        cdef int32_t i
        node.session_epoch = 0
        for i in range(self.partition_count):
            if self.partitions[i].session_node_id == node.node_id:
                self.partitions[i].session_node_id = -1

    cdef bint take_answer(self, fetch_request_t *request, client_socket_t *socket, const uint8_t *body,
                          int64_t size) noexcept nogil:
        """Take in the answer to a request. Return False if it is malformed, or if memory is out."""
        cdef fetch_answers_t answers
        cdef int32_t *places = NULL
        cdef chunk_t **chunks = NULL
        cdef int64_t now_ms = socket.pump.now_ms
        cdef int32_t i
        cdef bint good = False
        cdef bint is_empty = True
        answers_init(&answers)
        if parse_answers(&answers, request.exchange.api_version, body, size) == 0:
            places = <int32_t *>malloc(sizeof(int32_t) * max(answers.count, 1))
            chunks = <chunk_t **>calloc(max(answers.count, 1), sizeof(chunk_t *))
            good = places != NULL and chunks != NULL \
                and self.make_chunks(request, socket, body, &answers, places, chunks)
        if good:
            mutex_lock(&self.lock)
            self.settle_session(request, &answers, now_ms)
            for i in range(answers.count):
                is_empty = is_empty and chunks[i] == NULL
                if places[i] != NOT_ASKED:
                    self.settle(&request.asked[places[i]], &answers.answers[i], chunks[i], now_ms)
            if is_empty and answers.error == 0 and answers.throttle_ms == 0:
                self.settle_empty(request, now_ms)
            mutex_unlock(&self.lock)
        elif chunks != NULL:
            for i in range(answers.count):
                if chunks[i] != NULL:
                    chunk_free(chunks[i])
        free(places)
        free(chunks)
        answers_free(&answers)
        return good

    cdef bint make_chunks(self, fetch_request_t *request, client_socket_t *socket, const uint8_t *body,
                          fetch_answers_t *answers, int32_t *places, chunk_t **chunks) noexcept nogil:
        """Find the ask that each answer is for (`places`), and make a chunk of its records.

        Return False if memory is out.
        """
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
                                     aborted if self.options.isolation_level == READ_COMMITTED else NULL,
                                     answer.aborted_count, self.check_crcs)
            free(aborted)
            if failed:
                break
        fetch_buffer_unref(buffer)
        return not failed

    cdef void settle_session(self, fetch_request_t *request, const fetch_answers_t *answers,
                             int64_t now_ms) noexcept nogil:
        cdef fetch_node_t *node = request.node
        if answers.throttle_ms > 0:
            node.not_before_ms = now_ms + answers.throttle_ms
        if answers.error:
            self.forget_session(node)
            if answers.error == FETCH_SESSION_ID_NOT_FOUND:
                node.session_id = 0
            if request.full or answers.error not in (
                    FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR):
                node.not_before_ms = max(node.not_before_ms, now_ms + BACKOFF_MS)
        elif answers.session_id == 0:
            self.forget_session(node)
            node.session_id = 0
        elif request.full or node.session_epoch > 0:
            node.session_id = answers.session_id
            node.session_epoch = 1 if request.full or node.session_epoch == 0x7fffffff else node.session_epoch + 1
            if request.full and has_left(request):
                self.forget_session(node)

    cdef void settle_empty(self, const fetch_request_t *request, int64_t now_ms) noexcept nogil:
        """Move partitions to their stop offsets after a Fetch that brought no records. The caller holds the lock.

        A partition whose records can be read up to its stop offset has none left before that offset.
        """
        cdef const asked_t *asked
        cdef fetch_partition_t *p
        cdef int64_t end
        cdef int32_t i
        for i in range(request.asked_count):
            asked = &request.asked[i]
            p = asked.partition
            end = p.high_watermark
            if self.options.isolation_level == READ_COMMITTED and p.last_stable_offset >= 0:
                end = p.last_stable_offset
            # `settle` has set the generation to -1 if the partition was answered in this response.
            if (asked.generation == -1 or asked.generation == p.generation) and asked.offset == p.fetch_offset \
                    and is_wanted(p, request.node.node_id, now_ms) and p.fetch_offset < p.stop_offset <= end:
                p.fetch_offset = p.stop_offset

    cdef void settle(self, asked_t *asked, const fetch_answer_t *answer, chunk_t *chunk, int64_t now_ms) noexcept nogil:
        """Take in the answer for one partition. The caller holds the lock."""
        cdef fetch_partition_t *p = asked.partition
        cdef ready_t *ready
        # The position was set meanwhile, or the partition went to another broker, which has brought these records
        # already.
        if asked.generation != p.generation or asked.offset != p.fetch_offset:
            self.dropped += 1
            if chunk != NULL:
                chunk_free(chunk)
            return
        asked.generation = -1    # a second answer for the same partition is dropped
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
            return               # the records are fetched again
        p.fetch_offset = chunk.next_offset
        if chunk.next_offset > chunk.start_offset:
            p.fetch_epoch = chunk.leader_epoch
        p.blocked = chunk.finding != BATCH_OK    # until poll has come to the damaged bytes and raised an error
        p.refs += 1
        ready.partition = p
        ready.generation = p.generation
        ready.chunk = chunk
        ready.next = NULL
        self.ready_end[0] = ready
        self.ready_end = &ready.next
        atomic_add_i64(&self.ready_bytes, chunk.size)

cdef int32_t source_of(fetch_partition_t *p, int64_t now_ms) noexcept nogil:
    """The id of the broker that a partition is fetched from; -1 if it is not known."""
    if p.read_node_id >= 0 and now_ms >= p.read_until_ms:
        p.read_node_id = -1
    return p.read_node_id if p.read_node_id >= 0 else p.node_id

cdef bint is_wanted(fetch_partition_t *p, int32_t node_id, int64_t now_ms) noexcept nogil:
    return (p.assigned and not p.paused and not p.blocked and 0 <= p.fetch_offset < p.stop_offset
            and source_of(p, now_ms) == node_id)

cdef bint has_left(const fetch_request_t *request) noexcept nogil:
    """Return whether a partition of the request is no longer in the fetch session of the broker that was asked.

    The caller holds the lock.
    """
    cdef int32_t i
    for i in range(request.asked_count):
        if request.asked[i].partition.session_node_id != request.node.node_id:
            return True
    return False

cdef int32_t asked_place(const fetch_request_t *request, const fetch_answer_t *answer, int32_t start) noexcept nogil:
    """The index of the ask that an answer is for, or NOT_ASKED.

    Answers come roughly in the order of the asks. `start` is the index that the search begins with.
    """
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

cdef void fetch_answered(FetchEngine engine, exchange_t *exchange, client_socket_t *socket, const uint8_t *body,
                         int64_t size, const char *reason) noexcept nogil:
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
