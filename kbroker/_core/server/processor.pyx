"""Processors; see processor.pxd.

Sockets are registered once and edge-triggered, so a connection that may not be read now (muted, too much unsent, the
request channel full) costs no epoll_ctl. `conn_t.readable` remembers that the kernel may hold bytes.
"""

import sys
import threading

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.clock cimport monotonic_ns, wall_ms
from kbroker._core.base.epoll cimport (
    EPOLL_CLOEXEC, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP, close, epoll_create1, epoll_event, epoll_wait,
)
from kbroker._core.base.links cimport chain_push, chain_remove
from kbroker._core.base.mailbox cimport (
    MAIL_ACKS, MAIL_CONNECTION, MAIL_FETCH, MAIL_SLOT, mail_t, mailbox_awake, mailbox_close, mailbox_is_empty,
    mailbox_may_sleep, mailbox_open, mailbox_wake, post, take_all, take_next,
)
from kbroker._core.base.receive_buffers cimport LARGE_BUFFER, buffer_free, buffer_take
from kbroker._core.base.sealing cimport wire_drop
from kbroker._core.base.sync cimport (
    atomic_add_i32, atomic_load_i32, atomic_load_i64, atomic_store_i32, atomic_store_i64, mutex_destroy, mutex_init,
    mutex_lock, mutex_unlock,
)
from kbroker._core.base.timer_wheel cimport (
    timer_node_t, wheel_add, wheel_init, wheel_next_due_ms, wheel_remove, wheel_t, wheel_take_due,
)
from kbroker._core.log.partition cimport segment_unref
from kbroker._core.log.partition_table cimport PartitionTable
from kbroker._core.server.connection cimport (
    SLOT_RUNNING, TIMER_ACKS, TIMER_FETCH, TIMER_IDLE, acks_timed_out, conn_close, conn_dirty, conn_unlink,
    partial_free, parked_t, processor_t, slot_free, slot_t, take_ready,
)
from kbroker._core.server.counters cimport count_error, counters_by_key
from kbroker._core.server.fetch.fetch cimport fetch_abandon
from kbroker._core.server.fetch.sessions cimport FetchSessions, sessions_abandon
from kbroker._core.server.handover cimport hand_over_gathered, resume_held
from kbroker._core.server.mail cimport (
    conn_of_timer, fetch_is_due, parked_of_timer, slot_came, slot_of_acks, slot_of_timer,
)
from kbroker._core.server.peer cimport Connection, connection_of
from kbroker._core.server.produce.produce cimport produce_discard
from kbroker._core.server.receiving cimport read_turn
from kbroker._core.server.sending cimport SEND_SCRATCH, note_warm, send_dirty, send_ready
from kbroker._core.server.serving cimport handed_t, report
from kbroker._core.wire.apis cimport API_KEYS
from kbroker._core.wire.cursor cimport writer_free

cdef extern from * nogil:
    """
    #include <pthread.h>
    #include <sched.h>
    #include <sys/epoll.h>
    static inline int watch(int epoll_fd, int fd, void *what) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = what};
        return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
    static inline void name_thread(const char *name) { pthread_setname_np(pthread_self(), name); }
    static int64_t connection_ids;
    static inline int64_t next_connection_id(void) { return __atomic_add_fetch(&connection_ids, 1, __ATOMIC_RELAXED); }
    """
    int watch(int epoll_fd, int fd, void *what)
    int sched_yield()
    void name_thread(const char *name)
    int64_t next_connection_id()

cdef enum:
    EVENTS = 256
    CROWD = 2                    # connections with something to read, from which on a turn is crowded
    LINGER_NS = 20_000           # how long to wait awake after such a turn; about what a sleep and a wake-up cost
    NEVER_FLEXIBLE = 32767


# Processors that ended while other threads still worked for their closed connections: their mailboxes have to stay.
_unfinished = []


