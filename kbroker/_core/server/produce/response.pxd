"""Writes a Produce response."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint8_t

from kbroker._core.server.connection cimport slot_t
from kbroker._core.server.produce.work cimport produce_t
from kbroker._core.server.serving cimport Serving

# Write the whole response and make a waiter for each of the `waiting` partitions whose ack has to wait; the caller
# links them. `peer`: the Connection; NULL: this is the processor's thread. Returns the slot's outcome (SLOT_*).
cdef int32_t produce_response(Serving serving, slot_t *slot, produce_t *w, uint8_t *frame, int32_t waiting,
                              PyObject *peer) noexcept nogil
# Processor's thread: one of the slot's mails has come (slot_mail_came). After the last one the slot is settled.
cdef void slot_is_answered(Serving serving, slot_t *slot, bint from_handler) noexcept nogil
# Processor's thread, when no ack is waited for any more: put the errors of those that failed into the response.
cdef void produce_patch(Serving serving, slot_t *slot) noexcept nogil
