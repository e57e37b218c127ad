"""A processor: one thread, one epoll set, the connections it serves.

The loop runs without the GIL: receive, frame, header, then Produce and Fetch to completion in compiled code. Everything
else, and what Produce and Fetch cannot finish without blocking or without the interpreter, is given to Python as a
`Request` (request.pxd). Connections and their queues of responses are in connection.pxd.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker._core.server.cold_reader cimport ColdReader, warm_t
from kbroker._core.server.connection cimport conn_t, processor_t
from kbroker._core.base.mailbox cimport mailbox_t
from kbroker._core.log.registry cimport Registry
from kbroker._core.base.sync cimport mutex_t
from kbroker._core.base.timer_wheel cimport wheel_t

cdef class Processor:
    """One thread's connections. `run` is the body of that thread; adopt, resume, stop and the counters are for others."""
    cdef readonly str name
    cdef readonly int index
    cdef processor_t *p
    cdef mailbox_t mailbox
    cdef wheel_t *wheel
    cdef Registry registry
    cdef object fetch_sessions         # _core.fetch_sessions.FetchSessions, shared by all processors
    cdef int64_t now_ns                # as in processor_t
    cdef int64_t now_ms
    cdef void *work                    # produce_t that is used again and again
    cdef void *handed                  # produce_t of a Produce that needs a handler, on its way into its Request
    cdef bint gathers                  # this turn has several connections to read from: Python gets their requests together
    cdef void *gathered                # handed_t of handover.pyx
    cdef int32_t gathered_count
    cdef int32_t gathered_capacity
    cdef ColdReader cold_reader
    cdef object on_request             # callable(Request, Processor) on this thread, with the GIL; False: the channel is full
    cdef object on_close               # callable(Connection, reason)
    cdef object inflate                # callable(codec, data, limit) -> buffer; errors are KbrokerError with the code to answer
    cdef object convert                # callable(messages, largest message, limit) -> a batch without codec, the codec they had
    cdef object down_convert           # callable(batches, first offset wanted, magic, inflated limit) -> messages
    cdef object recompress             # callable(header, records, codec, level) -> the batch with that codec
    cdef int64_t max_inflated_size
    cdef int64_t max_response_size
    cdef tuple listeners               # their names
    cdef tuple transports              # per listener: None, or what makes a connection's transport
    cdef list held                     # requests that the channel had no room for
    cdef void *events                  # of epoll
    cdef mutex_t closed_lock           # guards the three below; taken alone
    cdef int64_t *closed               # tokens of closed connections
    cdef int32_t closed_count
    cdef int32_t closed_capacity
    cdef int32_t resumed               # atomic
    cdef int64_t stop_at_ns
    cdef bint was_crowded        # the last turn had several connections to read from
    cdef unsigned long thread_id

    cdef void read_clocks(self) noexcept nogil
    cdef void loop(self) noexcept nogil
    cdef int wait(self) noexcept nogil
    cdef int linger(self, int64_t until_ns) noexcept nogil
    cdef void serve_ready(self) noexcept nogil
    cdef void send_dirty(self) noexcept nogil
    cdef void serve_mail(self) noexcept nogil
    cdef void serve_timers(self) noexcept nogil
    cdef void welcome(self, conn_t *conn) noexcept nogil
    cdef void on_event(self, conn_t *conn, uint32_t events) noexcept nogil
    cdef void warmed(self, warm_t *warm) noexcept nogil
    cdef void tear_down_doomed(self) noexcept nogil
    cdef void note_closed(self, int64_t token) noexcept nogil
    cdef void begin_stop(self) noexcept nogil
    cdef bint is_stopped(self) noexcept nogil
    cdef void report(self, what, error) noexcept
    cdef object connection_of(self, conn_t *conn)
    cdef void say_goodbye(self, conn_t *conn) noexcept with gil
