"""Produce (key 0), whole: read, check, append, answer. The layout of each version is in produce.pyx.

Everything is checked before anything is appended. What can be done without blocking and without the interpreter is done
on the processor, in one call; else the request goes on where it stopped on a request handler thread.
"""

from libc.stdint cimport int32_t, uint8_t

from kbroker._core.server.connection cimport conn_t, request_t, slot_t
from kbroker._core.server.produce.work cimport produce_t
from kbroker._core.server.serving cimport Serving

# Processor's thread. 0: done, or waiting for acks in its slot. NEEDS_HANDLER: nothing was put in the connection's queue,
# `serving.handed` is what has been done so far. -1: the request does not parse; close the connection.
cdef int produce(Serving serving, conn_t *conn, request_t *request) noexcept nogil
# A thread that may block: everything that comes before the append. Whether the coordinator of a transaction has to be asked
# about `produce_asked`, under guards which are with the entries now.
cdef bint produce_prepare(Serving serving, produce_t *work, uint8_t *frame) noexcept nogil
# What it has to be asked: see Request.prepare.
cdef object produce_asked(produce_t *work, uint8_t *frame)
# Refuse those whose answer is an error code. Without answers (None): all of them.
cdef int produce_answered(produce_t *work, object codes) except -1
# A thread that may block: the rest of `work`, which is freed. Fills the slot; returns what becomes of it (SLOT_*).
cdef int32_t produce_run(Serving serving, slot_t *slot, produce_t *work, uint8_t *frame) noexcept nogil
# Instead of produce_run.
cdef void produce_discard(produce_t *work) noexcept nogil
