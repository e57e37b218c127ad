"""A processor: one thread, one epoll set, the connections it serves.

The loop runs without the GIL: receive, frame, header, then Produce and Fetch to completion in compiled code. Everything
else, and what Produce and Fetch cannot finish without blocking or without the interpreter, is given to Python as a
`Request`. Only the processor's own thread touches `conn_t` and `slot_t`; others post mail (mailbox.pxd).

Order. A connection's responses leave in the order of its requests: each request takes a slot at the tail of the
connection's queue, and only ready slots at the head are sent. Produce requests are pipelined: the next frame is read
while acks of earlier ones wait. Any other request that is not answered at once mutes the connection until it is.

Memory. Bytes are received into the processor's one scratch buffer; complete frames are served from there. Only a frame
that is still incomplete gets a buffer of its own, which grows as bytes arrive (never on the word of the length field).
An idle connection holds none.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker._core.cursor cimport reader_t, writer_t
from kbroker._core.mailbox cimport mail_t, mailbox_t
from kbroker._core.partition cimport ack_waiter_t, segment_t
from kbroker._core.registry cimport Registry
from kbroker._core.timer_wheel cimport timer_node_t, wheel_t

cdef enum:
    MAX_API_KEY = 96

    SLOT_RUNNING = 0         # not answered yet
    SLOT_READY = 1           # `out` and `splices` are what to send
    SLOT_SILENT = 2          # no response (Produce with acks=0); dropped when it reaches the head
    SLOT_CLOSE = 3           # close the connection when it reaches the head

ctypedef struct api_t:
    # What the processor must know of an API to read its header; filled from kbroker.protocol.api at start.
    int16_t min_version      # -1: not served
    int16_t max_version
    int16_t flexible_from    # first flexible version, 32767 if none

ctypedef struct splice_t:
    # A file region sent in the middle of a response's bytes.
    size_t at                # after so many bytes of slot.out
    segment_t *segment       # a reference
    int64_t position
    int64_t size

ctypedef struct slot_t:
    mail_t mail              # first: a mail_t* of kind MAIL_SLOT is a slot_t*
    slot_t *next
    conn_t *conn             # NULL once the connection is closed; the slot is freed when its last completer has posted
    int32_t state
    int32_t outstanding      # completers that will still post: 1 for a Request in Python's hands, 1 for pending acks
    int32_t pending          # atomic; acks this response waits for (ack_waiter_t.pending points here)
    int16_t api_key
    int16_t api_version
    int32_t correlation_id
    int64_t received_ns
    writer_t out             # the response, int32 size first (of everything behind it, splices included)
    splice_t *splices
    int32_t splice_count
    ack_waiter_t *waiters    # one per waiting partition of a Produce
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
    mail_t mail              # first; MAIL_CONNECTION while on its way from the acceptor
    int32_t fd
    int64_t id
    int32_t listener
    int32_t muted
    int32_t closing
    slot_t *slots            # oldest first
    slot_t *slots_tail
    int32_t slot_count
    size_t sent              # of the head slot, splices included
    uint8_t *partial         # an incomplete frame: `partial_size` bytes of it are here
    int64_t partial_size
    int64_t partial_capacity
    int64_t frame_size       # what its length field says, behind the field; -1 not known yet
    timer_node_t idle
    void *fetch              # the parked fetch_t, if any
    void *info               # PyObject: the Connection that Python sees
    void *processor          # PyObject, borrowed
    uint64_t bytes_in
    uint64_t bytes_out

# What produce.pyx and fetch.pyx use; the processor's thread only, unless said.
cdef slot_t *slot_new(conn_t *conn, request_t *request) noexcept nogil         # at the tail of the connection's queue
cdef void slot_begin_response(slot_t *slot, request_t *request) noexcept nogil # size placeholder and response header
cdef int slot_splice(slot_t *slot, segment_t *segment, int64_t position, int64_t size) noexcept nogil  # takes the reference
cdef void slot_finish(slot_t *slot) noexcept nogil                             # patches the size; SLOT_READY; sends if it can

cdef class Processor:
    cdef readonly str name
    cdef readonly int index
    cdef int epoll_fd
    cdef mailbox_t mailbox
    cdef wheel_t *wheel
    cdef Registry registry
    cdef object fetch_sessions         # _core.fetch.FetchSessions, shared by all processors
    cdef object on_request             # callable(Request), on this thread with the GIL
    cdef int64_t now_ns                # monotonic, read once a turn
    cdef int64_t now_ms                # wall clock, for timestamps
