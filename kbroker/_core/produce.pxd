"""Produce (key 0), versions 3 to 11, whole: read, check, append, answer. The layout of each version is in produce.pyx."""

from kbroker._core.processor cimport Processor, conn_t, request_t

# 0: done, or waiting for acks in its slot. NEEDS_PYTHON / NEEDS_HANDLER: nothing was appended, nothing was put in the
# connection's queue. -1: the request does not parse; close the connection.
cdef int produce(Processor processor, conn_t *conn, request_t *request) noexcept nogil
