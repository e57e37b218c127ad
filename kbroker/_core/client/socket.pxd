"""A client's connections to brokers, and the requests under way on them: C structs, no interpreter.

Everything here belongs to the thread of the socket's pump (pump.pxd). Requests leave in the order of socket_send and
are answered in that order. What a broker sends is not believed: a length above `max_response_size`, a correlation id that is
not that of the oldest request, a response that nobody asked for, and silence beyond a request's deadline close the socket.

Memory. Small responses are served from the pump's scratch. A response that is not there as a whole gets a buffer of its own
(base/receive_buffers.pxd), which is received into without a copy and can be kept by frame_take.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.sockets cimport iovec
from kbroker._core.base.timer_wheel cimport timer_node_t, wheel_t

cdef enum:
    CLIENT_API_KEYS = 96
    REASON_SIZE = 160
    RECEIVE_SCRATCH = 64 << 10

ctypedef struct exchange_t:
    # A request under way. It stands first in a struct of who asks, who owns it; the socket has it from socket_send until
    # `answered`, which is called once.
    exchange_t *next
    int32_t correlation_id       # the socket's
    int16_t api_key
    int16_t api_version
    int64_t deadline_ms          # monotonic (pump_t.now_ms); the socket is closed at it. -1: never
    iovec *pieces                # the frame, size field and header included; all of the header is in the first one
    int32_t piece_count
    bint silent                  # no response will come (acks=0): `answered` once it has been sent, body NULL, reason NULL
    # `body` is behind the response header and valid during the call, unless taken (frame_take). NULL: no answer; `reason`,
    # valid during the call too, says why, and the socket takes no more requests. An Engine cannot be cast from a pointer
    # without the GIL, but can be an argument: give `owner` <void *>self, and `answered` <answered_t><void *>f of a function
    # f whose first argument is declared as the engine's class.
    void *owner
    void (*answered)(void *owner, exchange_t *exchange, client_socket_t *socket, const uint8_t *body, int64_t size,
                     const char *reason) noexcept nogil

ctypedef void (*answered_t)(void *owner, exchange_t *exchange, client_socket_t *socket, const uint8_t *body, int64_t size,
                            const char *reason) noexcept nogil

ctypedef struct client_socket_t:
    int32_t node_id
    int32_t fd
    bint open                    # engines may use it: negotiated and authenticated
    int32_t in_flight            # exchanges sent or queued, not answered
    int64_t unsent               # bytes queued
    int16_t versions[96]         # per API key: the version to use, -1 not served
    pump_t *pump
    bint closing                 # it will be torn down before the turn ends
    bint held                    # only what is sent by socket_send_ahead leaves
    bint readable                # the kernel may have bytes
    bint hung_up                 # the peer sends no more: receive until the end
    bint blocked                 # the kernel takes no more bytes now
    bint in_dirty
    bint in_ready
    client_socket_t *next        # all of the pump's
    client_socket_t *previous
    client_socket_t *next_dirty
    client_socket_t *next_ready
    client_socket_t *next_doomed # and, once torn down, of those Python has not heard of
    exchange_t *queue            # not sent as a whole; oldest first
    exchange_t *queue_tail
    exchange_t *held_back        # while held
    exchange_t *held_back_tail
    exchange_t *waiting          # sent, not answered; oldest first
    exchange_t *waiting_tail
    int32_t piece                # of the queue's head: what comes next
    size_t piece_at
    int32_t last_correlation_id
    timer_node_t timer           # at the first deadline or before
    uint8_t head[4]              # a length field that is not there as a whole
    int32_t head_size
    uint8_t *frame               # a response that is being received, its length field not included
    int64_t frame_size
    int64_t frame_used
    int64_t frame_capacity       # as of base/receive_buffers.pxd
    const uint8_t *answer        # the response that is being answered
    int64_t answer_size
    void *connection             # PyObject: its PumpConnection, a reference
    void *transport              # PyObject: encrypts and decrypts, a reference; NULL for plain sockets
    void *wire                   # PyObject: encrypted bytes that are being sent
    const char *wire_data
    int64_t wire_size
    int64_t wire_at
    char reason[160]             # why it was closed
    int64_t bytes_in
    int64_t bytes_out

ctypedef struct pump_t:
    int32_t epoll_fd
    int32_t wake_fd
    int32_t asleep               # atomic: blocked in epoll_wait, or about to be
    bint news                    # something for Python: run returns
    int64_t now_ms               # monotonic, read once a turn
    wheel_t *wheel
    client_socket_t *sockets
    client_socket_t *dirty       # something to send
    client_socket_t *ready       # something to receive
    client_socket_t *ready_tail
    client_socket_t *doomed
    client_socket_t *closed      # torn down; Python is to be told
    void *answers                # control_t of pump.pyx: answers to Python's calls, newest first
    uint8_t *scratch
    int64_t max_response_size
    int16_t flexible_from[96]    # per API key: first version with tagged fields in the response's header
    int64_t turns
    int64_t requests
    int64_t responses

# --- for engines, on the pump's thread ------------------------------------------------------------------
# Queues the exchange; it leaves before the turn ends. Its correlation id is written into pieces[0]. On a socket that is closed
# `answered` is called at once.
cdef void socket_send(client_socket_t *socket, exchange_t *exchange) noexcept nogil
# Inside `answered`: the response's memory becomes the caller's (buffer_free gives it back), `body` moves with it. NULL: no memory.
cdef uint8_t *frame_take(client_socket_t *socket, const uint8_t **body, int64_t *capacity) noexcept nogil
# Torn down before the turn ends: all exchanges are answered with `reason`, which is copied. The first reason counts.
cdef void socket_close(client_socket_t *socket, const char *reason) noexcept nogil

# --- for the pump ---------------------------------------------------------------------------------------
cdef void socket_send_ahead(client_socket_t *socket, exchange_t *exchange) noexcept nogil   # though it is held
cdef void socket_release(client_socket_t *socket) noexcept nogil                # not held any longer
cdef void socket_flush(client_socket_t *socket) noexcept nogil                  # sends until all is sent or the kernel is full
cdef void socket_receive(client_socket_t *socket) noexcept nogil                # receives and answers
cdef void socket_feed(client_socket_t *socket, const uint8_t *data, int64_t size) noexcept nogil   # what was received
cdef void socket_overdue(client_socket_t *socket) noexcept nogil                # its timer has fired
cdef void socket_fail_all(client_socket_t *socket) noexcept nogil               # answers everything with its reason
cdef void socket_mark_dirty(client_socket_t *socket) noexcept nogil
cdef void socket_mark_ready(client_socket_t *socket) noexcept nogil
cdef void socket_unmark(client_socket_t *socket) noexcept nogil       # before it is torn down
