"""The loop of a client's background thread: its sockets, and what runs on them without the GIL.

    pump.run(timeout) is the `select` of the thread's asyncio loop. It returns to the interpreter only when a foreign
    descriptor is ready, when Python has news (answers to its calls, closed connections, nodes that an engine wants,
    engines that called `tell`), or when the timeout has passed. Meanwhile it serves sockets and gives engines their
    turns, all without the GIL.

socket.pxd has the structs and what engines do with sockets (exchange_t, client_socket_t, socket_send, frame_take).
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.client.nodes cimport client_nodes_t
from kbroker._core.client.socket cimport client_socket_t, exchange_t, pump_t

cdef class Pump

cdef class Engine:
    """What a kind of client does in the pump's thread.

    Subclasses override the three methods; the rest is the pump's.
    """
    cdef Pump pump               # None until pump.add
    cdef Engine following        # the next engine of the same pump
    cdef int32_t woken           # atomic
    cdef bint has_told
    cdef int64_t due_ms          # monotonic; the pump calls `turn` at this time, and `turn` must move it. -1: never
    cdef public object on_told   # callable(), called on the pump's thread with the GIL after `Pump.tell`

    # Called once in each turn of the pump in which the engine was woken or is due.
    cdef void turn(self, int64_t now_ms) noexcept nogil
    # Engines may use `socket` from now on. The engine has been woken too.
    cdef void socket_opened(self, client_socket_t *socket) noexcept nogil
    # All exchanges of `socket` were answered. The pointer is not valid after the call.
    cdef void socket_closed(self, client_socket_t *socket) noexcept nogil

    cdef void turn_all(self, int64_t now_ms) noexcept nogil
    cdef bint any_woken(self) noexcept nogil
    cdef int64_t first_due_ms(self) noexcept nogil
    cdef void all_opened(self, client_socket_t *socket) noexcept nogil
    cdef void all_closed(self, client_socket_t *socket) noexcept nogil
    cdef void wake_all(self) noexcept nogil

cdef class PumpConnection:
    """A connection as Python sees it. Its methods are for the pump's thread."""
    cdef client_socket_t *socket # NULL once Python has been told that it is closed
    cdef Pump pump
    cdef readonly object reason  # why the connection is closed; None while `socket` is set
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

    # Gives `engine` a turn soon; for any thread. Costs an atomic exchange; the eventfd is written only while the pump
    # sleeps.
    cdef void wake(self, Engine engine) noexcept nogil
    # The open socket of a node, or NULL; for the pump's thread. After NULL Python is told that a socket is wanted, and
    # `socket_opened` is called once there is one.
    cdef client_socket_t *socket_of(self, int32_t node_id) noexcept nogil
    # Has engine.on_told() called with the GIL before the pump sleeps again; for the pump's thread.
    cdef void tell(self, Engine engine) noexcept nogil

    cdef void loop(self, int64_t until_ms) noexcept nogil
    cdef int wait(self, int64_t until_ms) noexcept nogil
    cdef void tear_down_doomed(self) noexcept nogil
    cdef open_socket(self, client_socket_t *socket)
    cdef give_news(self)
    cdef say_closed(self, client_socket_t *socket)
    cdef call_out(self, callback, tuple arguments)
