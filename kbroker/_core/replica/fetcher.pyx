"""A follower's fetching; the contract is in fetcher.pxd."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memset

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.links cimport chain_push, chain_remove
from kbroker._core.base.mailbox cimport mail_t, mailbox_is_empty, mailbox_t, post, take_all, take_next
from kbroker._core.base.receive_buffers cimport buffers_keep
from kbroker._core.base.sync cimport (
    atomic_add_i32, atomic_add_i64, atomic_load_i32, atomic_load_i64, atomic_store_i32, condition_broadcast,
    mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)
from kbroker._core.base.throttle cimport throttle_record, throttle_wait_ms
from kbroker._core.client.consumer.fetch_request cimport (
    LAST_FETCH_VERSION, LAST_VERSION_WITH_NAMES, TOPIC_ID_SIZE, fetch_ask_t, write_fetch,
)
from kbroker._core.client.consumer.fetch_response cimport (
    answers_free, answers_init, fetch_answer_t, fetch_answers_t, parse_answers,
)
from kbroker._core.client.pump cimport Engine
from kbroker._core.client.socket cimport answered_t, client_socket_t, exchange_t, socket_close, socket_send
from kbroker._core.log.acks cimport acks_await, acks_forget, acks_give_up
from kbroker._core.log.follow cimport followed_t, leader_state_t, partition_follow
from kbroker._core.log.partition cimport ack_waiter_t
from kbroker._core.replica.followed cimport (
    TROUBLE_APPEND, TROUBLE_DIVERGING, TROUBLE_ERROR, TROUBLE_START, FollowedPartitions, followed_partition_t,
    followed_release, trouble_t,
)
from kbroker._core.wire.apis cimport API_FETCH, READ_UNCOMMITTED
from kbroker._core.wire.cursor cimport writer_free, writer_init
from kbroker._core.wire.error_codes cimport (
    CORRUPT_MESSAGE, FENCED_LEADER_EPOCH, FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR,
    INVALID_FETCH_SESSION_EPOCH, INVALID_RECORD, KAFKA_STORAGE_ERROR, UNSUPPORTED_VERSION,
)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    int dup(int fd)

cdef enum:
    UNASKED = -1
    MAIL_FLUSHED = 1             # the only kind of mail in the engine's box
    KEPT_MORE = 512 << 10        # bytes of an answer besides the records that were asked for


cdef void request_free(replica_request_t *request) noexcept nogil:
    """Free a request and its references to partitions. The caller holds the lock."""
    cdef int32_t i
    for i in range(request.asked_count):
        followed_release(request.asked[i].partition)
    free(request.asked)
    free(request.waiters)
    free(request.flushing)
    free(request.errors)
    writer_free(&request.out)
    free(request)


cdef class ReplicaFetcher(FollowedPartitions):
    """Fetches partitions that this broker follows from one leader. Any thread may call its methods.

    `on_told` is called on the pump's thread when `take_news` has something. `throttle` limits what comes of partitions
    whose options say so: above it they are left out of the requests, but for those that have all of their leader.
    """

    def __init__(self, int32_t node_id, int32_t leader_id, *, int64_t broker_epoch=-1, str client_id="",
                 int min_bytes=1, int max_wait_ms=500, int max_bytes=10485760, int max_partition_bytes=1048576,
                 int64_t backoff_ms=1000, int64_t request_timeout_ms=30000, Throttle throttle=None):
        self.throttle = throttle
        if node_id < 0:
            raise ValueError(f"node id {node_id}")
        self.leader_id = leader_id
        self.client_id = client_id.encode()
        self.options.client_id = self.client_id
        self.options.client_id_size = <int16_t>len(self.client_id)
        self.options.rack = b""
        self.options.rack_size = 0
        self.options.isolation_level = READ_UNCOMMITTED
        self.options.min_bytes = min_bytes
        self.options.max_wait_ms = max_wait_ms
        self.options.max_bytes = max_bytes
        self.options.max_partition_bytes = max_partition_bytes
        self.options.replica_id = node_id
        self.options.replica_epoch = broker_epoch
        if self.kept_bytes == 0:
            self.kept_bytes = max(max_bytes, max_partition_bytes) + KEPT_MORE
            buffers_keep(self.kept_bytes)
        self.backoff_ms = backoff_ms
        self.request_timeout_ms = request_timeout_ms

    def __cinit__(self, *_args, **_keywords):
        mutex_init(&self.box.lock, NULL)
        self.box.wake_fd = -1

    def __dealloc__(self):
        cdef replica_request_t *request
        cdef int32_t i
        buffers_keep(-self.kept_bytes)
        while self.flushing != NULL:
            # The pump has ended before these flushes: they are given up, or flushers would post to freed memory.
            request = self.flushing
            self.flushing = request.next
            with nogil:
                for i in range(request.flushing_count):
                    acks_give_up(&request.waiters[i], KAFKA_STORAGE_ERROR)
                    acks_forget(&request.waiters[i])
                request_free(request)
        if self.box.wake_fd >= 0:
            close(self.box.wake_fd)
        mutex_destroy(&self.box.lock)

    def set_broker_epoch(self, int64_t broker_epoch):
        """Set the epoch of this broker's registration, which the next requests tell."""
        with nogil:
            mutex_lock(&self.lock)
            self.options.replica_epoch = broker_epoch
            mutex_unlock(&self.lock)

    # --- asking, on the pump's thread ---------------------------------------------------------------------------------

    cdef void be_due(self, int64_t at_ms) noexcept nogil:
        if self.due_ms < 0 or at_ms < self.due_ms:
            self.due_ms = at_ms

    cdef void turn(self, int64_t now_ms) noexcept nogil:
        cdef client_socket_t *socket
        cdef bint wanted
        self.due_ms = -1
        mutex_lock(&self.lock)
        self.purge()
        if self.throttle is not None:
            self.hold_back(now_ms)
        wanted = not self.under_way and self.has_work(now_ms)
        mutex_unlock(&self.lock)
        if wanted and self.not_before_ms > now_ms:
            self.be_due(self.not_before_ms)
        elif wanted:
            socket = self.pump.socket_of(self.leader_id)
            if socket != NULL:
                self.send(socket, now_ms)

    cdef void turn_all(self, int64_t now_ms) noexcept nogil:
        if not mailbox_is_empty(&self.box):
            self.collect_mail()
            self.turn(now_ms)
        Engine.turn_all(self, now_ms)

    cdef bint any_woken(self) noexcept nogil:
        # The pump asks before it sleeps. Mail that comes from now on writes to the pump's descriptor.
        if self.box.wake_fd < 0:
            self.box.wake_fd = dup(self.pump.p.wake_fd)
        atomic_store_i32(&self.box.asleep, 1)
        return not mailbox_is_empty(&self.box) or Engine.any_woken(self)

    cdef void hold_back(self, int64_t now_ms) noexcept nogil:
        """Find out which partitions wait because of the throttle (KIP-73). The caller holds the lock."""
        cdef int64_t wait_ms = throttle_wait_ms(&self.throttle.t, now_ms)
        cdef followed_partition_t *p
        cdef int32_t i
        if wait_ms == 0 and not self.holds:
            return
        self.holds = wait_ms > 0
        for i in range(self.partition_count):
            p = self.partitions[i]
            p.held_until_ms = 0
            if wait_ms and p.log.options.follower_throttled and not has_all(p):
                p.held_until_ms = now_ms + wait_ms

    cdef bint has_work(self, int64_t now_ms) noexcept nogil:
        """Return whether a partition may be fetched now. The caller holds the lock."""
        cdef int64_t at_ms
        cdef int32_t i
        cdef bint found = False
        for i in range(self.partition_count):
            if is_wanted(self.partitions[i]):
                at_ms = max(self.partitions[i].not_before_ms, self.partitions[i].held_until_ms)
                if at_ms > now_ms:
                    self.be_due(at_ms)
                else:
                    found = True
        return found

    cdef bint lacks_id(self, int64_t now_ms) noexcept nogil:
        """Return whether a partition that is to be fetched has no topic id. The caller holds the lock."""
        cdef int32_t i
        for i in range(self.partition_count):
            if is_due(self.partitions[i], now_ms) and not self.partitions[i].has_id:
                return True
        return False

    cdef void send(self, client_socket_t *socket, int64_t now_ms) noexcept nogil:
        cdef int16_t version = min(socket.versions[API_FETCH], <int16_t>LAST_FETCH_VERSION)
        cdef replica_request_t *request = NULL
        cdef trouble_t trouble
        cdef bint by_name
        cdef int32_t i
        mutex_lock(&self.lock)
        if version >= 0:
            by_name = version <= LAST_VERSION_WITH_NAMES or self.lacks_id(now_ms)
            if by_name != self.by_name:
                self.forget_session()                # a session names its topics in one way (KIP-516)
                self.by_name = by_name
            if by_name:
                version = min(version, <int16_t>LAST_VERSION_WITH_NAMES)
            request = self.new_request(version, now_ms)
        else:
            memset(&trouble, 0, sizeof(trouble))
            trouble.kind = TROUBLE_ERROR
            trouble.error = UNSUPPORTED_VERSION
            trouble.diverging_epoch = -1
            for i in range(self.partition_count):
                if is_due(self.partitions[i], now_ms):
                    trouble.offset = self.partitions[i].offset
                    self.say(self.partitions[i], &trouble)
        self.under_way = request != NULL
        mutex_unlock(&self.lock)
        if request == NULL:
            if version >= 0:
                self.not_before_ms = now_ms + self.backoff_ms
                self.be_due(self.not_before_ms)
            return
        request.exchange.api_key = API_FETCH
        request.exchange.api_version = version
        request.exchange.deadline_ms = now_ms + self.options.max_wait_ms + self.request_timeout_ms
        request.exchange.pieces = &request.piece
        request.exchange.piece_count = 1
        request.exchange.owner = <void *>self
        request.exchange.answered = <answered_t><void *>replica_answered
        self.requests += 1
        socket_send(socket, &request.exchange)

    cdef replica_request_t *new_request(self, int16_t version, int64_t now_ms) noexcept nogil:
        """Make the next request. Return NULL if memory is out. The caller holds the lock."""
        cdef size_t most = <size_t>self.partition_count
        cdef replica_request_t *request = <replica_request_t *>calloc(1, sizeof(replica_request_t))
        cdef fetch_ask_t *asks = <fetch_ask_t *>malloc(2 * most * sizeof(fetch_ask_t))
        cdef fetch_ask_t *forgotten = asks + most
        cdef asked_t *asked = <asked_t *>malloc(most * sizeof(asked_t))
        cdef followed_partition_t *p
        cdef int32_t ask_count = 0
        cdef int32_t forgotten_count = 0
        cdef int32_t i
        cdef bint incremental = version >= 7 and self.session_epoch > 0
        if request == NULL or asks == NULL or asked == NULL:
            free(request)
            free(asks)
            free(asked)
            return NULL
        writer_init(&request.out)
        request.full = not incremental
        request.asked = asked
        self.first = (self.first + 1) % self.partition_count
        for i in range(self.partition_count):
            p = self.partitions[(self.first + i) % self.partition_count]
            if not is_due(p, now_ms):
                if incremental and p.in_session:
                    set_ask(&forgotten[forgotten_count], p)
                    forgotten_count += 1
                p.in_session = False
                continue
            p.log_start_offset = atomic_load_i64(&p.log.log_start_offset)    # the driver moves it, after an answer
            p.refs += 1
            asked[request.asked_count].partition = p
            asked[request.asked_count].generation = p.generation
            asked[request.asked_count].offset = p.offset
            request.asked_count += 1
            if not incremental or not is_known(p):
                set_ask(&asks[ask_count], p)
                ask_count += 1
            p.in_session = True
            p.session_offset = p.offset
            p.session_leader_epoch = p.leader_epoch
            p.session_last_epoch = p.last_epoch
            p.session_log_start_offset = p.log_start_offset
        write_fetch(&request.out, version, &self.options, self.session_id, self.session_epoch, asks, ask_count,
                    forgotten, forgotten_count)
        free(asks)
        if request.out.failed:
            self.forget_session()
            request_free(request)
            return NULL
        request.piece.iov_base = request.out.data
        request.piece.iov_len = request.out.size
        return request

    # --- answers, on the pump's thread --------------------------------------------------------------------------------

    cdef void forget_session(self) noexcept nogil:
        """Make the next request a full one, which ends the session. The caller holds the lock."""
        cdef int32_t i
        self.session_epoch = 0
        for i in range(self.partition_count):
            self.partitions[i].in_session = False

    cdef bint take_answer(self, replica_request_t *request, const uint8_t *body, int64_t size,
                          int64_t now_ms) noexcept nogil:
        """Take in the answer to a request. Return False if it is malformed, or if memory is out."""
        cdef fetch_answers_t answers
        cdef int32_t place = 0
        cdef int32_t i
        cdef bint good
        answers_init(&answers)
        good = parse_answers(&answers, request.exchange.api_version, body, size) == 0
        if good:
            mutex_lock(&self.lock)
            self.settle_session(request, &answers, now_ms)
            mutex_unlock(&self.lock)
            for i in range(answers.count):
                place = asked_place(request, &answers.answers[i], max(place, 0))
                if place != UNASKED:
                    self.take_in(request, place, &answers.answers[i])
        answers_free(&answers)
        return good

    cdef void settle_session(self, replica_request_t *request, const fetch_answers_t *answers,
                             int64_t now_ms) noexcept nogil:
        """Take in what an answer says of the whole. The caller holds the lock."""
        if answers.throttle_ms > 0:
            self.not_before_ms = now_ms + answers.throttle_ms
        if answers.error:
            self.failed += 1
            self.forget_session()
            if answers.error == FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = 0
            if request.full or answers.error not in (
                    FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR):
                self.not_before_ms = max(self.not_before_ms, now_ms + self.backoff_ms)
        elif answers.session_id == 0:
            self.forget_session()
            self.session_id = 0
        else:
            self.session_id = answers.session_id
            self.session_epoch = 1 if request.full or self.session_epoch == 0x7fffffff else self.session_epoch + 1

    cdef void take_in(self, replica_request_t *request, int32_t place, const fetch_answer_t *answer) noexcept nogil:
        """Append what an answer has brought for one partition, or tell Python of its trouble."""
        cdef asked_t *asked = &request.asked[place]
        cdef followed_partition_t *p = asked.partition
        cdef leader_state_t leader
        cdef followed_t followed
        cdef trouble_t trouble
        cdef int code
        memset(&trouble, 0, sizeof(trouble))
        trouble.diverging_epoch = -1
        trouble.offset = asked.offset
        mutex_lock(&self.lock)
        if asked.generation != p.generation or not p.wanted or p.stopped:
            mutex_unlock(&self.lock)
            return
        asked.generation = -1            # a second answer for the same partition is dropped
        if answer.error or answer.diverging_epoch >= 0:
            trouble.kind = TROUBLE_ERROR if answer.error else TROUBLE_DIVERGING
            trouble.error = answer.error
            trouble.diverging_epoch = answer.diverging_epoch
            trouble.diverging_end = answer.diverging_end_offset
            self.say(p, &trouble)
            mutex_unlock(&self.lock)
            return
        leader.leader_epoch = p.leader_epoch
        leader.fetch_offset = asked.offset
        leader.high_watermark = answer.high_watermark
        leader.log_start_offset = answer.log_start_offset
        p.appending = True
        mutex_unlock(&self.lock)
        code = partition_follow(p.log, answer.records, answer.records_size, &leader, &followed)
        atomic_add_i64(&self.bytes_in, followed.size)
        if self.throttle is not None and p.log.options.follower_throttled and answer.records_size > 0:
            throttle_record(&self.throttle.t, answer.records_size, monotonic_ms())
        mutex_lock(&self.lock)
        p.appending = False
        condition_broadcast(&self.appended)
        if leader.leader_epoch == p.leader_epoch and p.wanted:
            p.offset = followed.log_end_offset
            p.last_epoch = followed.leader_epoch
            p.leader_high_watermark = answer.high_watermark
            if code == CORRUPT_MESSAGE or code == INVALID_RECORD:
                self.damaged += 1
            if code:
                trouble.kind = TROUBLE_APPEND
                trouble.error = <int16_t>code
                self.say(p, &trouble)
            elif followed.starts_later:
                trouble.kind = TROUBLE_START
                trouble.log_start_offset = answer.log_start_offset
                self.say(p, &trouble)
        mutex_unlock(&self.lock)
        if followed.must_flush and request.flushing != NULL:
            request.flushing[request.flushing_count] = place
            request.flushing_count += 1

    # --- flushes ------------------------------------------------------------------------------------------------------

    cdef bint begin_flushes(self, replica_request_t *request) noexcept nogil:
        """Have the partitions of the answer flushed that must be. Return whether there is something to wait for."""
        cdef followed_partition_t *p
        cdef int32_t i
        if request.flushing_count == 0:
            return False
        request.waiters = <ack_waiter_t *>calloc(<size_t>request.flushing_count, sizeof(ack_waiter_t))
        request.errors = <int16_t *>calloc(<size_t>request.flushing_count, sizeof(int16_t))
        if request.waiters == NULL or request.errors == NULL:
            free(request.errors)
            request.errors = NULL            # nothing is flushed: see end_request
            return False
        request.synced.box = &self.box
        request.synced.kind = MAIL_FLUSHED
        atomic_store_i32(&request.pending, 1 + request.flushing_count)
        for i in range(request.flushing_count):
            p = request.asked[request.flushing[i]].partition
            request.waiters[i].for_flush = True
            request.waiters[i].offset = atomic_load_i64(&p.log.log_end_offset) - 1
            request.waiters[i].pending = &request.pending
            request.waiters[i].error = &request.errors[i]
            request.waiters[i].mail = &request.synced
            if not acks_await(p.log, &request.waiters[i]):
                atomic_add_i32(&request.pending, -1)
        if atomic_add_i32(&request.pending, -1) == 0:
            return False
        chain_push(self.flushing, request, request.next, request.previous)
        return True

    cdef void end_request(self, replica_request_t *request) noexcept nogil:
        """Let the next request go. What could not be flushed is trouble of its partition."""
        cdef trouble_t trouble
        cdef followed_partition_t *p
        cdef int32_t i
        memset(&trouble, 0, sizeof(trouble))
        trouble.kind = TROUBLE_APPEND
        trouble.diverging_epoch = -1
        if request.errors != NULL:
            for i in range(request.flushing_count):
                acks_forget(&request.waiters[i])
        mutex_lock(&self.lock)
        for i in range(request.flushing_count):
            p = request.asked[request.flushing[i]].partition
            if p.wanted and not p.stopped and (request.errors == NULL or request.errors[i]):
                trouble.error = request.errors[i] if request.errors != NULL else KAFKA_STORAGE_ERROR
                trouble.offset = p.offset
                self.say(p, &trouble)
        self.under_way = False
        request_free(request)
        mutex_unlock(&self.lock)

    cdef void collect_mail(self) noexcept nogil:
        cdef mail_t *mails = take_all(&self.box)
        cdef mail_t *mail = take_next(&mails)
        cdef replica_request_t *request
        while mail != NULL:
            request = request_of(mail)
            chain_remove(self.flushing, request, request.next, request.previous)
            self.end_request(request)
            mail = take_next(&mails)


