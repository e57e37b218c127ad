"""Produce (key 0), whole: read, check, append, answer. The layout of each version is in produce.pyx.

All batches are checked before any is appended. What needs neither blocking nor the interpreter is done on the
processor, in one call. Otherwise a request handler thread goes on where the processor stopped.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint8_t

from kbroker._core.server.connection cimport conn_t, request_t, slot_t
from kbroker._core.server.produce.work cimport produce_t
from kbroker._core.server.serving cimport Serving

# Serve a Produce, on the processor's thread. Returns 0: answered, or its slot waits for acks; NEEDS_HANDLER: nothing
# was put in the connection's queue, and `serving.handed` is the work so far; -1: the request does not parse or memory
# is out, so close the connection.
cdef int produce(Serving serving, conn_t *conn, request_t *request) noexcept nogil
# On a thread that may block: do all that comes before the append. Returns whether the coordinator of the transaction
# has to be asked (produce_asked); the entries it has to be asked about have guards now.
cdef bint produce_check_blocking(Serving serving, produce_t *work, uint8_t *frame) noexcept nogil
# The question for the coordinator, as Request.check_blocking returns it.
cdef object produce_asked(produce_t *work, uint8_t *frame)
# Refuse the entries for which the coordinator's answer is an error code, one code for each entry that was asked about.
# `codes` None: there is no answer, refuse them all.
cdef int produce_answered(produce_t *work, object codes) except -1
# On a thread that may block: append and answer the rest of `work`, and free it. Fills the slot and returns what becomes
# of it (SLOT_*). `peer` is the Connection.
cdef int32_t produce_run(Serving serving, slot_t *slot, produce_t *work, uint8_t *frame,
                         PyObject *peer) noexcept nogil
# Free `work` instead of produce_run.
cdef void produce_discard(produce_t *work) noexcept nogil
