"""Connections, their queues of responses, and what compiled functions need of a processor: C structs only.

Only the thread of its processor touches a `conn_t` or `slot_t`; other threads post mail (base/mailbox.pxd).

Order. A connection's responses leave in the order of its requests: each request takes a slot at the tail of the
connection's queue, and only ready slots at the head are sent. Produce requests are pipelined: the next frame is read
while acks of earlier ones wait. Any other request that is not answered at once mutes the connection until it is
answered.

Memory. Bytes are received into the processor's one scratch buffer; complete frames are served from there. Only a frame
that is still incomplete gets a buffer of its own. It grows as bytes arrive, whatever the frame's length field says. An
idle connection holds no buffer.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._core.base.mailbox cimport mail_t, mailbox_t
from kbroker._core.base.sealing cimport wire_t
from kbroker._core.base.timer_wheel cimport timer_node_t, wheel_t
from kbroker._core.log.partition cimport ack_waiter_t, segment_t
from kbroker._core.server.cold_reader cimport cold_reader_t, warm_t
from kbroker._core.server.counters cimport counters_t
from kbroker._core.wire.cursor cimport reader_t, writer_t

cdef enum:
    SLOT_RUNNING = 0         # not answered yet
    SLOT_READY = 1           # `out` and `splices` are what to send
    SLOT_SILENT = 2          # no response is sent (Produce with acks=0); dropped when it reaches the head
    SLOT_CLOSE = 3           # close the connection when it reaches the head
    SLOT_PARKED = 4          # an outcome only, never a state: a Fetch that another thread has looked at has to wait

    TIMER_FETCH = 0          # timer_node_t.kind: the node is in a fetch_t
    TIMER_IDLE = 1           # the node is in a conn_t
    TIMER_ACKS = 2           # the node is in a slot_t

ctypedef struct api_t:
    # What a processor needs to know of an API to read request headers; filled from kbroker.protocol.api at start.
    int16_t min_version      # -1: not served
    int16_t max_version
    int16_t flexible_from    # first flexible version, 32767 if none

ctypedef struct splice_t:
    # A file region sent in the middle of a response's bytes.
    size_t at                # the region comes after so many bytes of slot.out
    segment_t *segment       # a reference
    int64_t position         # byte in the segment
    int64_t size             # bytes

ctypedef struct parked_t:
    # The head of a fetch_t (fetch/fetch.pxd): what a processor needs of a parked fetch.
    mail_t mail              # first; MAIL_FETCH
    timer_node_t timer       # due when max_wait_ms has passed
    slot_t *slot             # of the response

ctypedef struct slot_t:
    # The place of a response in its connection's queue.
    mail_t mail              # first: a mail_t* of kind MAIL_SLOT is a slot_t*
    mail_t acks_mail         # MAIL_ACKS: ack_waiter_t.mail points here
    timer_node_t timer       # TIMER_ACKS: due when acks that wait for replicas have waited for the request's timeout
    slot_t *next             # of the queue; of free_slots when it is not in use
    conn_t *conn             # NULL once the connection is closed; the slot is freed when its last mail has come then
    int32_t state            # SLOT_*
    int32_t outcome          # what `state` becomes with the last mail; written by the thread that has the Request
    int32_t outstanding      # atomic; mails that will come: 1 for a Request in Python's hands, 1 for pending acks
    int32_t pending          # atomic; acks that the response waits for (ack_waiter_t.pending points here)
    int32_t mutes            # the connection is muted until this slot is answered
    int16_t api_key
    int16_t api_version
    int32_t correlation_id
    int64_t received_ns      # monotonic
    writer_t out             # the response; begins with an int32, the size of all that follows, splices included
    int64_t size             # bytes of `out` and the splices, once ready
    splice_t *splices        # owned; the file regions of the response, in order
    int32_t splice_count
    int32_t splice_capacity
    parked_t *fetch          # a Fetch that is with another thread, until fetch_came; else NULL
    ack_waiter_t *waiters    # of a Produce: one per partition that waits; with the next two, one allocation, owned
    int16_t *waiter_errors   # parallel to `waiters`: the error code of each
    uint32_t *waiter_positions # parallel to `waiters`: where in `out` each error code stands
    int32_t waiter_count
    int32_t acks_timeout_ms  # -1; else the timer is to be set when the handler's mail comes
    int32_t names_endpoints  # 1: the response of a Produce ends with endpoints of leaders

ctypedef struct request_t:
    # The header of a frame, parsed. The pointers are valid as long as the frame.
    int16_t api_key
    int16_t api_version
    int32_t correlation_id
    const uint8_t *client_id
    int32_t client_id_size   # bytes; -1: null
    bint flexible
    const uint8_t *frame     # the whole frame after its length field, for a hand-over to Python
    int64_t frame_size
    reader_t body            # at the first byte after the header

ctypedef struct conn_t:
    # There may be ten thousand connections, so fields are ordered to leave no holes.
    mail_t mail              # first; MAIL_CONNECTION while on its way from the acceptor
    int32_t fd
    int32_t has_sessions     # 1: it has used fetch sessions; they are evicted first once it is closed
    int64_t id               # unique in the process
    int32_t listener         # index in Serving.listeners
    int16_t api_key          # of the newest request, to be logged when the connection is closed
    int16_t api_version
    int64_t token            # given by the acceptor, one for each host that has connections; take_closed returns it
    int32_t muted            # no request is served until the one that muted it is answered
    int32_t closing          # in the list of doomed connections
    int32_t readable         # the socket may hold bytes that were not received yet
    int32_t hung_up          # the peer sends no more: bytes are received until the end of its stream
    int32_t ended            # the end of the stream was received: close when the last response has left
    int32_t urgent           # its next request is served although the request channel is full (next_is_urgent)
    int32_t refused          # no more requests are served: close when the earlier ones are answered
    int32_t blocked          # the socket took no more bytes: wait for EPOLLOUT
    int32_t in_ready         # 1: in the processor's list of ready connections
    int32_t in_dirty         # 1: in the list of dirty ones
    conn_t *next             # in the list of all connections of the processor
    conn_t *previous
    conn_t *next_ready
    conn_t *next_dirty
    conn_t *next_doomed
    slot_t *slots            # the queue of responses, oldest request first
    slot_t *slots_tail
    int32_t slot_count
    int32_t passed           # splices of the head slot that have been sent completely
    int64_t passed_size      # bytes of those splices and of `out` before the last of them
    int64_t sent             # bytes of the head slot that have been sent, splices included
    int64_t unsent           # bytes of `out` of all ready slots
    uint8_t *partial         # owned; bytes received and not served: an incomplete frame, or what came while muted
    int64_t partial_at       # where those bytes begin in `partial`
    int64_t partial_size     # where they end
    int64_t partial_capacity # bytes of the buffer (base/receive_buffers.pxd)
    int64_t last_active_ms   # monotonic
    timer_node_t idle        # connections.max.idle.ms
    parked_t *fetch          # the parked fetch, NULL: none
    warm_t *warm             # bytes of the head slot that the cold reader brings into memory; nothing is sent meanwhile
    segment_t *warm_segment  # not a reference; bytes warm_from to warm_until of it, for the head slot, are in memory
    int64_t warm_from
    int64_t warm_until
    PyObject *info           # owned; the Connection that Python sees, made on first use
    PyObject *transport      # owned; encrypts and decrypts; NULL for a plain socket
    wire_t wire              # encrypted bytes that are being sent
    processor_t *processor
    const char *reason       # why it is closed; NULL: nothing to log
    uint64_t bytes_in
    uint64_t bytes_out

ctypedef struct processor_t:
    # What the compiled functions need of a Processor. Touched by its thread only, except the fields that are atomic.
    int32_t epoll_fd
    mailbox_t *mailbox
    wheel_t *wheel
    int64_t now_ns           # monotonic; read once per turn of the loop
    int64_t now_ms           # wall clock, for timestamps; read once per turn
    conn_t *conns
    int32_t conn_count       # atomic
    conn_t *ready            # connections to be read from in the next turn; the lists are oldest first
    conn_t *ready_tail
    conn_t *dirty            # connections to be sent to before the turn ends
    conn_t *dirty_tail
    conn_t *doomed           # closed connections, torn down before the turn ends
    slot_t *free_slots       # slots to be used again
    int32_t free_slot_count
    int32_t orphans          # slots and warm_t of closed connections whose mail has not come yet
    int32_t paused           # the request channel is full: nothing is received or served but what is urgent
    int32_t stopping         # atomic
    uint8_t *scratch         # owned; recv fills it: LARGE_BUFFER bytes of base/receive_buffers.pxd
    uint8_t *send_scratch    # owned; SEND_SCRATCH bytes: small file regions and plaintext on their way out
    cold_reader_t *cold_reader
    int64_t max_request_size
    int64_t idle_ms          # connections.max.idle.ms; -1: never
    int64_t idle_ns          # time spent waiting for events so far, without a wait that is going on
    int64_t waiting_since_ns # atomic; monotonic; begin of the wait that is going on; 0: none; -1: idle_ns changes now
    int64_t started_ns       # monotonic
    int64_t turns            # turns of the loop
    int64_t looked_at        # pieces of responses that were looked at in order to send
    api_t apis[96]           # API_KEYS of them
    counters_t counters[96]  # by API key

# --- slots: the processor's thread only, unless said ----------------------------------------------------
cdef slot_t *slot_new(conn_t *conn, request_t *request) noexcept nogil         # at the tail of the queue, or NULL
cdef void slot_begin_response(slot_t *slot, request_t *request) noexcept nogil # size placeholder, header; any thread
cdef void begin_response(slot_t *slot, bint flexible) noexcept nogil           # the same without a request_t
# Append a file region to the response; takes over the reference. 0, or -1 when memory is out.
cdef int slot_splice(slot_t *slot, segment_t *segment, int64_t position, int64_t size) noexcept nogil
cdef void slot_finish(slot_t *slot) noexcept nogil                             # patches the size; READY; sent this turn
cdef void slot_settle(slot_t *slot, int32_t state) noexcept nogil              # READY (as slot_finish), SILENT or CLOSE
cdef void slot_pop(conn_t *conn, int64_t now_ns) noexcept nogil                # remove the head, sent or silent
cdef inline void slot_mute(slot_t *slot) noexcept nogil:                       # serve no request until it is answered
    slot.mutes = True
    slot.conn.muted = True
cdef void slot_unmute(slot_t *slot) noexcept nogil                             # requests are served again
# One of the slot's mails has come: from the handler that had the request, or from its acks. True: it was the last one,
# so call slot_done, which settles the slot with `outcome`, or frees it when its connection is gone.
cdef bint slot_mail_came(processor_t *p, slot_t *slot, bint from_handler) noexcept nogil
# Let the acks of the slot wait for at most so long. Processor's thread.
cdef void acks_timer(slot_t *slot, int32_t timeout_ms) noexcept nogil
# They have waited for so long: those that still wait get REQUEST_TIMED_OUT.
cdef void acks_timed_out(slot_t *slot) noexcept nogil
cdef void slot_done(processor_t *p, slot_t *slot) noexcept nogil
cdef void slot_free(processor_t *p, slot_t *slot) noexcept nogil

# --- connections ----------------------------------------------------------------------------------------
cdef void conn_ready(conn_t *conn) noexcept nogil        # look at it in the next turn: it may be read from or served
cdef void conn_dirty(conn_t *conn) noexcept nogil        # send what is ready before the turn ends
cdef void conn_close(conn_t *conn, const char *reason) noexcept nogil    # torn down in this turn; NULL: not logged
cdef void conn_refuse(conn_t *conn, const char *reason) noexcept nogil   # closed once earlier requests are answered
cdef void conn_unlink(conn_t *conn) noexcept nogil       # remove it from the lists of ready and dirty connections
# The oldest of a list that is not empty, removed from it.
cdef conn_t *take_ready(processor_t *p) noexcept nogil
cdef conn_t *take_dirty(processor_t *p) noexcept nogil
cdef bint overloaded(conn_t *conn) noexcept nogil        # serve no more requests until more responses are sent

# --- frames ---------------------------------------------------------------------------------------------
# Parse a request's header, without tags when the API is not served; false when it does not parse. Any thread.
cdef bint read_header(processor_t *p, request_t *request, const uint8_t *frame, int64_t size) noexcept nogil
# Three functions for conn_t.partial; false: memory is out.
cdef bint partial_room(conn_t *conn) noexcept nogil      # room to receive more of the frame at partial_at
cdef bint partial_append(conn_t *conn, const uint8_t *data, int64_t size) noexcept nogil
cdef bint partial_keep(conn_t *conn, uint8_t *data, int64_t size) noexcept nogil   # keep the rest of the scratch
cdef void partial_free(conn_t *conn) noexcept nogil