cdef inline replica_request_t *request_of(mail_t *mail) noexcept nogil:
    cdef replica_request_t *laid = <replica_request_t *>mail
    return <replica_request_t *>(<char *>mail - (<char *>&laid.synced - <char *>laid))


cdef inline bint is_wanted(const followed_partition_t *p) noexcept nogil:
    return p.wanted and not p.stopped


cdef inline bint is_due(const followed_partition_t *p, int64_t now_ms) noexcept nogil:
    return is_wanted(p) and p.not_before_ms <= now_ms and p.held_until_ms <= now_ms


cdef inline bint has_all(const followed_partition_t *p) noexcept nogil:
    """Return whether the partition has all that was committed, by the leader's last answer."""
    return 0 <= p.leader_high_watermark <= p.offset


cdef inline bint is_known(const followed_partition_t *p) noexcept nogil:
    """Return whether the fetch session has the partition as the next request would tell it."""
    return (p.in_session and p.session_offset == p.offset and p.session_leader_epoch == p.leader_epoch
            and p.session_last_epoch == p.last_epoch and p.session_log_start_offset == p.log_start_offset)


cdef inline void set_ask(fetch_ask_t *ask, followed_partition_t *p) noexcept nogil:
    ask.topic = <const uint8_t *>p.log.topic
    ask.topic_size = p.log.topic_size
    ask.partition = p.log.partition_id
    ask.leader_epoch = p.leader_epoch
    ask.offset = p.offset
    ask.topic_id = p.topic_id
    ask.last_epoch = p.last_epoch
    ask.log_start_offset = p.log_start_offset


