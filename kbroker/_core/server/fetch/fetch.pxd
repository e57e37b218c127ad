"""Fetch (key 1), versions 0 to 17, whole: sessions (KIP-227), limits (KIP-74), long polls, file regions.

A fetch that can be answered is answered on the processor, in one call. A fetch that has too little to send is parked:
on the waiter lists of its partitions and in the processor's timer wheel.

Another thread serves a fetch that would block (a log or a segment to open, an index that is not in memory) or hold up
the processor's other connections (many partitions, much to read of the log to find an offset). It writes the answer
into the slot, or lets the processor park the fetch: only its processor touches a connection. Clients of versions 0 to 3
read messages of magic 0 or 1, to which another thread converts the batches.

`fetch.pyx` decides; `request.pyx` parses the request, `entries.pyx` finds its partitions, `look.pyx` finds what can be
sent of them, `response.pyx` writes the answer, `messages.pyx` converts, `sessions.pyx` keeps the sessions.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._core.log.partition cimport fetch_waiter_t, partition_t, read_result_t
from kbroker._core.server.connection cimport conn_t, parked_t, request_t, slot_t
from kbroker._core.server.fetch.sessions cimport fetch_session_t, session_cache_t
from kbroker._core.server.serving cimport Serving

cdef enum:
    # fetch_t.context: which session the fetch is of.
    CONTEXT_SESSIONLESS = 0      # none
    CONTEXT_FULL = 1             # it names all its partitions and asks for a new session
    CONTEXT_INCREMENTAL = 2      # the one that it names: fetch_t.session
    CONTEXT_ERROR = 3            # the one that it names cannot be used: fetch_t.session_error
    CONTEXT_REFUSED = 4          # the fetch is refused: every partition has an error

    CONVERTED_AT_ONCE = 8 << 20  # bytes of the log converted for one response; the client fetches the rest next

    # The limits of what a processor serves itself, which takes a fraction of a millisecond. Most consumers have far
    # fewer partitions on one broker.
    SERVED_AT_ONCE = 1000        # partitions
    LARGE_REQUEST = 64 << 10     # bytes; a larger request is not even parsed on the processor

    INITIAL_EPOCH = 0            # fetch_t.session_epoch: a new session is asked for
    FINAL_EPOCH = -1             # no session, or the end of the one that is named

    TO_HANDLER = 2               # returned: the caller has to call hand_over_fetch for the slot

    KNOWN = 0                    # fetch_entry_t.unknown: the partition is known
    UNKNOWN_ID = 1               # its topic id is not
    UNKNOWN_PARTITION = 2        # its topic or its number is not
    ELSEWHERE = 3                # other brokers have it

ctypedef struct fetch_entry_t:
    # One partition of a fetch in progress: what the client asks for, and what the last look found.
    partition_t *partition       # a reference; NULL: no such partition is known
    const uint8_t *topic         # name (versions 0 to 12), borrowed from the frame, fetch_t.names or the session
    uint8_t topic_id[16]         # from version 13 on
    int16_t topic_size
    int16_t error                # 0, or the error code of the partition
    int32_t partition_id
    int32_t current_leader_epoch # as the client knows it; -1: not given
    int32_t max_bytes
    int32_t last_fetched_epoch   # of the record before `offset`; -1: not given
    int32_t preferred            # the replica that the client is to fetch from instead (KIP-392); -1: none
    int32_t diverging_epoch      # fetch_position_t's, by the last look
    int64_t diverging_end
    int64_t follower_start       # log start offset of a follower
    int32_t leader_id            # the current leader, for an answer that names it; -1: not known
    int32_t leader_epoch
    int32_t cached               # the place in the session's `cached`; -1: none
    int32_t next                 # index of the entry that follows in the response; -1: the last
    int8_t throttled             # by the last look: a follower gets nothing now, for it is over the leader's throttle
    int8_t unknown               # KNOWN, UNKNOWN_ID or UNKNOWN_PARTITION; unknown entries come last in the response
    int64_t offset               # fetch from here on
    int64_t visible_end          # partition_visible_end just before `read` was made
    read_result_t read           # the last look; `segment` is a reference while there is something to send

ctypedef struct fetch_t:
    # A fetch in progress, parked while there is too little to send.
    parked_t parked              # first
    int32_t dead                 # answered or abandoned while its mail is under way: freed when the mail arrives
    int8_t away                  # processor's thread; another thread works for it
    int8_t woken                 # processor's thread; its mail has come while it was away
    int8_t timed_out             # max_wait_ms has passed: answer with what there is
    PyObject *peer               # the Connection, borrowed, while another thread works for it; else NULL
    int64_t owner                # id of the connection
    int64_t host                 # token of the connection
    int64_t bytes_missing        # atomic; fetch_waiter_t.bytes_missing points here
    fetch_waiter_t *waiters      # owned; one per partition that it waits on
    int32_t waiter_count
    int16_t version
    int8_t isolation             # READ_*, as in the request
    int8_t until                 # TO_*: how far it may read
    int8_t context               # CONTEXT_*
    int8_t noted                 # the followers' fetch was noted by a look
    int32_t replica_id           # -1: a consumer
    int64_t replica_epoch        # the follower's broker epoch; -1: not given
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int32_t session_id
    int32_t session_epoch
    const uint8_t *rack          # of the client, borrowed from the frame
    int32_t rack_size
    int16_t session_error        # the error code of CONTEXT_ERROR
    uint32_t session_shape       # fetch_session_t.shape when the entries were taken from the session
    fetch_session_t *session     # a reference; with CONTEXT_INCREMENTAL only
    session_cache_t *cache
    fetch_entry_t *entries       # owned
    int32_t entry_count
    int32_t entry_capacity
    int32_t first                # first entry of a response of which only the bytes have still to be converted; else -1
    uint8_t *names               # owned; copies of topic names that no partition keeps, once the fetch is parked
    int64_t bytes_ready          # of the last look: bytes that could be sent
    int8_t answer_now            # of the last look: something else than bytes makes an answer due

# Serve a Fetch, on the processor's thread. Returns 0: answered or parked; TO_HANDLER: its slot is the connection's last
# one; NEEDS_HANDLER: nothing was answered or put in the connection's queue, call fetch_elsewhere on another thread; -1:
# the request does not parse or memory is out, close the connection.
cdef int fetch(Serving serving, conn_t *conn, request_t *request) noexcept nogil
# Serve the whole fetch on a thread that may block. Returns what becomes of the slot (SLOT_*), which then goes to
# fetch_came. `peer` is the Connection, `owner` its id, `host` its token.
cdef int32_t fetch_elsewhere(Serving serving, slot_t *slot, request_t *request, PyObject *peer, int64_t owner,
                             int64_t host) noexcept nogil
# The same for slot.fetch, a fetch that was handed over later: it was parked, or has only to be converted.
cdef int32_t fetch_go_on(Serving serving, slot_t *slot, PyObject *peer) noexcept nogil
# Processor's thread: another thread has done its work for the fetch, or has dropped the request. Returns 1: settle the
# slot with `slot.outcome`; 0: the fetch is parked or answered; or TO_HANDLER.
cdef int fetch_came(Serving serving, slot_t *slot) noexcept nogil
# Processor's thread: the mail or the timer of a parked fetch has come. Answers the fetch, parks it again, or frees a
# dead one. Returns 0 or TO_HANDLER.
cdef int fetch_resume(Serving serving, parked_t *parked, bint timed_out) noexcept nogil
# Processor's thread: the connection is closed. Frees the fetch: `parked` must not be used any more.
cdef void fetch_abandon(Serving serving, parked_t *parked) noexcept nogil
