"""The loop of a client's background thread: its sockets, and what runs on them without the GIL.

    pump.run(timeout) is the `select` of the thread's asyncio loop. It returns to the interpreter only when a foreign
    descriptor is ready, Python has something to hear (answers to its calls, closed connections, engines that tell), or
    the timeout has passed. Sockets are served and engines have their turns meanwhile, all without the GIL.

Structs and what engines do with sockets (exchange_t, client_socket_t, socket_send, frame_take): socket.pxd.
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.client.nodes cimport client_nodes_t
from kbroker._core.client.socket cimport client_socket_t, exchange_t, pump_t

cdef class Pump

cdef class Engine:
    """What a kind of client does in the pump's thread. Subclasses override the three methods; the rest is the pump's."""
    cdef Pump pump               # None until pump.add
    cdef Engine following
    cdef int32_t woken           # atomic
    cdef bint has_told
    cdef int64_t due_ms          # monotonic; turn is called at it, and must move it then. -1 never
    cdef public object on_told   # callable(), on the pump's thread with the GIL

    cdef void turn(self, int64_t now_ms) noexcept nogil       # once in each turn of the pump in which it was woken or is due
    cdef void socket_opened(self, client_socket_t *socket) noexcept nogil    # woken too
    cdef void socket_closed(self, client_socket_t *socket) noexcept nogil    # the pointer ends; all exchanges were answered

    cdef void turn_all(self, int64_t now_ms) noexcept nogil
    cdef bint any_woken(self) noexcept nogil
    cdef int64_t first_due_ms(self) noexcept nogil
    cdef void all_opened(self, client_socket_t *socket) noexcept nogil
    cdef void all_closed(self, client_socket_t *socket) noexcept nogil
    cdef void wake_all(self) noexcept nogil

cdef class PumpConnection:
    """A connection as Python sees it. Its methods are for the pump's thread."""
    cdef client_socket_t *socket # NULL once it is closed
    cdef Pump pump
    cdef readonly object reason  # why it is closed; None while it is not
    cdef public object on_close  # callable(reason)

    cdef str why_closed(self)

cdef class Pump:
    cdef pump_t p
    cdef Engine engine           # the first one
    cdef public object on_wanted # callable(node_id): an engine has asked for a socket and there is none
    cdef client_nodes_t nodes
    cdef void *events            # of epoll
    cdef int64_t *foreign        # descriptor << 32 | events: ready ones
    cdef int32_t foreign_count
    cdef bint is_abandoned

    # Any thread: `engine` has a turn soon. Costs an atomic exchange; the eventfd is written only when the pump sleeps.
    cdef void wake(self, Engine engine) noexcept nogil
    # Pump's thread. NULL: none is open; Python is told that one is wanted, socket_opened comes when there is one.
    cdef client_socket_t *socket_of(self, int32_t node_id) noexcept nogil
    # Pump's thread: engine.on_told() is called with the GIL before the pump sleeps again.
    cdef void tell(self, Engine engine) noexcept nogil

    cdef void loop(self, int64_t until_ms) noexcept nogil
    cdef int wait(self, int64_t until_ms) noexcept nogil
    cdef void tear_down_doomed(self) noexcept nogil
    cdef open_socket(self, client_socket_t *socket)
    cdef give_news(self)
    cdef say_closed(self, client_socket_t *socket)
    cdef call_out(self, callback, tuple arguments)