cdef class Processor:
    """The connections of one thread. `run` is the body of that thread; all other methods are for other threads."""

    def __cinit__(self, str name, int index, PartitionTable partition_table not None,
                  FetchSessions fetch_sessions not None, ColdReader cold_reader not None, apis, on_request, on_close, *,
                  inflate, recompress, convert, down_convert, listeners=("PLAINTEXT",), transports=None,
                  int64_t max_request_size=100 << 20, int64_t idle_ms=600_000, int64_t max_inflated_size=100 << 20,
                  int64_t max_response_size=100 << 20):
        """Make a processor; `run` starts it.

        `apis`: (key, min version, max version, first flexible version or None) of every API that is served.
        `listeners`: names, to which the index `listener` of `adopt` refers. `transports` maps a name to a callable that
        makes the transport of a connection (kbroker.net.transports). `idle_ms` -1: idle connections are not closed.
        `inflate` and `recompress` serve compressed batches, `convert` and `down_convert` messages of magic 0 and 1;
        their signatures are in serving.pxd. Raises ValueError when an API key is too large, OSError without
        descriptors.
        """
        cdef int i
        cdef int64_t capacity = 0
        cdef processor_t *p = <processor_t *>calloc(1, sizeof(processor_t))
        self.mailbox.wake_fd = -1
        self.events = <epoll_event *>malloc(EVENTS * sizeof(epoll_event))
        if p == NULL:
            raise MemoryError()
        self.p = p
        p.epoll_fd = -1
        mutex_init(&self.closed_lock, NULL)
        self.name = name
        self.index = index
        self.partition_table = partition_table
        self.fetch_sessions = fetch_sessions
        self.cold_reader = cold_reader
        self.on_request = on_request
        self.on_close = on_close
        self.inflate = inflate
        self.recompress = recompress
        self.convert = convert
        self.down_convert = down_convert
        self.max_inflated_size = max_inflated_size
        self.max_response_size = max_response_size
        self.listeners = tuple(listeners)
        self.transports = tuple(map((transports or {}).get, self.listeners))
        self.held = []
        p.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if p.epoll_fd < 0 or mailbox_open(&self.mailbox) < 0:
            raise OSError(errno, f"{name}: no descriptor for its epoll set or mailbox")
        p.mailbox = &self.mailbox
        watch(p.epoll_fd, self.mailbox.wake_fd, NULL)
        p.wheel = <wheel_t *>malloc(sizeof(wheel_t))
        p.scratch = buffer_take(LARGE_BUFFER, &capacity)
        p.send_scratch = <uint8_t *>malloc(SEND_SCRATCH)
        if p.wheel == NULL or p.scratch == NULL or p.send_scratch == NULL or self.events == NULL:
            raise MemoryError()
        p.cold_reader = &cold_reader.reader
        p.max_request_size = max_request_size
        p.idle_ms = idle_ms
        for i in range(API_KEYS):
            p.apis[i].min_version = -1
            p.apis[i].flexible_from = NEVER_FLEXIBLE
        for key, low, high, flexible_from in apis:
            if not 0 <= key < API_KEYS:
                raise ValueError(f"API key {key} is above {API_KEYS - 1}")
            p.apis[<int>key].min_version = low
            p.apis[<int>key].max_version = high
            p.apis[<int>key].flexible_from = NEVER_FLEXIBLE if flexible_from is None else flexible_from
        self.read_clocks()
        wheel_init(p.wheel, p.now_ns // 1_000_000)
        p.started_ns = p.now_ns

    def __dealloc__(self):
        cdef processor_t *p = self.p
        cdef slot_t *slot
        cdef int i
        if p == NULL:
            return
        if p.wheel != NULL:
            # Mail that came after the loop had ended: answers for closed connections, and connections that were never
            # registered.
            atomic_store_i32(&p.stopping, 1)
            self.serve_mail()
            while p.doomed != NULL:
                self.tear_down_doomed()
        if p.epoll_fd >= 0:
            close(p.epoll_fd)
        mailbox_close(&self.mailbox)
        mutex_destroy(&self.closed_lock)
        free(self.gathered)
        while p.free_slots != NULL:
            slot = p.free_slots
            p.free_slots = slot.next
            writer_free(&slot.out)
            free(slot.splices)
            free(slot)
        for i in range(API_KEYS):
            free(p.counters[i].errors)
        if self.spare != NULL:
            produce_discard(self.spare)
        if p.scratch != NULL:
            buffer_free(p.scratch, LARGE_BUFFER)
        free(p.send_scratch)
        free(p.wheel)
        free(self.closed)
        free(self.events)
        free(p)

    # --- for other threads ------------------------------------------------------------------------------

    def adopt(self, int fd, int listener=0, int64_t token=-1) -> None:
        """Take over an accepted, non-blocking socket.

        The processor owns the descriptor from here on, whatever happens.
        """
        cdef conn_t *conn = <conn_t *>calloc(1, sizeof(conn_t))
        transport = None
        if conn == NULL or atomic_load_i32(&self.p.stopping):
            free(conn)
            close(fd)
            self.note_closed(token)
            return
        try:
            if self.transports[listener] is not None:
                transport = self.transports[listener]()
        except BaseException:
            free(conn)
            close(fd)
            self.note_closed(token)
            raise
        if transport is not None:
            Py_INCREF(transport)
            conn.transport = <PyObject *>transport
        conn.mail.kind = MAIL_CONNECTION
        conn.mail.box = &self.mailbox
        conn.fd = fd
        conn.listener = listener
        conn.token = token
        conn.idle.kind = TIMER_IDLE
        conn.processor = self.p
        atomic_add_i32(&self.p.conn_count, 1)
        with nogil:
            post(&conn.mail)

    def take_closed(self) -> list[int]:
        """Return the tokens of the connections that were closed since the last call."""
        cdef int32_t i
        with nogil:
            mutex_lock(&self.closed_lock)
        try:
            taken = []
            for i in range(self.closed_count):
                taken.append(self.closed[i])
            self.closed_count = 0
        finally:
            mutex_unlock(&self.closed_lock)
        return taken

    def resume(self) -> None:
        """Tell the processor that the request channel has room again."""
        atomic_store_i32(&self.resumed, 1)
        mailbox_wake(&self.mailbox)

    def stop(self, double timeout_s) -> None:
        """Let the processor end: it reads no more and answers what it has read. Does not wait.

        After `timeout_s` it closes the connections that are left, and `run` returns.
        """
        self.stop_at_ns = monotonic_ns() + <int64_t>(timeout_s * 1e9)
        atomic_store_i32(&self.p.stopping, 1)
        mailbox_wake(&self.mailbox)

    @property
    def connection_count(self) -> int:
        return atomic_load_i32(&self.p.conn_count)

    @property
    def idle_share(self) -> float:
        """The share of its time (0 to 1) that the processor has waited for something to do."""
        return self.idle_ns / max(<double>(monotonic_ns() - self.p.started_ns), 1.0)

    @property
    def idle_ns(self) -> int:
        """How many nanoseconds the processor has waited so far, including a wait that is going on. Never falls."""
        cdef int64_t since_ns = -1
        cdef int64_t idle_ns = 0
        cdef int64_t now_ns = 0
        while since_ns < 0 or atomic_load_i64(&self.p.waiting_since_ns) != since_ns:
            since_ns = atomic_load_i64(&self.p.waiting_since_ns)
            idle_ns = atomic_load_i64(&self.p.idle_ns)
            now_ns = monotonic_ns()
        return idle_ns + (now_ns - since_ns if since_ns else 0)

    @property
    def turns(self) -> int:
        """The number of turns of the loop so far."""
        return self.p.turns

    @property
    def looked_at(self) -> int:
        """The number of pieces of responses, bytes or file regions, that were looked at in order to send."""
        return self.p.looked_at

    def count_error(self, int16_t api_key, int16_t code) -> None:
        """Count one more answer with an error code. Any thread. Raises ValueError for an unknown API key."""
        if not 0 <= api_key < API_KEYS:
            raise ValueError(f"api_key={api_key}")
        count_error(&self.p.counters[api_key], code)

    def counters(self) -> dict:
        """Return the ApiCounters since the start by API key, for APIs with at least one request."""
        return counters_by_key(self.p.counters, API_KEYS)

    # --- the loop ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until `stop`. The body of the processor's thread."""
        name = self.name.encode()[:15]
        self.thread_id = threading.get_ident()
        name_thread(name)
        with nogil:
            self.loop()
        self.held.clear()
        if self.p.orphans:
            # Other threads still work for closed connections and will post to this mailbox.
            _unfinished.append(self)

    cdef void read_clocks(self) noexcept nogil:
        self.p.now_ns = monotonic_ns()
        self.p.now_ms = wall_ms()

    cdef void loop(self) noexcept nogil:
        cdef processor_t *p = self.p
        cdef epoll_event *events = self.events
        cdef int count
        cdef int i
        cdef bint stopping = False
        while True:
            count = self.wait()
            self.gathers = count >= CROWD or (p.ready != NULL and p.ready.next_ready != NULL)
            for i in range(count):
                if events[i].data.ptr != NULL:
                    self.on_event(<conn_t *>events[i].data.ptr, events[i].events)
            if p.ready != NULL:
                self.serve_ready()
            if self.gathered_count:
                hand_over_gathered(self)
            if atomic_load_i32(&self.resumed):
                atomic_store_i32(&self.resumed, 0)
                resume_held(self)
            self.serve_mail()
            self.serve_timers()
            send_dirty(p)
            while p.doomed != NULL:
                self.tear_down_doomed()
            if atomic_load_i32(&p.stopping):
                if not stopping:
                    stopping = True
                    self.begin_stop()
                if self.is_stopped():
                    return

    cdef int wait(self) noexcept nogil:
        cdef processor_t *p = self.p
        cdef int64_t now_ns
        cdef int64_t due_ms
        cdef int timeout_ms = -1
        cdef int count = 0
        if p.ready != NULL or p.dirty != NULL or p.doomed != NULL:
            timeout_ms = 0
        else:
            due_ms = wheel_next_due_ms(p.wheel)
            if p.stopping and (due_ms < 0 or due_ms * 1_000_000 > self.stop_at_ns):
                due_ms = self.stop_at_ns // 1_000_000 + 1
            if due_ms >= 0:
                timeout_ms = <int>max(0, min(due_ms - monotonic_ns() // 1_000_000, 60_000))
        now_ns = monotonic_ns()
        atomic_store_i64(&p.waiting_since_ns, now_ns)
        if timeout_ms != 0 and self.was_crowded:
            count = self.linger(now_ns + LINGER_NS)
        if count == 0:
            if timeout_ms != 0 and not mailbox_may_sleep(p.mailbox):
                timeout_ms = 0
            count = epoll_wait(p.epoll_fd, self.events, EVENTS, timeout_ms)
            mailbox_awake(p.mailbox)
        self.read_clocks()
        atomic_store_i64(&p.waiting_since_ns, -1)
        p.idle_ns += p.now_ns - now_ns
        atomic_store_i64(&p.waiting_since_ns, 0)
        p.turns += 1
        self.was_crowded = count >= CROWD
        return max(count, 0)

    cdef int linger(self, int64_t until_ns) noexcept nogil:
        """Wait for events or mail until `until_ns`, without sleeping. Returns the number of events.

        Other threads get the core meanwhile, requests gather, and nobody pays for waking this thread.
        """
        cdef int count = 0
        while count == 0 and mailbox_is_empty(self.p.mailbox) and monotonic_ns() < until_ns:
            sched_yield()
            count = epoll_wait(self.p.epoll_fd, self.events, EVENTS, 0)
        return count

    cdef void serve_ready(self) noexcept nogil:
        """Serve the connections that were ready when the turn began.

        Those that get ready meanwhile wait for the next.
        """
        cdef conn_t *last = self.p.ready_tail
        cdef conn_t *conn
        while self.p.ready != NULL:
            conn = take_ready(self.p)
            read_turn(self, conn)
            if conn == last:
                return

    cdef void serve_mail(self) noexcept nogil:
        cdef mail_t *mails = take_all(self.p.mailbox)
        cdef mail_t *mail = take_next(&mails)
        while mail != NULL:
            if mail.kind == MAIL_FETCH:
                fetch_is_due(self, <parked_t *>mail, False)
            elif mail.kind == MAIL_SLOT:
                slot_came(self, <slot_t *>mail, True)
            elif mail.kind == MAIL_ACKS:
                slot_came(self, slot_of_acks(mail), False)
            elif mail.kind == MAIL_CONNECTION:
                self.welcome(<conn_t *>mail)
            else:
                self.warmed(<warm_t *>mail)
            mail = take_next(&mails)

    cdef void serve_timers(self) noexcept nogil:
        cdef int64_t now_ms = self.p.now_ns // 1_000_000
        cdef timer_node_t *node
        cdef conn_t *conn
        while True:
            node = wheel_take_due(self.p.wheel, now_ms)
            if node == NULL:
                return
            if node.kind == TIMER_FETCH:
                fetch_is_due(self, parked_of_timer(node), True)
                continue
            if node.kind == TIMER_ACKS:
                acks_timed_out(slot_of_timer(node))
                continue
            conn = conn_of_timer(node)
            if conn.slots != NULL and conn.slots.state == SLOT_RUNNING and not (conn.hung_up and conn.fetch != NULL):
                conn.last_active_ms = now_ms     # a handler works for it, or a fetch waits and its client is there
            if now_ms - conn.last_active_ms < self.p.idle_ms:
                wheel_add(self.p.wheel, node, conn.last_active_ms + self.p.idle_ms)
            elif conn.partial != NULL:
                conn_close(conn, "the rest of its request did not come within connections.max.idle.ms")
            elif conn.slots != NULL and conn.fetch == NULL:
                conn_close(conn, "it did not read its answers within connections.max.idle.ms")
            else:
                conn_close(conn, NULL)

    # --- connections ------------------------------------------------------------------------------------

    cdef void welcome(self, conn_t *conn) noexcept nogil:
        cdef processor_t *p = self.p
        conn.id = next_connection_id()
        chain_push(p.conns, conn, conn.next, conn.previous)
        conn.last_active_ms = p.now_ns // 1_000_000
        if p.idle_ms >= 0:
            wheel_add(p.wheel, &conn.idle, conn.last_active_ms + p.idle_ms)
        if atomic_load_i32(&p.stopping):
            conn_close(conn, NULL)
        elif watch(p.epoll_fd, conn.fd, conn) < 0:
            conn_close(conn, "its socket cannot be watched")

    cdef void on_event(self, conn_t *conn, uint32_t events) noexcept nogil:
        if conn.closing:
            return
        if events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            conn.hung_up = True
        if events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
            conn.readable = True
            read_turn(self, conn)
        if events & (EPOLLHUP | EPOLLERR):
            # The peer is gone: nobody takes an answer.
            conn_close(conn, NULL)
        elif events & EPOLLOUT and conn.blocked:
            conn.blocked = False
            send_ready(conn)

    cdef void warmed(self, warm_t *warm) noexcept nogil:
        cdef conn_t *conn = <conn_t *>warm.conn
        if conn == NULL:
            self.p.orphans -= 1
        else:
            conn.warm = NULL
            note_warm(conn, warm.segment, warm.position, warm.size)
            conn_dirty(conn)
        segment_unref(warm.segment)
        free(warm)

    cdef void tear_down_doomed(self) noexcept nogil:
        cdef processor_t *p = self.p
        cdef conn_t *conn = p.doomed
        cdef slot_t *slot
        cdef slot_t *next_slot
        p.doomed = conn.next_doomed
        if conn.fetch != NULL:
            fetch_abandon(self, conn.fetch)
        if conn.has_sessions:
            sessions_abandon(self.fetch_sessions.cache, conn.id)
        wheel_remove(p.wheel, &conn.idle)
        conn_unlink(conn)
        slot = conn.slots
        while slot != NULL:
            next_slot = slot.next
            slot.next = NULL
            slot.conn = NULL
            if slot.outstanding:
                p.orphans += 1
            else:
                slot_free(p, slot)
            slot = next_slot
        if conn.warm != NULL:
            conn.warm.conn = NULL
            p.orphans += 1
        partial_free(conn)
        if conn.reason != NULL or conn.info != NULL or conn.transport != NULL or conn.wire.sealed != NULL:
            self.say_goodbye(conn)
        close(conn.fd)
        chain_remove(p.conns, conn, conn.next, conn.previous)
        self.note_closed(conn.token)
        atomic_add_i32(&p.conn_count, -1)
        free(conn)

    cdef void note_closed(self, int64_t token) noexcept nogil:
        cdef int64_t *grown
        if token < 0:
            return
        mutex_lock(&self.closed_lock)
        grown = <int64_t *>with_room(self.closed, self.closed_count, &self.closed_capacity, sizeof(int64_t))
        if grown != NULL:
            self.closed = grown
            self.closed[self.closed_count] = token
            self.closed_count += 1
        mutex_unlock(&self.closed_lock)

    cdef void begin_stop(self) noexcept nogil:
        """Read from no connection any more. Close those that wait for no answer, or only for a parked fetch."""
        cdef conn_t *conn = self.p.conns
        while conn != NULL:
            conn.ended = True
            if conn.fetch != NULL or (conn.slots == NULL and conn.wire.sealed == NULL):
                conn_close(conn, NULL)
            conn = conn.next
        while self.p.doomed != NULL:
            self.tear_down_doomed()

    cdef bint is_stopped(self) noexcept nogil:
        cdef processor_t *p = self.p
        cdef conn_t *conn
        if p.now_ns >= self.stop_at_ns:
            conn = p.conns
            while conn != NULL:
                conn_close(conn, NULL)
                conn = conn.next
            self.serve_mail()
            while p.doomed != NULL:
                self.tear_down_doomed()
            return True
        return p.conns == NULL and p.orphans == 0 and atomic_load_i32(&p.conn_count) == 0

    # --- with the interpreter ---------------------------------------------------------------------------

    cdef void say_goodbye(self, conn_t *conn) noexcept with gil:
        """Call on_close when there is a reason, and drop the Python objects of a connection that is being torn down."""
        cdef Connection connection = <Connection>conn.info if conn.info != NULL else None
        if conn.reason != NULL or (connection is not None and connection.close_reason is not None):
            try:
                reason = connection.close_reason if connection is not None else None
                if reason is None:
                    reason = conn.reason.decode()
                if conn.api_key or conn.api_version:
                    reason += f" (newest request: API key {conn.api_key}, version {conn.api_version})"
                self.on_close(connection_of(self, conn), reason)
            except Exception as error:
                report(self, "on_close", error)
        if conn.info != NULL:
            Py_DECREF(<object>conn.info)
        if conn.transport != NULL:
            Py_DECREF(<object>conn.transport)
        wire_drop(&conn.wire)
