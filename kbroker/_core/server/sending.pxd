"""Sends the ready slots at the head of a connection's queue, as buffers and file regions, plain or encrypted."""

from libc.stdint cimport int64_t

from kbroker._core.log.partition cimport segment_t
from kbroker._core.server.connection cimport conn_t, processor_t

cdef enum:
    SEND_SCRATCH = 64 << 10      # bytes of processor_t.send_scratch
    SMALL_REGION = 32 << 10      # bytes; up to here pread + sendmsg cost no more than sendmsg + sendfile (measured)
    SEND_TURN = 2 << 20          # bytes after which a connection gives way to others

# Processor's thread: send until the head of the queue is not ready, the socket is full, bytes are not in memory, or
# SEND_TURN bytes are sent.
cdef void send_ready(conn_t *conn) noexcept nogil
# The same for all dirty connections, before the turn ends.
cdef void send_dirty(processor_t *p) noexcept nogil
# Note that a region of the head slot is in memory: it is sent without asking the kernel again.
cdef void note_warm(conn_t *conn, segment_t *segment, int64_t position, int64_t size) noexcept nogil