cdef int32_t asked_place(const replica_request_t *request, const fetch_answer_t *answer,
                         int32_t start) noexcept nogil:
    """The index of the ask that an answer is for, or UNASKED.

    Answers come roughly in the order of the asks. `start` is the index that the search begins with.
    """
    cdef int32_t i
    cdef int32_t place
    cdef const followed_partition_t *p
    cdef bint by_name = request.exchange.api_version <= LAST_VERSION_WITH_NAMES
    for i in range(request.asked_count):
        place = (start + i) % request.asked_count
        p = request.asked[place].partition
        if p.log.partition_id != answer.partition:
            continue
        if by_name:
            if (p.log.topic_size == answer.topic_size
                    and memcmp(p.log.topic, answer.topic, <size_t>answer.topic_size) == 0):
                return place
        elif memcmp(p.topic_id, answer.topic, TOPIC_ID_SIZE) == 0:
            return place
    return UNASKED


cdef void replica_answered(ReplicaFetcher engine, exchange_t *exchange, client_socket_t *socket, const uint8_t *body,
                           int64_t size, const char *reason) noexcept nogil:
    cdef replica_request_t *request = <replica_request_t *>exchange
    cdef int64_t now_ms = socket.pump.now_ms
    cdef bint good
    request.flushing = <int32_t *>malloc(<size_t>(request.asked_count + 1) * sizeof(int32_t))
    good = body != NULL and request.flushing != NULL and engine.take_answer(request, body, size, now_ms)
    if body != NULL and not good:
        socket_close(socket, b"the answer to a Fetch is none")
    if not good:
        engine.failed += 1
        mutex_lock(&engine.lock)
        engine.forget_session()
        mutex_unlock(&engine.lock)
        if body != NULL:
            engine.not_before_ms = now_ms + engine.backoff_ms
    if not engine.begin_flushes(request):
        engine.end_request(request)
    engine.pump.wake(engine)
