"""What the functions that serve a request need of its processor: limits, caches, callbacks, and memory for reuse.

Receiving, Produce, Fetch and the hand-over to Python get a `Serving` and know nothing of a processor's loop. Clocks,
timers, counters and connections are in its `processor_t` (connection.pxd).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.base.mailbox cimport mailbox_t
from kbroker._core.log.partition_table cimport PartitionTable
from kbroker._core.server.connection cimport processor_t, slot_t
from kbroker._core.server.fetch.sessions cimport FetchSessions
from kbroker._core.server.produce.work cimport produce_t

ctypedef struct handed_t:
    # A request on its way to Python: its frame, and what was parsed of it.
    slot_t *slot
    produce_t *work              # a Produce that the processor has begun; else NULL
    uint8_t *buffer              # becomes the Frame's
    int64_t at                   # where the frame begins in `buffer`
    int64_t capacity             # of `buffer`
    int64_t size                 # of the frame
    int64_t body_at              # where the body begins in the frame
    int64_t client_id_at         # where the client id begins in the frame
    int32_t client_id_size       # -1: null
    bint flexible

cdef class Serving:
    """The part of a processor that serves requests.

    Its fields belong to the processor's thread. Other threads may use what is constant: limits, callbacks, the
    partition table, the sessions.
    """
    cdef readonly str name
    cdef processor_t *p
    cdef mailbox_t mailbox
    cdef PartitionTable partition_table
    cdef FetchSessions fetch_sessions  # shared by all processors
    cdef tuple listeners               # their names
    cdef int64_t max_inflated_size
    cdef int64_t max_response_size
    cdef object inflate                # callable(codec, data, limit) -> buffer; raises KbrokerError (its code is sent)
    cdef object convert                # callable(messages, largest message, limit) -> (batch without codec, old codec)
    cdef object down_convert           # callable(batches, first offset wanted, magic, inflated limit) -> messages
    cdef object recompress             # callable(header, records, codec, level) -> the batch with that codec
    cdef produce_t *spare              # owned; reused by each Produce; NULL: none yet
    cdef produce_t *handed             # a Produce that needs a handler, until hand_over
    cdef object on_request             # callable(Request, Processor), this thread, GIL held; False: the channel is full
    cdef list held                     # Requests that the request channel had no room for
    cdef bint gathers                  # several connections are read in this turn: Python gets their requests together
    cdef handed_t *gathered            # owned; the requests for hand_over_gathered
    cdef int32_t gathered_count
    cdef int32_t gathered_capacity
    cdef unsigned long thread_id       # of the processor's thread, as threading.get_ident

# Report, by sys.excepthook, that the callback or step `what` raised `error`. The processor goes on.
cdef void report(Serving serving, what, error) noexcept
