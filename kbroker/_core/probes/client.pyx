"""An engine that sends the frames it is given, for tests of the pump."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.stdio cimport snprintf
from libc.string cimport memcpy

from kbroker._core.base.receive_buffers cimport buffer_free
from kbroker._core.base.sockets cimport iovec
from kbroker._core.base.sync cimport mutex_destroy, mutex_init, mutex_lock, mutex_t, mutex_unlock
from kbroker._core.client.pump cimport Engine
from kbroker._core.client.socket cimport REASON_SIZE, answered_t, client_socket_t, exchange_t, frame_take, socket_send

cdef enum:
    MOST_PIECES = 200

ctypedef struct sent_t:
    exchange_t exchange          # first
    sent_t *next
    int32_t node_id
    int32_t number
    int32_t timeout_ms
    bint answered
    uint8_t *taken               # the response's buffer, kept by frame_take
    int64_t capacity
    const uint8_t *body
    int64_t size
    char reason[160]
    iovec pieces[200]


cdef class ProbeEngine(Engine):
    """Sends frames and keeps the answers. Call `send` from any thread, and `take` after on_told."""

    cdef mutex_t lock            # guards the two lists
    cdef sent_t *asked           # newest first
    cdef sent_t *under_way       # sent or answered; oldest first
    cdef int32_t answered        # since Python was told
    cdef readonly int turns
    cdef readonly int opened
    cdef readonly int closed

    def __cinit__(self):
        mutex_init(&self.lock, NULL)

    def __dealloc__(self):
        mutex_destroy(&self.lock)

    def send(self, int node_id, int16_t api_key, int16_t api_version, const uint8_t[::1] frame not None, int timeout_ms,
             *, int number=0, int pieces=1, bint silent=False) -> None:
        """Send a frame to a node, cut into `pieces` pieces of about equal size; the first one has the whole header."""
        cdef Py_ssize_t size = frame.shape[0]
        cdef sent_t *sent = <sent_t *>calloc(1, sizeof(sent_t) + size)
        cdef uint8_t *at = <uint8_t *>(sent + 1)
        cdef int64_t part
        cdef int i
        if sent == NULL or not 1 <= pieces <= MOST_PIECES or size < 12:
            free(sent)
            raise ValueError(f"{pieces} pieces")
        memcpy(at, &frame[0], size)
        for i in range(pieces):
            part = 12 + (size - 12) // pieces if i == 0 else (size - 12) // pieces
            if i == pieces - 1:
                part = <uint8_t *>(sent + 1) + size - at
            sent.pieces[i].iov_base = at
            sent.pieces[i].iov_len = part
            at += part
        sent.exchange.api_key = api_key
        sent.exchange.api_version = api_version
        sent.exchange.pieces = sent.pieces
        sent.exchange.piece_count = pieces
        sent.exchange.silent = silent
        sent.exchange.owner = <void *>self
        sent.exchange.answered = <answered_t><void *>probe_answered
        sent.node_id = node_id
        sent.number = number
        sent.timeout_ms = timeout_ms
        with nogil:
            mutex_lock(&self.lock)
            sent.next = self.asked
            self.asked = sent
            mutex_unlock(&self.lock)
            self.pump.wake(self)

    def ask_turn(self, int64_t due_ms) -> None:
        """Ask for a turn when the pump's clock (time.monotonic in milliseconds) shows `due_ms`."""
        self.due_ms = due_ms

    def wake(self) -> None:
        with nogil:
            self.pump.wake(self)

    def take(self) -> list:
        """Return (number, body, reason) for each answer that came since the last call.

        `body` is None for a silent frame, and when no answer came; then `reason` says why.
        """
        cdef sent_t **link = &self.under_way
        cdef sent_t *sent
        taken = []
        while link[0] != NULL:
            sent = link[0]
            if not sent.answered:
                link = &sent.next
                continue
            link[0] = sent.next
            body = PyBytes_FromStringAndSize(<char *>sent.body, sent.size) if sent.taken != NULL else None
            taken.append((sent.number, body, sent.reason.decode() if sent.size < 0 else None))
            if sent.taken != NULL:
                buffer_free(sent.taken, sent.capacity)
            free(sent)
        return taken

    cdef void turn(self, int64_t now_ms) noexcept nogil:
        cdef sent_t *sent
        cdef sent_t *asked
        cdef sent_t *waiting = NULL
        cdef sent_t **link = &self.under_way
        cdef client_socket_t *socket
        self.turns += 1
        if 0 <= self.due_ms <= now_ms:
            self.due_ms = -1
        mutex_lock(&self.lock)
        asked = self.asked
        self.asked = NULL
        mutex_unlock(&self.lock)
        while asked != NULL:                 # oldest first
            sent = asked
            asked = sent.next
            sent.next = waiting
            waiting = sent
        while link[0] != NULL:
            link = &link[0].next
        while waiting != NULL:
            sent = waiting
            waiting = sent.next
            socket = self.pump.socket_of(sent.node_id)
            if socket == NULL:
                mutex_lock(&self.lock)
                sent.next = self.asked
                self.asked = sent
                mutex_unlock(&self.lock)
                continue
            sent.next = NULL
            link[0] = sent
            link = &sent.next
            sent.exchange.deadline_ms = now_ms + sent.timeout_ms
            socket_send(socket, &sent.exchange)
        if self.answered:
            self.answered = 0
            self.pump.tell(self)

    cdef void socket_opened(self, client_socket_t *socket) noexcept nogil:
        self.opened += 1

    cdef void socket_closed(self, client_socket_t *socket) noexcept nogil:
        self.closed += 1

cdef void probe_answered(ProbeEngine engine, exchange_t *exchange, client_socket_t *socket, const uint8_t *body,
                         int64_t size, const char *reason) noexcept nogil:
    cdef sent_t *sent = <sent_t *>exchange
    sent.answered = True
    sent.size = size
    if body != NULL:
        sent.body = body
        sent.taken = frame_take(socket, &sent.body, &sent.capacity)
    elif reason != NULL:
        sent.size = -1
        snprintf(sent.reason, REASON_SIZE, "%s", reason)
    engine.answered += 1
    engine.pump.wake(engine)
