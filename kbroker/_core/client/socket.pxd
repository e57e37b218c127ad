"""A client's connections to brokers, and the requests under way on them: C structs, no interpreter.

Everything here belongs to the thread of the socket's pump (pump.pxd). Requests leave in the order of socket_send and
are answered in that order. Brokers are not trusted. The socket is closed when a response announces more than
`max_response_size` bytes, when its correlation id is not that of the oldest request, when nobody asked for a response,
and when a request's deadline passes without an answer.

Memory. A response that has arrived as a whole is read from the pump's scratch buffer. Any other one gets a buffer of
its own (base/receive_buffers.pxd): the rest is received into that buffer without a copy, and frame_take can keep it.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.sealing cimport wire_t
from kbroker._core.base.sockets cimport iovec
from kbroker._core.base.timer_wheel cimport timer_node_t, wheel_t

cdef enum:
    REASON_SIZE = 160
    RECEIVE_SCRATCH = 64 << 10

ctypedef struct exchange_t:
    # A request under way. It is the first field of a struct that the caller of socket_send owns. The socket uses it
    # from socket_send until it calls `answered`, which it does once.
    exchange_t *next
    int32_t correlation_id       # written by the socket
    int16_t api_key
    int16_t api_version
    int64_t deadline_ms          # monotonic (pump_t.now_ms); the socket is closed at this time. -1: never
    iovec *pieces                # the frame, size field and header included; the whole header is in the first piece
    int32_t piece_count
    bint silent                  # no response will come (acks=0): `answered` is called once it is sent, with NULLs
    # `body` points behind the response header. It is valid during the call, and longer if frame_take takes it. `body`
    # NULL on an exchange that is not silent means that no answer came: `reason`, valid during the call, says why, and
    # the socket takes no more requests. A pointer cannot be cast to an Engine without the GIL, but an Engine can be an
    # argument. So set `owner` to <void *>self and `answered` to <answered_t><void *>f, where the first argument of
    # function f is declared as the engine's class.
    void *owner
    void (*answered)(void *owner, exchange_t *exchange, client_socket_t *socket, const uint8_t *body, int64_t size,
                     const char *reason) noexcept nogil

ctypedef void (*answered_t)(void *owner, exchange_t *exchange, client_socket_t *socket, const uint8_t *body,
                            int64_t size, const char *reason) noexcept nogil

ctypedef struct client_socket_t:
    int32_t node_id
    int32_t fd
    bint open                    # engines may use it: negotiated and authenticated
    int32_t in_flight            # exchanges sent or queued, not answered
    int64_t unsent               # bytes queued
    int16_t versions[96]         # API_KEYS of them: the version to use; -1: the broker does not serve the API
    pump_t *pump
    bint closing                 # it will be torn down before the turn ends
    bint held                    # only requests of socket_send_ahead are sent
    bint readable                # the kernel may have bytes
    bint hung_up                 # the peer has shut down its side: receive until the end of the stream
    bint blocked                 # the kernel takes no more bytes now
    bint in_dirty
    bint in_ready
    client_socket_t *next        # in the list of all sockets of the pump
    client_socket_t *previous
    client_socket_t *next_dirty
    client_socket_t *next_ready
    client_socket_t *next_doomed # in pump_t.doomed; once the socket is torn down, in pump_t.closed
    exchange_t *queue            # not sent as a whole; oldest first
    exchange_t *queue_tail
    exchange_t *held_back        # what socket_send was given while the socket is held
    exchange_t *held_back_tail
    exchange_t *waiting          # sent, not answered; oldest first
    exchange_t *waiting_tail
    int32_t piece                # index of the piece of the queue's head that is sent next
    size_t piece_at              # bytes of this piece that have been sent
    int32_t last_correlation_id
    timer_node_t timer           # fires at the first deadline or before
    uint8_t head[4]              # the bytes of a length field of which the rest has not arrived
    int32_t head_size
    uint8_t *frame               # a response that is being received, without its length field
    int64_t frame_size
    int64_t frame_used
    int64_t frame_capacity       # as buffer_take of base/receive_buffers.pxd told it
    const uint8_t *answer        # the response that is being answered
    int64_t answer_size
    PyObject *connection         # owned; the PumpConnection
    PyObject *transport          # owned; encrypts and decrypts; NULL for plain sockets
    wire_t wire                  # encrypted bytes that are being sent
    char reason[160]             # why it was closed
    int64_t bytes_in
    int64_t bytes_out

ctypedef struct pump_t:
    int32_t epoll_fd
    int32_t wake_fd
    int32_t asleep               # atomic: blocked in epoll_wait, or about to be
    bint news                    # there is something to tell Python: `Pump.run` returns
    int64_t now_ms               # monotonic, read once a turn
    wheel_t *wheel
    client_socket_t *sockets
    client_socket_t *dirty       # sockets with something to send
    client_socket_t *ready       # sockets with something to receive, oldest first
    client_socket_t *ready_tail
    client_socket_t *doomed      # sockets to tear down before the turn ends
    client_socket_t *closed      # sockets that are torn down and that Python has not been told of
    void *answers                # call_t of calls.pyx: answers to Python's calls, newest first
    uint8_t *scratch
    int64_t max_response_size
    int16_t flexible_from[96]    # by API key: first version with tagged fields in the response's header
    int64_t turns
    int64_t requests
    int64_t responses

# --- for engines, on the pump's thread ------------------------------------------------------------------
# Queues the exchange and writes its correlation id into pieces[0]. Sending starts before the pump's turn ends, unless
# the socket is held. On a socket that is closing, `answered` is called at once.
cdef void socket_send(client_socket_t *socket, exchange_t *exchange) noexcept nogil
# To be called inside `answered`. Gives the response's memory to the caller, who frees it with buffer_free. `body` is
# moved if the response had to be copied. Returns NULL if memory is out.
cdef uint8_t *frame_take(client_socket_t *socket, const uint8_t **body, int64_t *capacity) noexcept nogil
# Marks the socket to be torn down before the turn ends: all its exchanges are then answered with `reason`, which is
# copied here. Only the first reason counts.
cdef void socket_close(client_socket_t *socket, const char *reason) noexcept nogil

# --- for the pump ---------------------------------------------------------------------------------------
# Queues the exchange as socket_send does, also on a socket that is held.
cdef void socket_send_ahead(client_socket_t *socket, exchange_t *exchange) noexcept nogil
# Ends holding: queues what was held back.
cdef void socket_release(client_socket_t *socket) noexcept nogil
# Sends until the queue is empty or the kernel takes no more.
cdef void socket_flush(client_socket_t *socket) noexcept nogil
# Receives, and answers exchanges.
cdef void socket_receive(client_socket_t *socket) noexcept nogil
# Takes in `size` bytes that were received (and decrypted).
cdef void socket_feed(client_socket_t *socket, const uint8_t *data, int64_t size) noexcept nogil
# Called when the socket's timer has fired: closes the socket if a deadline has passed, else sets the timer again.
cdef void socket_overdue(client_socket_t *socket) noexcept nogil
# Answers every exchange with the socket's reason.
cdef void socket_fail_all(client_socket_t *socket) noexcept nogil
cdef void socket_mark_dirty(client_socket_t *socket) noexcept nogil
cdef void socket_mark_ready(client_socket_t *socket) noexcept nogil
# Takes the socket out of the pump's lists of dirty and ready ones, before it is torn down.
cdef void socket_unmark(client_socket_t *socket) noexcept nogil
