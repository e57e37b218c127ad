"""What serving a request needs of the processor that it came to: limits, caches, callbacks, and what is used again.

Receiving, Produce, Fetch and the hand-over to Python get a `Serving` and know nothing of a processor's loop. Clocks,
timers, counters and connections stand in its `processor_t` (connection.pxd).
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.base.mailbox cimport mailbox_t
from kbroker._core.log.registry cimport Registry
from kbroker._core.server.connection cimport processor_t, slot_t
from kbroker._core.server.fetch.sessions cimport FetchSessions
from kbroker._core.server.produce.work cimport produce_t

ctypedef struct handed_t:
    # A request on its way to Python: its frame, and what was found in it.
    slot_t *slot
    produce_t *work              # what has been done of a Produce so far; else NULL
    uint8_t *buffer
    int64_t at
    int64_t capacity
    int64_t size
    int64_t body_at
    int64_t client_id_at
    int32_t client_id_size       # -1: it has none
    bint flexible

cdef class Serving:
    """Its processor's thread only, but for what is constant: limits, callbacks, the registry and the sessions."""
    cdef readonly str name
    cdef processor_t *p
    cdef mailbox_t mailbox
    cdef Registry registry
    cdef FetchSessions fetch_sessions  # shared by all processors
    cdef tuple listeners               # their names
    cdef int64_t max_inflated_size
    cdef int64_t max_response_size
    cdef object inflate                # callable(codec, data, limit) -> buffer; errors are KbrokerError with the code to answer
    cdef object convert                # callable(messages, largest message, limit) -> a batch without codec, the codec they had
    cdef object down_convert           # callable(batches, first offset wanted, magic, inflated limit) -> messages
    cdef object recompress             # callable(header, records, codec, level) -> the batch with that codec
    cdef produce_t *spare              # used again by each Produce
    cdef produce_t *handed             # of a Produce that needs a handler, on its way into its Request
    cdef object on_request             # callable(Request, Processor) on this thread, with the GIL; False: the channel is full
    cdef list held                     # requests that the channel had no room for
    cdef bint gathers                  # this turn has several connections to read from: Python gets their requests together
    cdef handed_t *gathered
    cdef int32_t gathered_count
    cdef int32_t gathered_capacity
    cdef unsigned long thread_id

# A callback, or a step of serving, raised `error`: told to the standard error stream. The processor goes on.
cdef void report(Serving serving, what, error) noexcept
