"""The pump; see pump.pxd."""

from cpython.exc cimport PyErr_WriteUnraisable
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport errno
from libc.stdint cimport int16_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.epoll cimport (
    EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLOUT,
    EPOLLRDHUP, close, epoll_create1, epoll_event, epoll_wait,
)
from kbroker._core.base.links cimport chain_push, chain_remove
from kbroker._core.base.sealing cimport wire_drop
from kbroker._core.base.sync cimport atomic_claim_i32, atomic_load_i32, atomic_store_i32
from kbroker._core.base.timer_wheel cimport (
    timer_node_t, wheel_init, wheel_next_due_ms, wheel_remove, wheel_t, wheel_take_due,
)
from kbroker._core.client.calls cimport call_send, calls_answer
from kbroker._core.client.nodes cimport nodes_find, nodes_forget, nodes_free, nodes_put, nodes_unwant, nodes_want
from kbroker._core.client.socket cimport (
    RECEIVE_SCRATCH, socket_close, socket_fail_all, socket_flush, socket_mark_dirty, socket_mark_ready, socket_overdue,
    socket_receive, socket_release, socket_unmark,
)
from kbroker._core.wire.apis cimport API_KEYS

cdef extern from * nogil:
    """
    #include <sys/epoll.h>
    #include <sys/eventfd.h>
    static inline int control(int epoll_fd, int operation, int fd, uint32_t wanted, uint64_t what) {
        struct epoll_event event = {.events = wanted, .data.u64 = what};
        return epoll_ctl(epoll_fd, operation, fd, &event);
    }
    /* True when *p was 0 and is 1 now. A full barrier: what was written before is seen by who takes it. */
    static inline int raise_flag(int32_t *p) { return __atomic_exchange_n(p, 1, __ATOMIC_SEQ_CST) == 0; }
    static inline int take_flag(int32_t *p) { return __atomic_exchange_n(p, 0, __ATOMIC_SEQ_CST); }
    """
    int EFD_CLOEXEC
    int EFD_NONBLOCK
    int eventfd(unsigned int value, int flags)
    ssize_t write(int fd, const void *data, size_t size)
    int control(int epoll_fd, int operation, int fd, uint32_t wanted, uint64_t what)
    bint raise_flag(int32_t *p)
    bint take_flag(int32_t *p)

cdef enum:
    EVENTS = 64
    WAKE = 0                     # epoll_data of the eventfd; a foreign descriptor's is odd, a socket's its address
    READABLE = 1                 # selectors.EVENT_READ
    WRITABLE = 2


cdef inline client_socket_t *socket_of_timer(timer_node_t *timer) noexcept nogil:
    cdef client_socket_t *laid = <client_socket_t *>timer
    return <client_socket_t *>(<char *>timer - (<char *>&laid.timer - <char *>laid))


cdef class Engine:
    """What a kind of client does in the pump's thread.

    Subclasses override the three methods; the rest is the pump's.
    """

    def __cinit__(self, *_args, **_keywords):
        self.due_ms = -1

    cdef void turn(self, int64_t now_ms) noexcept nogil:
        pass

    cdef void socket_opened(self, client_socket_t *socket) noexcept nogil:
        pass

    cdef void socket_closed(self, client_socket_t *socket) noexcept nogil:
        pass

    # Engines form a chain through `following`: a Python list cannot be walked without the GIL.

    cdef void turn_all(self, int64_t now_ms) noexcept nogil:
        if take_flag(&self.woken) or 0 <= self.due_ms <= now_ms:
            self.turn(now_ms)
        if self.following is not None:
            self.following.turn_all(now_ms)

    cdef bint any_woken(self) noexcept nogil:
        return atomic_load_i32(&self.woken) or (self.following is not None and self.following.any_woken())

    cdef int64_t first_due_ms(self) noexcept nogil:
        cdef int64_t later_ms = self.following.first_due_ms() if self.following is not None else -1
        return later_ms if self.due_ms < 0 or 0 <= later_ms < self.due_ms else self.due_ms

    cdef void all_opened(self, client_socket_t *socket) noexcept nogil:
        raise_flag(&self.woken)
        self.socket_opened(socket)
        if self.following is not None:
            self.following.all_opened(socket)

    cdef void all_closed(self, client_socket_t *socket) noexcept nogil:
        raise_flag(&self.woken)
        self.socket_closed(socket)
        if self.following is not None:
            self.following.all_closed(socket)

    cdef void wake_all(self) noexcept nogil:
        raise_flag(&self.woken)
        if self.following is not None:
            self.following.wake_all()


