"""Hands requests over to Python: all other APIs, and what Produce and Fetch cannot finish in compiled code.

These functions run on the processor's thread. Python answers from any thread, with the slot's mail.
"""

from kbroker._core.server.connection cimport conn_t, request_t, slot_t
from kbroker._core.server.serving cimport Serving

# Give the request to Python, in memory of its own: a large buffer changes its owner, any other frame is copied. The
# connection is muted until the request is answered. `serving.handed`, if any, goes with the request. With
# `serving.gathers`, Python gets the request at the next `hand_over_gathered`.
cdef void hand_over(Serving serving, conn_t *conn, request_t *request) noexcept nogil
# Give Python the gathered requests, several each time that the GIL is taken, and send what it answers in between.
cdef void hand_over_gathered(Serving serving) noexcept nogil
# Give Python a Fetch in progress, `slot.fetch`. The handler owns it and the slot until the slot's mail comes.
cdef void hand_over_fetch(Serving serving, slot_t *slot) noexcept nogil
# The request channel has room again: give Python the requests that are held, then serve connections again.
cdef void resume_held(Serving serving) noexcept with gil
