"""Receives bytes from a connection and serves each complete frame at once. sending.pxd is the other direction."""

from kbroker._core.server.connection cimport conn_t
from kbroker._core.server.serving cimport Serving

# Serve the frames that are there and receive more, until the socket is empty, the connection may not be served (muted,
# overloaded, ...) or it has had its share of the turn. On the connection's processor only.
cdef void read_turn(Serving serving, conn_t *conn) noexcept nogil
