"""Requests on their way to Python and back: what Produce and Fetch cannot finish compiled, and all other APIs.

On the processor's thread; Python answers from any thread, by the slot's mail.
"""

from kbroker._core.server.connection cimport conn_t, request_t, slot_t
from kbroker._core.server.serving cimport Serving

# Give the request to Python, in memory of its own: a large buffer changes its owner, anything else is copied. The
# connection is not read from until it is answered. `serving.handed` goes with it. Where `serving.gathers`, Python
# gets it with the next `give_gathered`.
cdef void hand_over(Serving serving, conn_t *conn, request_t *request) noexcept nogil
# Give Python the requests that were gathered, several for each time that the GIL is taken, and send what it answers.
cdef void give_gathered(Serving serving) noexcept nogil
# Give Python a Fetch in progress, `slot.fetch`; that and the slot are its own until the slot's mail.
cdef void hand_over_fetch(Serving serving, slot_t *slot) noexcept nogil
# The request channel has room again: first for the requests that are held, then the connections are read from.
cdef void resume_held(Serving serving) noexcept with gil
