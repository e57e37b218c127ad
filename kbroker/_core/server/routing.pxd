"""Passes each frame on by its API: Produce and Fetch are served in compiled code at once, the rest goes to Python.

On the connection's processor only.
"""

from libc.stdint cimport int64_t, uint8_t

from kbroker._core.server.connection cimport conn_t
from kbroker._core.server.serving cimport Serving

# Serve one whole frame: header and body, without its length field.
cdef void serve(Serving serving, conn_t *conn, uint8_t *frame, int64_t size) noexcept nogil
