"""Receives bytes and serves the frames in them; see receiving.pxd."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t
from libc.string cimport memcpy

from kbroker._core.base.sealing cimport opened
from kbroker._core.base.sockets cimport peek_bytes, receive_bytes
from kbroker._core.server.connection cimport (
    conn_close, conn_ready, conn_refuse, conn_t, overloaded, partial_append, partial_free, partial_keep, partial_room,
    processor_t,
)
from kbroker._core.server.routing cimport serve
from kbroker._core.server.sending cimport send_ready
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.apis cimport (
    API_ALLOCATE_PRODUCER_IDS, API_ALTER_PARTITION, API_CONTROLLED_SHUTDOWN, API_LEADER_AND_ISR, API_VERSIONS,
)
from kbroker._core.wire.cursor cimport load_u16, load_u32

cdef enum:
    FIRST_READ = 64 << 10        # bytes received at once while there is no incomplete frame
    TURN_BYTES = 1 << 20         # bytes received from one connection before the others get their turn
    FRAME_HEAD = 6               # bytes of a frame's size and its API key


cdef inline bint may_serve(conn_t *conn) noexcept nogil:
    return not (conn.muted or conn.closing or conn.refused or (conn.processor.paused and not conn.urgent) or
                conn.processor.stopping or overloaded(conn))


cdef void read_turn(Serving serving, conn_t *conn) noexcept nogil:
    """Serve the frames that have arrived and receive more.

    It ends when nothing is left, the connection may not go on, or the connection's turn is over.
    """
    cdef processor_t *p = serving.p
    cdef int64_t budget = TURN_BYTES
    cdef ssize_t asked
    cdef ssize_t got
    conn.urgent = p.paused and next_is_urgent(conn)
    if conn.partial != NULL:
        serve_partial(serving, conn)
    while conn.readable and may_serve(conn) and not conn.ended:
        if budget <= 0:
            conn_ready(conn)
            break
        if conn.partial == NULL or conn.transport != NULL:
            asked = FIRST_READ
            got = receive_bytes(conn.fd, p.scratch, asked)
        else:
            if not partial_room(conn):
                conn_close(conn, "memory is out")
                break
            asked = conn.partial_capacity - conn.partial_size
            if conn.partial_size - conn.partial_at >= 4:
                asked = min(asked, 4 + <int64_t>load_u32(conn.partial + conn.partial_at)
                            - (conn.partial_size - conn.partial_at))
            got = receive_bytes(conn.fd, conn.partial + conn.partial_size, asked)
        if got > 0:
            budget -= got
            conn.bytes_in += got
            if got < asked and not conn.hung_up:
                conn.readable = False    # the kernel has no more bytes; epoll tells when more come
            if conn.transport != NULL:
                decrypt(serving, conn, got)
                serve_partial(serving, conn)
            elif conn.partial == NULL:
                serve_scratch(serving, conn, got)
            else:
                conn.partial_size += got
                serve_partial(serving, conn)
        elif got == 0:
            conn.readable = False
            conn.ended = True
            if conn.slots == NULL and conn.wire.sealed == NULL:
                conn_close(conn, NULL)
        elif errno == EAGAIN:
            conn.readable = False
        elif errno != EINTR:
            conn_close(conn, NULL)
    conn.last_active_ms = p.now_ns // 1_000_000
    if conn.in_dirty:
        send_ready(conn)


cdef bint next_is_urgent(conn_t *conn) noexcept nogil:
    """Whether the next request on the connection does not need the request channel, as far as its API key is there."""
    cdef uint8_t head[FRAME_HEAD]
    cdef int64_t kept = 0
    cdef ssize_t got = 0
    cdef uint16_t api_key
    if conn.partial != NULL:
        kept = min(conn.partial_size - conn.partial_at, FRAME_HEAD)
        memcpy(head, conn.partial + conn.partial_at, kept)
    if kept < FRAME_HEAD and conn.transport == NULL and conn.readable:
        got = peek_bytes(conn.fd, head + kept, FRAME_HEAD - kept)
    if kept + got < FRAME_HEAD:
        return False
    api_key = load_u16(head + 4)
    # Requests between brokers have queues of their own; ApiVersions goes before them on some connections.
    return (API_LEADER_AND_ISR <= api_key <= API_CONTROLLED_SHUTDOWN or api_key == API_ALTER_PARTITION or
            api_key == API_ALLOCATE_PRODUCER_IDS or api_key == API_VERSIONS)


cdef bint frame_size_fits(Serving serving, conn_t *conn, int64_t size) noexcept nogil:
    if size > serving.p.max_request_size:
        conn_refuse(conn, "a request that is larger than socket.request.max.bytes")
        return False
    return True


cdef void serve_scratch(Serving serving, conn_t *conn, int64_t size) noexcept nogil:
    cdef uint8_t *at = serving.p.scratch
    cdef uint8_t *end = at + size
    cdef int64_t frame_size
    while end - at >= 4 and may_serve(conn):
        frame_size = <int64_t>load_u32(at)
        if not frame_size_fits(serving, conn, frame_size):
            return
        if end - at - 4 < frame_size:
            break
        at += 4 + frame_size
        serve(serving, conn, at - frame_size, frame_size)
    if at < end and not conn.closing and not conn.refused and not partial_keep(conn, at, end - at):
        conn_close(conn, "memory is out")


cdef void serve_partial(Serving serving, conn_t *conn) noexcept nogil:
    cdef uint8_t *at
    cdef int64_t frame_size
    while conn.partial_size - conn.partial_at >= 4 and may_serve(conn):
        at = conn.partial + conn.partial_at
        frame_size = <int64_t>load_u32(at)
        if not frame_size_fits(serving, conn, frame_size):
            return
        if conn.partial_size - conn.partial_at - 4 < frame_size:
            break
        conn.partial_at += 4 + frame_size
        serve(serving, conn, at + 4, frame_size)
    if conn.partial_at == conn.partial_size:
        partial_free(conn)


cdef void decrypt(Serving serving, conn_t *conn, int64_t size) noexcept with gil:
    cdef const uint8_t[::1] plain
    try:
        plain = opened(conn.transport, serving.p.scratch, size)
        if plain.shape[0] and not partial_append(conn, &plain[0], plain.shape[0]):
            conn_close(conn, "memory is out")
    except Exception:
        conn_close(conn, "its transport cannot decrypt")
