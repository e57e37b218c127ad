"""The producer's engine; see engine.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strlen

from kbroker._core.base.sync cimport atomic_load_i32, atomic_store_i32, mutex_lock, mutex_unlock
from kbroker._core.client.producer.accumulator cimport (
    Topic, accumulator_t, batch_done, make_active, queue_t, seal_open, topic_t,
)
from kbroker._core.client.producer.delivery cimport fail_list, run_callbacks
from kbroker._core.client.producer.exchange cimport (
    broker_t, exchange_add, exchange_free, exchange_new, exchange_remove, exchange_reset, exchange_room, exchange_sort,
    produce_exchange_t,
)
from kbroker._core.client.producer.frame cimport (
    LAST_PRODUCE_VERSION,
    cut_produce,
    produce_entry_t,
    read_produce,
    write_produce,
)
from kbroker._core.client.producer.outgoing cimport NO_SEQUENCE, OUTGOING_DELIVERED, outgoing_seal, outgoing_t
from kbroker._core.client.producer.outgoing_list cimport (
    list_insert, list_pop, list_push, list_remove, list_take_unsent, outgoing_list_t,
)
from kbroker._core.client.socket cimport answered_t, client_socket_t, exchange_t, socket_close, socket_send
from kbroker._core.wire.apis cimport API_PRODUCE, PRODUCE_ADDS_FROM, PRODUCE_BATCHES_FROM, PRODUCE_ZSTD_FROM
from kbroker._core.wire.cursor cimport reader_left, reader_t
from kbroker._core.wire.error_codes cimport DUPLICATE_SEQUENCE_NUMBER
from kbroker._core.wire.layout cimport CODEC_ZSTD

cdef void mute(queue_t *queue) noexcept nogil:
    if not queue.muted:
        queue.muted = True
        queue.told = False


cdef void wake_engine(ProduceEngine engine) noexcept nogil:
    if engine.pump is not None:
        engine.pump.wake(engine)

# ------------------------------------------------------------------------------------------------------

cdef class ProduceEngine(Engine):
    def __cinit__(self, Accumulator accumulator not None, *, client_id=None, transactional_id=None, int acks=-1,
                  int64_t request_timeout_ms=30000, int64_t delivery_timeout_ms=120000, int max_in_flight=5,
                  int64_t max_request_size=1048576, older_form=None):
        self.accumulator = accumulator
        self.a = &accumulator.a
        self.client_id = b"" if client_id is None else client_id.encode()
        self.transactional_id = b"" if transactional_id is None else transactional_id.encode()
        self.options.client_id = PyBytes_AS_STRING(self.client_id)
        self.options.client_id_size = -1 if client_id is None else <int32_t>len(self.client_id)
        self.options.transactional_id = NULL if transactional_id is None else PyBytes_AS_STRING(self.transactional_id)
        self.options.transactional_id_size = <int32_t>len(self.transactional_id)
        self.options.acks = acks
        self.options.timeout_ms = <int32_t>request_timeout_ms
        self.request_timeout_ms = request_timeout_ms
        self.delivery_timeout_ms = delivery_timeout_ms
        self.max_in_flight = max_in_flight
        self.older_form = older_form
        self.max_request_size = max_request_size
        self.a.waker = <void *>self
        self.a.wake = <void (*)(void *) noexcept nogil><void *>wake_engine

    def __dealloc__(self):
        cdef broker_t *broker
        cdef produce_exchange_t *exchange
        if self.accumulator is not None:
            self.a.wake = NULL
        while self.brokers != NULL:
            broker = self.brokers
            self.brokers = broker.next
            free(broker)
        while self.free_exchanges != NULL:
            exchange = self.free_exchanges
            self.free_exchanges = exchange.next
            exchange_free(exchange)
        free(self.nodes)

    # --- sending --------------------------------------------------------------------------------------

    cdef void keep_nodes(self, const uint8_t *data, size_t size) noexcept nogil:
        """Keep the nodes of an answer for Python. They are only a hint: if memory is out, they are dropped."""
        cdef uint8_t *kept = <uint8_t *>malloc(size)
        if kept == NULL:
            return
        memcpy(kept, data, size)
        free(self.nodes)
        self.nodes = kept
        self.nodes_size = size

    cdef void be_due(self, int64_t at_ms) noexcept nogil:
        if self.due_ms < 0 or at_ms < self.due_ms:
            self.due_ms = at_ms

    cdef broker_t *broker_of(self, int32_t node_id) noexcept nogil:
        cdef broker_t *broker = self.brokers
        while broker != NULL and broker.node_id != node_id:
            broker = broker.next
        if broker == NULL:
            broker = <broker_t *>calloc(1, sizeof(broker_t))
            if broker != NULL:
                broker.node_id = node_id
                broker.next = self.brokers
                self.brokers = broker
        return broker

    cdef produce_exchange_t *new_exchange(self, broker_t *broker) noexcept nogil:
        cdef produce_exchange_t *exchange = self.free_exchanges
        if exchange != NULL:
            self.free_exchanges = exchange.next
        else:
            exchange = exchange_new()
            if exchange == NULL:
                return NULL
        exchange_reset(exchange)
        exchange.broker = broker
        return exchange

    cdef bint expire(self, queue_t *queue, int64_t now_ms) noexcept nogil:
        """Move sealed and open batches to `held` after delivery.timeout.ms. Return whether there were any.

        If so, the queue is muted and Python is told; else the engine is due when the oldest such batch expires.
        """
        cdef outgoing_t *batch = queue.sealed.head if queue.sealed.head != NULL else queue.open
        cdef bint found = False
        while batch != NULL and not queue.muted and batch.made_ms + self.delivery_timeout_ms <= now_ms:
            if batch == queue.open:
                seal_open(self.a, queue)
            list_remove(&queue.sealed, batch)
            batch.refusal = batch.error
            batch.error = EXPIRED
            list_insert(&queue.held, batch)
            found = True
            batch = queue.sealed.head if queue.sealed.head != NULL else queue.open
        if found:
            mute(queue)
            self.news = True
        elif batch != NULL and not queue.muted:
            self.be_due(batch.made_ms + self.delivery_timeout_ms)
        return found

    cdef bint sendable(self, queue_t *queue, int64_t now_ms) noexcept nogil:
        """Whether the first sealed batch of a queue can be sent now.

        If none is sealed, the open batch is sealed if due.
        """
        cdef accumulator_t *a = self.a
        cdef outgoing_t *batch = queue.sealed.head
        if batch == NULL:
            batch = queue.open
            if batch == NULL or queue.in_flight:
                return False
            if batch.made_ms + a.linger_ms > now_ms and not (atomic_load_i32(&a.flushing) or atomic_load_i32(&a.waiting)
                                                                    or atomic_load_i32(&a.listening) or a.closed):
                self.be_due(batch.made_ms + a.linger_ms)
                return False
            seal_open(a, queue)
        if batch.compressing:
            return False
        # A batch that is sent again is the only one of its partition under way. Brokers know the last five batches of a
        # producer, and this one must be among them however often it is sent.
        if queue.in_flight and (batch.attempts or queue.flying.head.attempts > 1):
            return False
        # A broker accepts any first sequence of a producer that it does not know. If the first batch were refused while
        # the second is under way, the second would be appended before it.
        if a.idempotent and queue.in_flight and not queue.begun:
            return False
        if batch.retry_ms > now_ms:
            self.be_due(batch.retry_ms)
            return False
        return True

    cdef void consider(self, queue_t *queue, int64_t now_ms) noexcept nogil:
        """Add the next batch of a queue to the request that this turn sends to its leader, if the batch can be sent."""
        cdef accumulator_t *a = self.a
        cdef broker_t *broker
        if queue.muted or self.expire(queue, now_ms):
            return
        if queue.leader < 0 or (a.transactional and not queue.admitted and not self.admits_itself):
            if not queue.told:
                queue.told = True
                self.news = True
            return
        if a.idempotent and a.producer_id < 0:
            return
        broker = self.broker_of(queue.leader)
        if broker == NULL:
            return
        if not broker.asked:
            broker.asked = True
            broker.socket = self.pump.socket_of(broker.node_id)
        if broker.socket == NULL or (broker.gathered == NULL and broker.in_flight >= self.max_in_flight):
            return
        if self.sendable(queue, now_ms):
            self.add_to_request(queue, broker)

    cdef bint add_to_request(self, queue_t *queue, broker_t *broker) noexcept nogil:
        cdef accumulator_t *a = self.a
        cdef outgoing_t *batch = queue.sealed.head
        cdef produce_exchange_t *exchange = broker.gathered
        if exchange != NULL and exchange.size + batch.size > self.max_request_size:
            return False
        if exchange == NULL:
            exchange = self.new_exchange(broker)
            if exchange == NULL:
                return False
            broker.gathered = exchange
            broker.in_flight += 1
            self.ready_tail[0] = exchange
            self.ready_tail = &exchange.next
        if not exchange_room(exchange):
            return False
        list_pop(&queue.sealed)
        if a.idempotent and batch.base_sequence == NO_SEQUENCE:
            if queue.in_flight == 0 \
                    and (queue.producer_id != a.producer_id or queue.producer_epoch != a.producer_epoch):
                queue.producer_id = a.producer_id
                queue.producer_epoch = a.producer_epoch
                queue.next_sequence = 0
                queue.begun = False
            batch.producer_id = queue.producer_id
            batch.producer_epoch = queue.producer_epoch
            batch.base_sequence = queue.next_sequence
            queue.next_sequence = <int32_t>((<uint32_t>queue.next_sequence + <uint32_t>batch.count) & 0x7fffffff)
        list_push(&queue.flying, batch)
        queue.in_flight += 1
        batch.attempts += 1
        exchange_add(exchange, batch)
        self.began = True
        return True

    cdef bint gather(self, int64_t now_ms) noexcept nogil:
        """Make a request for each broker that can take one, with a batch of each partition that is ready.

        Return False if there is none.
        """
        cdef accumulator_t *a = self.a
        cdef queue_t *queue
        cdef queue_t *following
        cdef queue_t *taken = NULL
        cdef queue_t **taken_tail = &taken
        cdef queue_t **kept_tail
        cdef broker_t *broker = self.brokers
        cdef int32_t in_flight
        while broker != NULL:
            broker.gathered = NULL
            broker = broker.next
        mutex_lock(&a.lock)
        kept_tail = &a.active
        queue = a.active
        while queue != NULL:
            following = queue.next_active
            in_flight = queue.in_flight
            self.consider(queue, now_ms)
            queue.next_active = NULL
            if queue.open == NULL and queue.sealed.head == NULL and queue.held.head == NULL:
                queue.active = False
            elif queue.in_flight != in_flight:
                # The queue goes behind the others: those that found their request full come first next time.
                taken_tail[0] = queue
                taken_tail = &queue.next_active
            else:
                kept_tail[0] = queue
                kept_tail = &queue.next_active
            queue = following
        kept_tail[0] = taken
        mutex_unlock(&a.lock)
        return self.ready != NULL

    cdef bint send(self, produce_exchange_t *exchange, int64_t now_ms) noexcept nogil:
        """Send a request. Return False if the broker serves no version that can carry it, or memory is out.

        The lock is not needed: nobody else touches batches under way.
        """
        cdef client_socket_t *socket = exchange.broker.socket
        # In a transaction of version 1 the partitions were added before: no version that adds them by itself (KIP-890).
        cdef int16_t last = PRODUCE_ADDS_FROM - 1 if self.a.transactional and not self.admits_itself \
            else LAST_PRODUCE_VERSION
        cdef int16_t version = min(socket.versions[API_PRODUCE], last)
        cdef int32_t i
        if version < (PRODUCE_ZSTD_FROM if self.a.codec == CODEC_ZSTD else PRODUCE_BATCHES_FROM if self.a.idempotent
                      else 0):
            return False
        for i in range(exchange.count):
            outgoing_seal(exchange.batches[i], self.a.transactional)
        exchange_sort(exchange)
        if self.on_leaving is not None:
            with gil:
                self.leave(exchange)
        if version < PRODUCE_BATCHES_FROM:
            with gil:
                self.make_older(exchange, 1 if version == 2 else 0)
            if exchange.count == 0:
                keep_exchange(self, exchange)
                return True
        if not write_produce(&exchange.out, version, &self.options, exchange.entries, exchange.count):
            return False
        cut_produce(&exchange.out, exchange.entries, exchange.count, exchange.pieces)
        exchange.exchange.api_key = API_PRODUCE
        exchange.exchange.api_version = version
        exchange.exchange.deadline_ms = now_ms + self.request_timeout_ms
        exchange.exchange.pieces = exchange.pieces
        exchange.exchange.piece_count = 2 * exchange.count + 1
        exchange.exchange.silent = self.options.acks == 0
        exchange.exchange.owner = <void *>self
        exchange.exchange.answered = <answered_t><void *>produce_answered
        self.requests += 1
        self.batches_sent += exchange.count
        socket_send(socket, &exchange.exchange)
        return True

    cdef int leave(self, produce_exchange_t *exchange) except *:
        cdef list leaving = []
        cdef outgoing_t *batch
        cdef int32_t i
        for i in range(exchange.count):
            batch = exchange.batches[i]
            leaving.append(((<queue_t *>batch.queue).topic.name.decode(), (<queue_t *>batch.queue).partition_id,
                            batch.count, batch.size, batch.attempts))
        self.on_leaving(leaving)
        return 0

    cdef int make_older(self, produce_exchange_t *exchange, int magic) except *:
        """Turn the batches of a request into message sets. A batch that has no such form comes back with TOO_OLD."""
        cdef list made = []
        cdef int32_t i = 0
        cdef produce_entry_t *entry
        cdef bytes text
        cdef bytes messages
        while i < exchange.count:
            entry = &exchange.entries[i]
            try:
                messages = self.older_form(PyBytes_FromStringAndSize(<const char *>entry.data, entry.size), magic)
            except Exception as error:
                text = str(error).encode()
                mutex_lock(&self.a.lock)
                self.come_back(exchange.batches[i], TOO_OLD, PyBytes_AS_STRING(text), <int32_t>len(text))
                mutex_unlock(&self.a.lock)
                exchange_remove(exchange, i)
                continue
            made.append(messages)
            entry.data = <const uint8_t *>PyBytes_AS_STRING(messages)
            entry.size = len(messages)
            i += 1
        Py_INCREF(made)
        exchange.older = <PyObject *>made
        return 0

    cdef void turn(self, int64_t now_ms) noexcept nogil:
        cdef produce_exchange_t *exchange
        cdef broker_t *broker = self.brokers
        self.due_ms = -1
        while broker != NULL:
            broker.asked = False
            broker = broker.next
        while True:
            self.ready = NULL
            self.ready_tail = &self.ready
            if not self.gather(now_ms):
                break
            while self.ready != NULL:
                exchange = self.ready
                self.ready = exchange.next
                if not self.send(exchange, now_ms):
                    end_exchange(self, exchange, TOO_OLD,
                                 b"the broker serves no version of Produce that it takes: from 3 on, "
                                 b"with zstd from 7 on")
        if self.told_when_empty and self.a.oldest == NULL:
            self.told_when_empty = False
            self.news = True
        if atomic_load_i32(&self.a.listening) and atomic_load_i32(&self.a.room) != self.a.heard:
            atomic_store_i32(&self.a.listening, 0)
            self.news = True
        if self.news or self.watched != NULL:
            self.news = False
            self.pump.tell(self)

    # --- answers --------------------------------------------------------------------------------------

    cdef void done(self, outgoing_t *batch, int64_t base_offset, int64_t log_append_time) noexcept nogil:
        """End a batch that was delivered. The caller holds the lock."""
        cdef queue_t *queue = <queue_t *>batch.queue
        list_remove(&queue.flying, batch)
        queue.in_flight -= 1
        if batch.producer_id == queue.producer_id and batch.producer_epoch == queue.producer_epoch:
            queue.begun = True
        batch.base_offset = base_offset
        batch.log_append_time = log_append_time
        if batch_done(self.a, batch, OUTGOING_DELIVERED):
            batch.next = self.watched
            self.watched = batch
        if queue.muted and queue.in_flight == 0:
            self.news = True

    cdef void come_back(self, outgoing_t *batch, int16_t error, const char *text, int32_t text_size) noexcept nogil:
        """Move a batch under way that was refused or lost to `held`, and mute its queue. The caller holds the lock."""
        cdef queue_t *queue = <queue_t *>batch.queue
        list_remove(&queue.flying, batch)
        queue.in_flight -= 1
        batch.error = error
        free(batch.text)
        batch.text = NULL
        if text != NULL:
            batch.text = <char *>malloc(<size_t>text_size + 1)
            if batch.text != NULL:
                memcpy(batch.text, text, <size_t>text_size)
                batch.text[text_size] = 0
        list_insert(&queue.held, batch)
        make_active(self.a, queue)
        mute(queue)
        if queue.in_flight == 0:
            self.news = True

    # --- for Python, on the pump's thread -------------------------------------------------------------

    def run_callbacks(self) -> None:
        """Call the callbacks of Deliveries whose batches are done."""
        cdef outgoing_t *batch
        cdef outgoing_t *following
        cdef outgoing_t *watched = NULL
        mutex_lock(&self.a.lock)
        batch = self.watched
        self.watched = NULL
        mutex_unlock(&self.a.lock)
        while batch != NULL:                 # oldest first
            following = batch.next
            batch.next = watched
            watched = batch
            batch = following
        while watched != NULL:
            batch = watched
            watched = batch.next
            batch.next = NULL
            run_callbacks(batch)

    def take_nodes(self):
        """Return the nodes of the last response that named some, as the bytes of an array of NodeEndpoint; or None.

        They are returned once.
        """
        if self.nodes == NULL:
            return None
        found = PyBytes_FromStringAndSize(<char *>self.nodes, <Py_ssize_t>self.nodes_size)
        free(self.nodes)
        self.nodes = NULL
        return found

    def waiting(self) -> tuple:
        """Return what sending waits for, as two collections.

        The first one has the names of topics with records for partitions without a leader. The second one has (topic,
        partition) for each partition with records that has to be added to the transaction.
        """
        cdef queue_t *queue
        cdef queue_t *found = NULL
        leaderless, foreign = set(), []
        mutex_lock(&self.a.lock)
        queue = self.a.active
        while queue != NULL:
            if queue.told and not queue.muted:
                queue.next_found = found
                found = queue
            queue = queue.next_active
        mutex_unlock(&self.a.lock)
        while found != NULL:
            if found.leader < 0:
                leaderless.add(found.topic.name.decode())
            else:
                foreign.append((found.topic.name.decode(), found.partition_id))
            found = found.next_found
        return leaderless, foreign

    def set_producer(self, int64_t producer_id, int16_t producer_epoch) -> None:
        """Set the producer's id and epoch.

        Each partition begins anew with sequence 0 once no batch of it is under way.
        """
        mutex_lock(&self.a.lock)
        self.a.producer_id = producer_id
        self.a.producer_epoch = producer_epoch
        mutex_unlock(&self.a.lock)
        wake_engine(self)

    def tell_when_empty(self) -> None:
        """Have `on_told` called once when every record is delivered or has failed."""
        self.told_when_empty = True
        wake_engine(self)

    def fail_unsent(self, error not None) -> None:
        """Fail all batches that have never been sent. Batches that a broker may have go on."""
        cdef queue_t *queue
        cdef outgoing_list_t failed
        failed.head = failed.tail = NULL
        mutex_lock(&self.a.lock)
        queue = self.a.active
        while queue != NULL:
            seal_open(self.a, queue)
            list_take_unsent(&queue.sealed, &failed)
            list_take_unsent(&queue.held, &failed)
            if queue.muted and queue.held.head == NULL and queue.in_flight == 0:
                queue.muted = False
            queue = queue.next_active
        mutex_unlock(&self.a.lock)
        fail_list(self.a, &failed, error)
        wake_engine(self)                    # for tell_when_empty: nothing may be left

    # --- transactions ---------------------------------------------------------------------------------

    def set_transaction_version(self, int version) -> None:
        """Set the version of transactions.

        With version 1, records go to a partition once it is admitted. With version 2 they go at once, as Produce
        requests add the partition to the transaction (KIP-890).
        """
        self.admits_itself = version >= 2

    def admit(self, str topic not None, int partition) -> None:
        """Note that the coordinator has added the partition to the transaction. Raises KeyError if it is not known."""
        cdef Topic found = self.accumulator.topics.get(topic)
        if found is None or not 0 <= partition < found.t.spread.count:
            raise KeyError((topic, partition))
        mutex_lock(&self.a.lock)
        found.t.queues[partition].admitted = True
        self.began = True
        mutex_unlock(&self.a.lock)
        wake_engine(self)

    def end_transaction(self) -> None:
        """Note that the transaction has ended: no partition belongs to it any more, and the next one has not begun."""
        cdef topic_t *topic
        cdef int32_t i
        mutex_lock(&self.a.lock)
        self.began = False
        topic = self.a.topics
        while topic != NULL:
            for i in range(topic.spread.count):
                topic.queues[i].admitted = False
                topic.queues[i].told = topic.queues[i].muted and topic.queues[i].told
            topic = topic.next
        mutex_unlock(&self.a.lock)

    def fail_all(self, error not None) -> None:
        """Fail all batches that are not under way.

        If all connections have been closed before, these are all batches.
        """
        cdef queue_t *queue
        cdef outgoing_list_t failed
        failed.head = failed.tail = NULL
        mutex_lock(&self.a.lock)
        queue = self.a.active
        while queue != NULL:
            seal_open(self.a, queue)
            while queue.held.head != NULL:
                list_push(&failed, list_pop(&queue.held))
            while queue.sealed.head != NULL:
                list_push(&failed, list_pop(&queue.sealed))
            queue.muted = False
            queue.told = False
            queue = queue.next_active
        mutex_unlock(&self.a.lock)
        fail_list(self.a, &failed, error)
        wake_engine(self)                    # for tell_when_empty: nothing may be left


cdef void end_exchange(ProduceEngine engine, produce_exchange_t *exchange, int16_t error,
                       const char *text) noexcept nogil:
    """End a request: all its batches come back with `error`, or are delivered if that is 0."""
    cdef int32_t i
    mutex_lock(&engine.a.lock)
    for i in range(exchange.count):
        if error:
            engine.come_back(exchange.batches[i], error, text, <int32_t>strlen(text) if text != NULL else 0)
        else:
            engine.done(exchange.batches[i], -1, -1)
    mutex_unlock(&engine.a.lock)
    keep_exchange(engine, exchange)


cdef void keep_exchange(ProduceEngine engine, produce_exchange_t *exchange) noexcept nogil:
    exchange.broker.in_flight -= 1
    exchange_reset(exchange)
    exchange.next = engine.free_exchanges
    engine.free_exchanges = exchange
    engine.pump.wake(engine)


cdef void produce_answered(ProduceEngine engine, exchange_t *base, client_socket_t *socket, const uint8_t *body,
                           int64_t size, const char *reason) noexcept nogil:
    cdef produce_exchange_t *exchange = <produce_exchange_t *>base
    cdef produce_entry_t *entry
    cdef outgoing_t *batch
    cdef reader_t nodes
    cdef int32_t i
    if body == NULL:
        end_exchange(engine, exchange, LOST if reason != NULL else 0, reason)
        return
    if not read_produce(body, size, base.api_version, exchange.entries, exchange.count, &nodes):
        socket_close(socket, b"the broker answered a Produce request with something else")
        end_exchange(engine, exchange, LOST, b"the broker's answer is damaged")
        return
    if reader_left(&nodes):
        engine.keep_nodes(nodes.at, reader_left(&nodes))
    mutex_lock(&engine.a.lock)
    for i in range(exchange.count):
        entry = &exchange.entries[i]
        batch = exchange.batches[i]
        if entry.error == 0:
            engine.done(batch, entry.base_offset, entry.log_append_time)
        elif entry.error == DUPLICATE_SEQUENCE_NUMBER:
            # The batch was appended when it was sent before. That is too long ago for the broker to know its offset.
            engine.done(batch, -1, -1)
        else:
            batch.leader = entry.leader
            batch.leader_epoch = entry.leader_epoch
            engine.come_back(batch, entry.error, <const char *>entry.text, entry.text_size)
    mutex_unlock(&engine.a.lock)
    keep_exchange(engine, exchange)
