"""A connection as Python sees it: who is at the other end."""

from libc.stdint cimport int64_t

from kbroker._core.server.connection cimport conn_t
from kbroker._core.server.serving cimport Serving

cdef class Connection:
    """A connection as handlers see it."""
    cdef readonly int64_t id
    cdef int64_t token                 # conn_t.token
    cdef readonly str listener
    cdef readonly str peer_host
    cdef readonly int peer_port
    cdef readonly str local_host
    cdef readonly int local_port
    cdef public str principal
    cdef dict _session
    cdef object close_reason

# The Connection of a conn_t, made on first use. On the connection's processor only.
cdef Connection connection_of(Serving serving, conn_t *conn)
