"""Fetch (key 1), versions 0 to 17, whole: sessions (KIP-227), limits (KIP-74), long polls, file regions.

A fetch that can be answered is answered on the processor, in one call. One that has too little to send is parked on the
waiter lists of its partitions and in the processor's timer wheel. What would block (a log or a segment to open, an index
that is not in memory) or hold up the processor's other connections (many partitions, much to read of the log to find an
offset) is served by another thread, which writes the answer into the slot, or has it parked: only its processor touches a
connection. Versions 0 to 3 read messages of magic 0 or 1: another thread converts what they get.

`fetch.pyx` decides; `request.pyx` reads the request, `entries.pyx` finds the partitions it is about,
`look.pyx` finds what can be sent of them, `response.pyx` writes the answer, `sessions.pyx` keeps the sessions.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._core.log.partition cimport fetch_waiter_t, partition_t, read_result_t
from kbroker._core.server.connection cimport conn_t, parked_t, request_t, slot_t
from kbroker._core.server.fetch.sessions cimport fetch_session_t, session_cache_t
from kbroker._core.server.serving cimport Serving

cdef enum:
    # How a fetch stands to sessions (fetch_t.context).
    CONTEXT_SESSIONLESS = 0
    CONTEXT_FULL = 1             # asks for a new session
    CONTEXT_INCREMENTAL = 2
    CONTEXT_ERROR = 3            # the session it names cannot be used: `session_error`
    CONTEXT_REFUSED = 4          # nothing is served: every partition has the error

    FIRST_BATCH_VERSION = 4      # lower ones read messages: magic 0 in versions 0 and 1, magic 1 in 2 and 3
    CONVERTED_AT_ONCE = 8 << 20  # bytes of the log that one of their responses converts; the client comes again for the rest

    # What a processor serves itself: a fraction of a millisecond. Most consumers have far fewer partitions of one broker.
    SERVED_AT_ONCE = 1000        # partitions
    LARGE_REQUEST = 64 << 10     # bytes of a request that is not even read there

    INITIAL_EPOCH = 0            # fetch_t.session_epoch besides those of sessions that go on
    FINAL_EPOCH = -1

    READ_UNCOMMITTED = 0         # fetch_t.isolation
    READ_COMMITTED = 1

    TO_HANDLER = 2               # what is left to do: hand_over_fetch of the slot

    KNOWN = 0                    # fetch_entry_t.unknown
    UNKNOWN_ID = 1
    UNKNOWN_PARTITION = 2

ctypedef struct fetch_entry_t:
    # One partition of a fetch in progress: what is asked, and what the last look at it gave.
    partition_t *partition       # a reference; NULL while no such partition is known
    const uint8_t *topic         # its name (versions 0 to 12): in the frame, later in fetch_t.names or in the session
    uint8_t topic_id[16]         # versions 13 on
    int16_t topic_size
    int16_t error                # 0, or the protocol's error code of this partition
    int32_t partition_id
    int32_t current_leader_epoch # -1: not given
    int32_t max_bytes
    int32_t cached               # its place in the session, -1 none
    int32_t next                 # the entry that follows in the response, -1 at its end
    int8_t unknown               # 0, or what is not known here (`error` tells); answered behind the others
    int64_t offset
    int64_t visible_end          # what could be seen just before `read` was made
    read_result_t read           # segment: a reference while there is something to send

ctypedef struct fetch_t:
    # A fetch in progress; parked when there is too little to send yet.
    parked_t parked              # first
    int32_t dead                 # answered or abandoned, but its mail is still under way: freed when that arrives
    int8_t away                  # another thread works for it: mail that comes meanwhile is
    int8_t woken                 # remembered here, by the processor's thread
    int8_t timed_out             # to be answered, whatever there is
    PyObject *peer               # another thread: the Connection, borrowed while it works
    int64_t owner                # id of the connection
    int64_t host                 # its token
    int64_t bytes_missing        # atomic
    fetch_waiter_t *waiters      # one per entry that it waits on
    int32_t waiter_count
    int16_t version
    int8_t isolation             # as in the request
    int8_t committed             # it is read_committed
    int8_t context               # how it stands to sessions, CONTEXT_*
    int32_t replica_id           # -1: a consumer
    int32_t max_wait_ms
    int32_t min_bytes
    int32_t max_bytes
    int32_t session_id
    int32_t session_epoch
    int16_t session_error
    uint32_t session_shape       # of the session when the entries were taken from it
    fetch_session_t *session     # a reference, CONTEXT_INCREMENTAL only
    session_cache_t *cache
    fetch_entry_t *entries
    int32_t entry_count
    int32_t entry_capacity
    int32_t first                # of the entries in the response, when only their bytes have still to be converted; else -1
    uint8_t *names               # owned copies of names that no partition keeps, once parked
    int64_t bytes_ready          # of the last look: what could be sent,
    int8_t answer_now            # and whether something else than bytes makes an answer due

# Processor's thread. 0: answered or parked. TO_HANDLER: it stands in the connection's last slot. NEEDS_HANDLER: nothing was
# answered and nothing was put in the connection's queue; call fetch_elsewhere on another thread. -1: the request does not
# parse; close the connection.
cdef int fetch(Serving serving, conn_t *conn, request_t *request) noexcept nogil
# A thread that may block: the whole fetch. Returns what becomes of the slot (SLOT_*), which goes to fetch_came. `peer` is the
# Connection, `owner` its id, `host` its token.
cdef int32_t fetch_elsewhere(Serving serving, slot_t *slot, request_t *request, PyObject *peer, int64_t owner,
                             int64_t host) noexcept nogil
# The same for one that was parked, or has only to be converted, and was handed over then: slot.fetch.
cdef int32_t fetch_go_on(Serving serving, slot_t *slot, PyObject *peer) noexcept nogil
# Processor's thread: the other one has done its work, or has dropped the request. 1: `slot.outcome` is what becomes of it.
# 0: it waits, or is answered. Or TO_HANDLER.
cdef int fetch_came(Serving serving, slot_t *slot) noexcept nogil
# Processor's thread: mail or timer of a parked fetch; answers it, or parks it again, or frees a dead one. 0 or TO_HANDLER.
cdef int fetch_resume(Serving serving, parked_t *parked, bint timed_out) noexcept nogil
# Processor's thread: the connection is gone. `parked` is not to be used any more.
cdef void fetch_abandon(Serving serving, parked_t *parked) noexcept nogil
