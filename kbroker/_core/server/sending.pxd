"""What leaves a connection: ready slots at the head of its queue, as buffers and file regions, plain or encrypted."""

from libc.stdint cimport int64_t

from kbroker._core.log.partition cimport segment_t
from kbroker._core.server.connection cimport conn_t, processor_t

cdef enum:
    SEND_SCRATCH = 64 << 10      # small regions and plaintext are gathered here
    SMALL_REGION = 32 << 10      # up to this size pread and one sendmsg cost no more than sendmsg and sendfile (measured)
    SEND_TURN = 2 << 20          # a connection gives way to others after so many bytes

# Processor's thread: send until the queue's head is not ready, the socket is full, bytes are cold, or it is others' turn.
cdef void send_ready(conn_t *conn) noexcept nogil
# The same for all that have something to send, before the turn ends.
cdef void send_dirty(processor_t *p) noexcept nogil
# Of the head slot, so much is in memory: it is sent without asking again.
cdef void note_warm(conn_t *conn, segment_t *segment, int64_t position, int64_t size) noexcept nogil
