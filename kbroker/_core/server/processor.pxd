"""A processor: one thread, one epoll set, the connections it serves.

The loop runs without the GIL: it receives, finds frames, parses headers, and serves Produce and Fetch to completion in
compiled code. All other requests, and a Produce or Fetch that needs to block or needs the interpreter, are given to
Python as a `Request` (request.pxd). Connections and their queues of responses are in connection.pxd.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t

from kbroker._core.base.epoll cimport epoll_event
from kbroker._core.base.sync cimport mutex_t
from kbroker._core.server.cold_reader cimport ColdReader, warm_t
from kbroker._core.server.connection cimport conn_t
from kbroker._core.server.serving cimport Serving

cdef class Processor(Serving):
    """The connections of one thread. `run` is the body of that thread; all other methods are for other threads."""
    cdef readonly int index
    cdef ColdReader cold_reader
    cdef object on_close               # callable(Connection, reason)
    cdef tuple transports              # per listener: None, or the callable that makes a transport
    cdef epoll_event *events
    cdef mutex_t closed_lock           # guards the next three; taken alone
    cdef int64_t *closed               # owned; tokens of closed connections
    cdef int32_t closed_count
    cdef int32_t closed_capacity
    cdef int32_t resumed               # atomic; 1: `resume` was called
    cdef int64_t stop_at_ns            # monotonic; set before p.stopping
    cdef bint was_crowded        # the last turn had several connections to read from

    cdef void read_clocks(self) noexcept nogil
    cdef void loop(self) noexcept nogil
    cdef int wait(self) noexcept nogil
    cdef int linger(self, int64_t until_ns) noexcept nogil
    cdef void serve_ready(self) noexcept nogil
    cdef void serve_mail(self) noexcept nogil
    cdef void serve_timers(self) noexcept nogil
    cdef void welcome(self, conn_t *conn) noexcept nogil
    cdef void on_event(self, conn_t *conn, uint32_t events) noexcept nogil
    cdef void warmed(self, warm_t *warm) noexcept nogil
    cdef void tear_down_doomed(self) noexcept nogil
    cdef void note_closed(self, int64_t token) noexcept nogil
    cdef void begin_stop(self) noexcept nogil
    cdef bint is_stopped(self) noexcept nogil
    cdef void say_goodbye(self, conn_t *conn) noexcept with gil
