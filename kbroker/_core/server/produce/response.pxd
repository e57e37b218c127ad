"""Writes a Produce response."""

from libc.stdint cimport int32_t, uint8_t

from kbroker._core.server.connection cimport slot_t
from kbroker._core.server.produce.work cimport produce_t
from kbroker._core.server.serving cimport Serving

# Write the whole response and make a waiter for each of the `waiting` partitions whose ack has to wait; the caller
# links them. Returns the slot's outcome (SLOT_*).
cdef int32_t produce_response(Serving serving, slot_t *slot, produce_t *w, uint8_t *frame,
                              int32_t waiting) noexcept nogil
