"""Connections, their queues of responses, and what the compiled functions need of a processor: C structs, no interpreter.

Only the processor's own thread touches `conn_t` and `slot_t`; others post mail (base/mailbox.pxd).

Order. A connection's responses leave in the order of its requests: each request takes a slot at the tail of the
connection's queue, and only ready slots at the head are sent. Produce requests are pipelined: the next frame is read
while acks of earlier ones wait. Any other request that is not answered at once mutes the connection until it is.

Memory. Bytes are received into the processor's one scratch buffer; complete frames are served from there. Only a frame
that is still incomplete gets a buffer of its own, which grows as bytes arrive (never on the word of the length field).
An idle connection holds none.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._core.base.mailbox cimport mail_t, mailbox_t
from kbroker._core.base.timer_wheel cimport timer_node_t, wheel_t
from kbroker._core.log.partition cimport ack_waiter_t, segment_t
from kbroker._core.server.cold_reader cimport cold_reader_t, warm_t
from kbroker._core.wire.cursor cimport reader_t, writer_t

cdef enum:
    MAX_API_KEY = 96
    ERROR_CODES = 128        # codes -1 to 126 are counted, each at its code + 1
    LATENCY_BUCKETS = 24     # bucket n: below 2**n us

    SLOT_RUNNING = 0         # not answered yet
    SLOT_READY = 1           # `out` and `splices` are what to send
    SLOT_SILENT = 2          # no response (Produce with acks=0); dropped when it reaches the head
    SLOT_CLOSE = 3           # close the connection when it reaches the head
    SLOT_PARKED = 4          # an outcome only: a Fetch that another thread has served so far has to wait

    TIMER_FETCH = 0          # timer_node_t.kind: in a fetch_t
    TIMER_IDLE = 1           # in a conn_t

ctypedef struct api_t:
    # What the processor must know of an API to read its header; filled from kbroker.protocol.api at start.
    int16_t min_version      # -1: not served
    int16_t max_version
    int16_t flexible_from    # first flexible version, 32767 if none

ctypedef struct counters_t:
    # Of one API key on one processor. Written by its thread only, read by anybody.
    int64_t requests
    int64_t bytes_in         # frames, with their length fields
    int64_t bytes_out        # responses, file regions included
    int64_t latency_ns       # from received to the last byte given to the socket
    int64_t latencies[24]
    int64_t *errors          # ERROR_CODES of them, NULL while there was none

ctypedef struct splice_t:
    # A file region sent in the middle of a response's bytes.
    size_t at                # after so many bytes of slot.out
    segment_t *segment       # a reference
    int64_t position
    int64_t size

ctypedef struct parked_t:
    # What a processor must know of a fetch: the head of a fetch_t (fetch/fetch.pxd).
    mail_t mail              # first; MAIL_FETCH
    timer_node_t timer       # max_wait_ms
    slot_t *slot             # of its response

ctypedef struct slot_t:
    mail_t mail              # first: a mail_t* of kind MAIL_SLOT is a slot_t*
    mail_t acks_mail         # MAIL_ACKS: ack_waiter_t.mail points here
    slot_t *next
    conn_t *conn             # NULL once the connection is closed; the slot is freed when its last mail has come
    int32_t state
    int32_t outcome          # what `state` becomes with the last mail; written by the thread that has the Request
    int32_t outstanding      # atomic; mails that will still come: 1 for a Request in Python's hands, 1 for pending acks
    int32_t pending          # atomic; acks this response waits for (ack_waiter_t.pending points here)
    int32_t mutes            # the connection is muted until this slot is answered
    int16_t api_key
    int16_t api_version
    int32_t correlation_id
    int64_t received_ns
    writer_t out             # the response, int32 size first (of everything behind it, splices included)
    int64_t size             # of `out` and splices, once ready
    splice_t *splices
    int32_t splice_count
    int32_t splice_capacity
    parked_t *fetch          # the fetch that another thread works for, or has worked for
    ack_waiter_t *waiters    # one per waiting partition of a Produce; these three are one allocation
    int16_t *waiter_errors   # parallel to waiters, and where in `out` each one's error code stands:
    uint32_t *waiter_positions
    int32_t waiter_count

ctypedef struct request_t:
    # A frame's header, read. Valid while the frame is.
    int16_t api_key
    int16_t api_version
    int32_t correlation_id
    const uint8_t *client_id
    int32_t client_id_size   # -1 null
    bint flexible
    const uint8_t *frame     # the whole frame behind its length field, for a hand-over to Python
    int64_t frame_size
    reader_t body            # at the first byte behind the header

ctypedef struct conn_t:
    # There may be ten thousand: what is small stands where it leaves no hole.
    mail_t mail              # first; MAIL_CONNECTION while on its way from the acceptor
    int32_t fd
    int32_t has_sessions     # of fetches; they are the first to be evicted when it is closed
    int64_t id
    int32_t listener
    int16_t api_key          # of the newest request, for what is logged when the connection is closed
    int16_t api_version
    int64_t token            # the acceptor's own, one for each host that has connections; given back by take_closed
    int32_t muted
    int32_t closing
    int32_t readable         # the socket may hold bytes that were not received
    int32_t hung_up          # the peer sends no more: receive until the end of its stream
    int32_t ended            # the end was received: close when the last response has left
    int32_t refused          # nothing more of it is served: close when what it asked before is answered
    int32_t blocked          # the socket takes no more bytes now
    int32_t in_ready         # linked in the processor's lists:
    int32_t in_dirty
    conn_t *next             # all connections of the processor
    conn_t *previous
    conn_t *next_ready
    conn_t *next_dirty
    conn_t *next_doomed
    slot_t *slots            # oldest first
    slot_t *slots_tail
    int32_t slot_count
    int32_t passed           # of the head slot's splices, those that have left whole,
    int64_t passed_size      # and what they and the bytes before them are together
    int64_t sent             # of the head slot, splices included
    int64_t unsent           # bytes of memory in ready slots
    uint8_t *partial         # received and not served yet: an incomplete frame, or what came in while muted
    int64_t partial_at       # where it begins in `partial`
    int64_t partial_size     # where it ends
    int64_t partial_capacity # as of base/receive_buffers.pxd
    int64_t last_active_ms   # monotonic
    timer_node_t idle
    parked_t *fetch          # the one that waits, if any
    warm_t *warm             # cold bytes of the head slot on their way into memory
    segment_t *warm_segment  # not a reference: what of the head slot is in memory, from here to there
    int64_t warm_from
    int64_t warm_until
    PyObject *info           # the Connection that Python sees, made on first use
    PyObject *transport      # what encrypts and decrypts, NULL for plain sockets
    PyObject *wire           # encrypted bytes that are being sent
    const char *wire_data
    int64_t wire_size
    int64_t wire_at
    processor_t *processor
    const char *reason       # why it is being closed; NULL: nothing to log
    uint64_t bytes_in
    uint64_t bytes_out

ctypedef struct processor_t:
    # What the compiled functions need of a Processor. Its thread only, but for what is atomic.
    int32_t epoll_fd
    mailbox_t *mailbox
    wheel_t *wheel
    int64_t now_ns           # monotonic, read once a turn
    int64_t now_ms           # wall clock, for timestamps
    conn_t *conns
    int32_t conn_count       # atomic
    conn_t *ready            # to be read from in the next turn; the lists are oldest first
    conn_t *ready_tail
    conn_t *dirty            # to be sent to before the turn ends
    conn_t *dirty_tail
    conn_t *doomed           # closed; torn down before the turn ends
    slot_t *free_slots
    int32_t free_slot_count
    int32_t orphans          # slots and warm_t of closed connections whose mail has not come
    int32_t paused           # the request channel is full: nothing is received
    int32_t stopping         # atomic
    uint8_t *scratch         # what recv fills: LARGE_BUFFER of base/receive_buffers.pxd
    uint8_t *send_scratch    # small file regions and plaintext on their way out
    cold_reader_t *cold_reader
    int64_t max_request_size
    int64_t idle_ms          # connections.max.idle.ms, -1 never
    int64_t idle_ns          # blocked in epoll_wait, in all, but for a wait that goes on
    int64_t waiting_since_ns # atomic; since when it does, 0 while none, -1 while idle_ns is being brought up to date
    int64_t started_ns
    int64_t turns
    int64_t looked_at        # pieces of responses, each time that something was to be sent
    api_t apis[96]
    counters_t counters[96]

# --- slots: the processor's thread only, unless said ----------------------------------------------------
cdef slot_t *slot_new(conn_t *conn, request_t *request) noexcept nogil         # at the tail of the connection's queue
cdef void slot_begin_response(slot_t *slot, request_t *request) noexcept nogil # size placeholder and response header; any thread
cdef void begin_response(slot_t *slot, bint flexible) noexcept nogil           # the same for who has no request_t
cdef int slot_splice(slot_t *slot, segment_t *segment, int64_t position, int64_t size) noexcept nogil  # takes the reference
cdef void slot_finish(slot_t *slot) noexcept nogil                             # patches the size; SLOT_READY; sends if it can
cdef void slot_settle(slot_t *slot, int32_t state) noexcept nogil              # READY (as slot_finish), SILENT or CLOSE
cdef void slot_pop(conn_t *conn, int64_t now_ns) noexcept nogil                # the head: sent, or dropped
cdef inline void slot_mute(slot_t *slot) noexcept nogil:                       # the connection is not read from
    slot.mutes = True
    slot.conn.muted = True
cdef void slot_unmute(slot_t *slot) noexcept nogil                             # the connection is read from again
# One of the slot's mails has come, from the handler that had the request or from a flush. With the last one `outcome` counts.
cdef void slot_mail_came(processor_t *p, slot_t *slot, bint from_handler) noexcept nogil
cdef void slot_done(processor_t *p, slot_t *slot) noexcept nogil               # all have come: settled, or freed without its connection
cdef void slot_free(processor_t *p, slot_t *slot) noexcept nogil
cdef void count_error(processor_t *p, int16_t api_key, int16_t code) noexcept nogil   # any thread

# --- connections ----------------------------------------------------------------------------------------
cdef void conn_ready(conn_t *conn) noexcept nogil        # may be read from or served: look at it in the next turn
cdef void conn_dirty(conn_t *conn) noexcept nogil        # send what is ready before the turn ends
cdef void conn_close(conn_t *conn, const char *reason) noexcept nogil    # torn down later in this turn; NULL: nothing to log
cdef void conn_refuse(conn_t *conn, const char *reason) noexcept nogil   # the same, once what it asked before is answered
cdef void conn_unlink(conn_t *conn) noexcept nogil       # out of the lists of ready and dirty connections
cdef conn_t *take_ready(processor_t *p) noexcept nogil
cdef conn_t *take_dirty(processor_t *p) noexcept nogil
cdef bint overloaded(conn_t *conn) noexcept nogil        # its responses are not taken: no more of its requests until they are

# --- frames ---------------------------------------------------------------------------------------------
# Read a request's header as far as it can be known; false when it does not parse. Any thread.
cdef bint read_header(processor_t *p, request_t *request, const uint8_t *frame, int64_t size) noexcept nogil
# These three: false when memory is out.
cdef bint partial_room(conn_t *conn) noexcept nogil      # room for more of the frame at partial_at, by what is there already
cdef bint partial_append(conn_t *conn, const uint8_t *data, int64_t size) noexcept nogil
cdef bint partial_keep(conn_t *conn, uint8_t *data, int64_t size) noexcept nogil   # the rest of the processor's scratch
cdef void partial_free(conn_t *conn) noexcept nogil
