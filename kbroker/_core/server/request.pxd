"""A request as handlers see it. The connection that it came in on is in peer.pxd."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.server.connection cimport slot_t
from kbroker._core.server.peer cimport Connection
from kbroker._core.server.produce.work cimport produce_t
from kbroker._core.server.serving cimport Serving

cdef class Frame:
    """The bytes of one request. Owns a buffer of base/receive_buffers.pxd."""
    cdef uint8_t *buffer
    cdef int64_t capacity
    cdef int64_t at                    # where the frame begins in `buffer`
    cdef int64_t size                  # of the frame, bytes
    cdef int exports                   # memoryviews that are alive

cdef class Request:
    """A request that Python answers, once, from any thread."""
    cdef Serving serving
    cdef slot_t *slot                  # NULL once answered
    cdef Frame frame                   # None for a Fetch that a processor has begun
    cdef int64_t body_at               # where the body begins in the frame
    cdef produce_t *work               # owned; a Produce that the processor has begun; else NULL
    cdef int32_t answered              # atomic; 1: claimed by the thread that answers
    cdef bint flexible
    cdef readonly int api_key
    cdef readonly int api_version
    cdef readonly int correlation_id
    cdef readonly str client_id
    cdef readonly Connection connection
    cdef readonly int64_t received_ns

    # Take the slot in order to answer. Raises RuntimeError when the request is answered already.
    cdef slot_t *claim(self) except NULL
    # Give the slot back to its processor, with what becomes of it (SLOT_*).
    cdef void deliver(self, slot_t *slot, int32_t outcome) noexcept
    cdef void fail(self, error) noexcept
    cdef int32_t produce(self, slot_t *slot, codes) except? -1
    cdef int32_t fetch(self, slot_t *slot) noexcept
