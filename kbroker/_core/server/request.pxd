"""A request, as handlers know it. The connection that it came in on is in peer.pxd."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.server.connection cimport slot_t
from kbroker._core.server.peer cimport Connection
from kbroker._core.server.produce.work cimport produce_t
from kbroker._core.server.serving cimport Serving

cdef class Frame:
    """The bytes of one request, in a buffer of base/receive_buffers.pxd that it owns."""
    cdef uint8_t *buffer
    cdef int64_t capacity
    cdef int64_t at
    cdef int64_t size
    cdef int exports

cdef class Request:
    """A request that Python answers, once, from any thread."""
    cdef Serving serving
    cdef slot_t *slot                  # NULL once answered
    cdef Frame frame
    cdef int64_t body_at
    cdef produce_t *work               # what is read and appended already
    cdef int32_t answered              # atomic
    cdef bint flexible
    cdef readonly int api_key
    cdef readonly int api_version
    cdef readonly int correlation_id
    cdef readonly str client_id
    cdef readonly Connection connection
    cdef readonly int64_t received_ns

    cdef slot_t *claim(self) except NULL
    cdef void deliver(self, slot_t *slot, int32_t outcome) noexcept
    cdef void fail(self, error) noexcept
    cdef int32_t produce(self, slot_t *slot, codes) except? -1
    cdef int32_t fetch(self, slot_t *slot) noexcept
