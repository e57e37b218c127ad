"""Receiving: bytes of a connection become frames, each served at once. sending.pxd is the other way."""

from kbroker._core.server.connection cimport conn_t
from kbroker._core.server.serving cimport Serving

# Serve what is there and receive, until nothing is left, the connection may not go on, or it is others' turn. On the
# connection's processor only.
cdef void read_turn(Serving serving, conn_t *conn) noexcept nogil