cdef class PumpConnection:
    """A connection as Python sees it. Its methods are for the pump's thread."""

    def __init__(self):
        raise TypeError("Pump.adopt makes connections")

    @property
    def is_closed(self) -> bool:
        return self.socket == NULL or self.socket.closing

    @property
    def in_flight(self) -> int:
        """The number of requests that are queued or sent and not answered."""
        return 0 if self.socket == NULL else self.socket.in_flight

    @property
    def node_id(self) -> int:
        return -1 if self.socket == NULL else self.socket.node_id

    @property
    def bytes_in(self) -> int:
        return 0 if self.socket == NULL else self.socket.bytes_in

    @property
    def bytes_out(self) -> int:
        return 0 if self.socket == NULL else self.socket.bytes_out

    def call(self, int16_t api_key, int16_t api_version, const uint8_t[::1] frame not None, int64_t timeout_ms,
             callback, *, bint silent=False, bint ahead=False) -> None:
        """Send a frame that encode_request made; callback(body, None) or callback(None, reason) comes on this thread.

        With `timeout_ms` -1 there is no deadline. With `silent` no response will come; body is b"" once the frame is
        sent. With `ahead` the frame is sent even while the connection is held. Raises ConnectionError if the connection
        is closed.
        """
        if self.is_closed:
            raise ConnectionError(self.why_closed())
        call_send(self.socket, api_key, api_version, frame, timeout_ms, callback, silent, ahead)

    def open(self, int32_t node_id, versions) -> None:
        """Let engines use the connection for `node_id`. `versions` maps API keys to the versions to use.

        Raises ConnectionError if the connection is closed.
        """
        cdef client_socket_t *socket = self.socket
        cdef int key
        if self.is_closed:
            raise ConnectionError(self.why_closed())
        for key in range(API_KEYS):
            socket.versions[key] = versions.get(key, -1)
        socket.node_id = node_id
        self.pump.open_socket(socket)

    cdef str why_closed(self):
        return self.reason if self.socket == NULL else self.socket.reason.decode(errors="replace")

    def hold(self) -> None:
        """Send no more requests until `release`, except calls with `ahead`."""
        if self.socket != NULL:
            self.socket.held = True

    def release(self) -> None:
        if self.socket != NULL:
            socket_release(self.socket)

    def close(self, str reason) -> None:
        """Have the connection torn down in the pump's next turn; requests that are not answered fail with `reason`."""
        if self.socket != NULL:
            socket_close(self.socket, reason.encode())


