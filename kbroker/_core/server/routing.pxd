"""Frames to whom they are for: Produce and Fetch are served here and now, the rest goes to Python.

On the connection's processor only.
"""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.server.connection cimport conn_t
from kbroker._core.server.serving cimport Serving

# Serve one whole frame: header and body, without the size before it.
cdef void serve(Serving serving, conn_t *conn, uint8_t *frame, int64_t size) noexcept nogil