cdef class Pump:
    """Sockets, foreign descriptors and engines of one thread. Everything but `wake` is for that thread."""

    def __cinit__(self, flexible_from, int64_t max_response_size=100_000_000):
        """`flexible_from` maps API keys to the first version whose response header has tagged fields."""
        cdef int key
        self.p.epoll_fd = -1
        self.p.wake_fd = -1
        self.p.max_response_size = max_response_size
        for key in range(API_KEYS):
            self.p.flexible_from[key] = flexible_from.get(key, 32767)
        self.p.wheel = <wheel_t *>malloc(sizeof(wheel_t))
        self.p.scratch = <uint8_t *>malloc(RECEIVE_SCRATCH)
        self.events = malloc(EVENTS * sizeof(epoll_event))
        self.foreign = <int64_t *>malloc(EVENTS * sizeof(int64_t))
        if self.p.wheel == NULL or self.p.scratch == NULL or self.events == NULL or self.foreign == NULL:
            raise MemoryError()
        self.p.now_ms = monotonic_ms()
        wheel_init(self.p.wheel, self.p.now_ms)
        self.p.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        self.p.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.p.epoll_fd < 0 or self.p.wake_fd < 0:
            raise OSError(errno, "no descriptor for a client's epoll set")
        # Edge-triggered, so the eventfd never has to be read.
        if control(self.p.epoll_fd, EPOLL_CTL_ADD, self.p.wake_fd, EPOLLIN | EPOLLET, WAKE) < 0:
            raise OSError(errno, "a client's epoll set does not work")

    def __dealloc__(self):
        if self.p.epoll_fd >= 0:
            close(self.p.epoll_fd)
        if self.p.wake_fd >= 0:
            close(self.p.wake_fd)
        free(self.p.wheel)
        free(self.p.scratch)
        free(self.events)
        free(self.foreign)
        nodes_free(&self.nodes)

    # --- for engines ----------------------------------------------------------------------------------------

    cdef void wake(self, Engine engine) noexcept nogil:
        cdef uint64_t one = 1
        if raise_flag(&engine.woken) and atomic_claim_i32(&self.p.asleep, 1, 0):
            write(self.p.wake_fd, &one, sizeof(one))

    cdef client_socket_t *socket_of(self, int32_t node_id) noexcept nogil:
        cdef client_socket_t *socket = nodes_find(&self.nodes, node_id)
        if socket == NULL and nodes_want(&self.nodes, node_id):
            self.p.news = True
        return socket

    cdef void tell(self, Engine engine) noexcept nogil:
        engine.has_told = True
        self.p.news = True

    # --- for Python -----------------------------------------------------------------------------------------

    def add(self, Engine engine not None) -> None:
        """Add an engine, which gets its turns from now on. Raises ValueError if it belongs to a pump already."""
        cdef Engine last = self.engine
        if engine.pump is not None:
            raise ValueError("the engine has a pump already")
        engine.pump = self
        raise_flag(&engine.woken)
        if last is None:
            self.engine = engine
            return
        while last.following is not None:
            last = last.following
        last.following = engine

    def adopt(self, int fd, int node_id=-1, transport=None) -> PumpConnection:
        """Take over a connected, non-blocking socket.

        The pump owns its descriptor from here on, even if this raises.
        """
        cdef PumpConnection connection
        cdef client_socket_t *socket = <client_socket_t *>calloc(1, sizeof(client_socket_t))
        if socket == NULL:
            close(fd)
            raise MemoryError()
        socket.fd = fd
        socket.node_id = node_id
        socket.pump = &self.p
        socket.readable = True
        for key in range(API_KEYS):
            socket.versions[<int>key] = -1
        if self.p.epoll_fd < 0 or control(self.p.epoll_fd, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                          <uint64_t>socket) < 0:
            free(socket)
            close(fd)
            raise OSError(errno, "a client's connection cannot be watched")
        connection = PumpConnection.__new__(PumpConnection)
        connection.socket = socket
        connection.pump = self
        Py_INCREF(connection)
        socket.connection = <PyObject *>connection
        if transport is not None:
            Py_INCREF(transport)
            socket.transport = <PyObject *>transport
        chain_push(self.p.sockets, socket, socket.next, socket.previous)
        socket_mark_ready(socket)
        return connection

    def watch(self, int fd, int events) -> None:
        """Watch a foreign descriptor (selectors.EVENT_READ, EVENT_WRITE), or change what it is watched for."""
        cdef uint32_t wanted = (EPOLLIN if events & READABLE else 0) | (EPOLLOUT if events & WRITABLE else 0)
        cdef uint64_t what = <uint64_t>fd << 1 | 1
        if self.is_abandoned:
            return
        if (control(self.p.epoll_fd, EPOLL_CTL_ADD, fd, wanted, what) < 0
                and control(self.p.epoll_fd, EPOLL_CTL_MOD, fd, wanted, what) < 0):
            raise OSError(errno, f"descriptor {fd} cannot be watched")

    def unwatch(self, int fd) -> None:
        """Stop watching a foreign descriptor. Do nothing for one that is not watched, or that is closed."""
        if not self.is_abandoned:
            control(self.p.epoll_fd, EPOLL_CTL_DEL, fd, 0, 0)

    def give_up(self, int node_id) -> None:
        """Note that connecting to the node has failed. An engine that still wants a connection to it asks again."""
        nodes_unwant(&self.nodes, node_id)
        if self.engine is not None:
            self.engine.wake_all()

    def run(self, timeout) -> list:
        """Serve sockets and engines until Python is needed or `timeout` seconds (None: for ever) have passed.

        Returns (descriptor, events) for each foreign descriptor that is ready.
        """
        cdef int64_t until_ms = -1
        cdef int32_t i
        if timeout is not None:
            until_ms = monotonic_ms() + (<int64_t>(timeout * 1000 + 0.999) if timeout > 0 else 0)
        with nogil:
            self.loop(until_ms)
        self.give_news()
        found = []
        for i in range(self.foreign_count):
            found.append((self.foreign[i] >> 32, self.foreign[i] & 3))
        self.foreign_count = 0
        return found

    def close(self, str reason) -> None:
        """Close every connection and end the pump.

        All requests that are not answered fail with `reason`, and engines are told by `socket_closed`.
        """
        cdef client_socket_t *socket
        if self.is_abandoned or self.p.epoll_fd < 0:
            return
        text = reason.encode()
        socket = self.p.sockets
        while socket != NULL:
            socket_close(socket, text)
            socket = socket.next
        with nogil:
            self.tear_down_doomed()
        self.give_news()
        close(self.p.epoll_fd)
        self.p.epoll_fd = -1

    def abandon(self) -> None:
        """Close the descriptors in a child process after a fork, without touching what the parent shares with it."""
        cdef client_socket_t *socket = self.p.sockets
        self.is_abandoned = True
        while socket != NULL:
            close(socket.fd)
            socket.fd = -1
            socket = socket.next
        close(self.p.epoll_fd)
        close(self.p.wake_fd)
        self.p.epoll_fd = self.p.wake_fd = -1

    @property
    def connection_count(self) -> int:
        cdef client_socket_t *socket = self.p.sockets
        count = 0
        while socket != NULL:
            count += 1
            socket = socket.next
        return count

    def counters(self) -> dict:
        return {"turns": self.p.turns, "requests": self.p.requests, "responses": self.p.responses}

    cdef open_socket(self, client_socket_t *socket):
        cdef client_socket_t *before
        nodes_unwant(&self.nodes, socket.node_id)
        before = nodes_find(&self.nodes, socket.node_id)
        if before != NULL:
            before.open = False
            nodes_forget(&self.nodes, before)
        if not nodes_put(&self.nodes, socket):
            raise MemoryError()
        socket.open = True
        if self.engine is not None:
            with nogil:
                self.engine.all_opened(socket)

    cdef give_news(self):
        """Tell Python of answers, closed connections and wanted nodes; call `on_told` of engines that asked for it."""
        cdef client_socket_t *closed
        cdef Engine engine
        self.p.news = False
        calls_answer(&self.p)
        while self.p.closed != NULL:
            closed = self.p.closed
            self.p.closed = closed.next_doomed
            self.say_closed(closed)
        while self.nodes.told < self.nodes.wanted_count:
            node_id = self.nodes.wanted[self.nodes.told]
            self.nodes.told += 1
            self.call_out(self.on_wanted, (node_id,))
        engine = self.engine
        while engine is not None:
            if engine.has_told:
                engine.has_told = False
                self.call_out(engine.on_told, ())
            engine = engine.following

    cdef say_closed(self, client_socket_t *socket):
        cdef PumpConnection connection = <PumpConnection>socket.connection
        Py_DECREF(connection)
        if socket.transport != NULL:
            Py_DECREF(<object>socket.transport)
        wire_drop(&socket.wire)
        connection.reason = socket.reason.decode(errors="replace")
        connection.socket = NULL
        free(socket)
        self.call_out(connection.on_close, (connection.reason,))

    cdef call_out(self, callback, tuple arguments):
        if callback is None:
            return
        try:
            callback(*arguments)
        except Exception:
            PyErr_WriteUnraisable(callback)

    # --- the loop -------------------------------------------------------------------------------------------

    cdef void loop(self, int64_t until_ms) noexcept nogil:
        cdef epoll_event *events = <epoll_event *>self.events
        cdef pump_t *p = &self.p
        cdef client_socket_t *socket
        cdef client_socket_t *last
        cdef timer_node_t *timer
        cdef uint32_t what
        cdef int count
        cdef int i
        cdef bint waited = False
        p.now_ms = monotonic_ms()
        while True:
            if self.engine is not None:
                self.engine.turn_all(p.now_ms)
            while p.dirty != NULL:
                socket = p.dirty
                p.dirty = socket.next_dirty
                socket.in_dirty = False
                socket_flush(socket)
            self.tear_down_doomed()
            if waited and (p.news or self.foreign_count or 0 <= until_ms <= p.now_ms):
                return
            count = self.wait(until_ms)
            waited = True
            for i in range(count):
                what = events[i].events
                if events[i].data.u64 == WAKE:
                    continue
                if events[i].data.u64 & 1:
                    self.foreign[self.foreign_count] = <int64_t>(events[i].data.u64 >> 1) << 32 | (
                        (READABLE if what & ~EPOLLOUT else 0) | (WRITABLE if what & ~EPOLLIN else 0))
                    self.foreign_count += 1
                    continue
                socket = <client_socket_t *>events[i].data.u64
                if what & EPOLLOUT and socket.blocked:
                    socket.blocked = False
                    socket_mark_dirty(socket)
                if what & (EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                    socket.hung_up = True
                if what & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR):
                    socket.readable = True
                    socket_mark_ready(socket)
            last = p.ready_tail
            while p.ready != NULL:
                socket = p.ready
                p.ready = socket.next_ready
                socket.in_ready = False
                socket_receive(socket)
                if socket == last:
                    break
            timer = wheel_take_due(p.wheel, p.now_ms)
            while timer != NULL:
                socket_overdue(socket_of_timer(timer))
                timer = wheel_take_due(p.wheel, p.now_ms)

    cdef int wait(self, int64_t until_ms) noexcept nogil:
        cdef pump_t *p = &self.p
        cdef int64_t due_ms = wheel_next_due_ms(p.wheel)
        cdef int64_t engine_due_ms = self.engine.first_due_ms() if self.engine is not None else -1
        cdef int timeout_ms = -1
        cdef int count
        if engine_due_ms >= 0 and (due_ms < 0 or engine_due_ms < due_ms):
            due_ms = engine_due_ms
        if until_ms >= 0 and (due_ms < 0 or until_ms < due_ms):
            due_ms = until_ms
        if p.news or p.ready != NULL or p.dirty != NULL:
            timeout_ms = 0
        elif due_ms >= 0:
            timeout_ms = <int>max(0, min(due_ms - monotonic_ms(), 60_000))
        if timeout_ms != 0:
            raise_flag(&p.asleep)
            if self.engine is not None and self.engine.any_woken():
                timeout_ms = 0
        count = epoll_wait(p.epoll_fd, <epoll_event *>self.events, EVENTS, timeout_ms)
        atomic_store_i32(&p.asleep, 0)
        p.now_ms = monotonic_ms()
        p.turns += 1
        return max(count, 0)

    cdef void tear_down_doomed(self) noexcept nogil:
        cdef pump_t *p = &self.p
        cdef client_socket_t *socket
        while p.doomed != NULL:
            socket = p.doomed
            p.doomed = socket.next_doomed
            # Before close: a child process may hold the same descriptor, and epoll would go on watching it.
            control(p.epoll_fd, EPOLL_CTL_DEL, socket.fd, 0, 0)
            close(socket.fd)
            wheel_remove(p.wheel, &socket.timer)
            nodes_forget(&self.nodes, socket)
            chain_remove(p.sockets, socket, socket.next, socket.previous)
            socket_unmark(socket)
            socket_fail_all(socket)
            if self.engine is not None:
                self.engine.all_closed(socket)
            socket.next_doomed = p.closed
            p.closed = socket
            p.news = True
