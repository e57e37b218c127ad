"""Sending, receiving and answering on a client's sockets; see socket.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, ECONNRESET, EINTR, EPIPE, errno
from libc.stdint cimport uint32_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy

from kbroker._core.base.links cimport queue_push, queue_remove
from kbroker._core.base.receive_buffers cimport buffer_free, buffer_take
from kbroker._core.base.sealing cimport opened, wire_drop, wire_has_rest, wire_seal, wire_send
from kbroker._core.base.sockets cimport VECTORS, iovec, receive_bytes, send_vectors
from kbroker._core.base.timer_wheel cimport wheel_add
from kbroker._core.wire.cursor cimport load_u32, reader_init, reader_left, reader_t, skip_tags, store_u32

cdef enum:
    FIRST_READ = 16 << 10        # bytes to receive where a response begins: these are copied if the response is large
    TURN_BYTES = 4 << 20         # bytes to receive from one socket before the others have their turn
    ENCRYPTED_AT_ONCE = 64 << 10
    TLS_ALERT = 0x1503           # upper half of the size field if a TLS listener answers a plain request with an alert


cdef void socket_mark_dirty(client_socket_t *socket) noexcept nogil:
    if not socket.in_dirty:
        socket.in_dirty = True
        socket.next_dirty = socket.pump.dirty
        socket.pump.dirty = socket


cdef void socket_mark_ready(client_socket_t *socket) noexcept nogil:
    cdef pump_t *p = socket.pump
    if socket.in_ready:
        return
    socket.in_ready = True
    queue_push(p.ready, p.ready_tail, socket, socket.next_ready)


cdef void socket_unmark(client_socket_t *socket) noexcept nogil:
    """Take the socket out of the pump's lists of dirty and of ready sockets."""
    cdef pump_t *p = socket.pump
    cdef client_socket_t **link = &p.dirty
    while link[0] != NULL and link[0] != socket:
        link = &link[0].next_dirty
    if link[0] != NULL:
        link[0] = socket.next_dirty
    queue_remove(p.ready, p.ready_tail, socket, socket.next_ready)


cdef void socket_close(client_socket_t *socket, const char *reason) noexcept nogil:
    if socket.closing:
        return
    socket.closing = True
    socket.open = False
    snprintf(socket.reason, REASON_SIZE, "%s", reason)
    socket.next_doomed = socket.pump.doomed
    socket.pump.doomed = socket


# --- sending ----------------------------------------------------------------------------------------------

cdef void socket_send(client_socket_t *socket, exchange_t *exchange) noexcept nogil:
    if socket.held and not socket.closing:
        queue_push(socket.held_back, socket.held_back_tail, exchange, exchange.next)
        socket.in_flight += 1
        watch_deadline(socket, exchange)
        return
    socket_send_ahead(socket, exchange)


cdef void socket_send_ahead(client_socket_t *socket, exchange_t *exchange) noexcept nogil:
    if socket.closing:
        exchange.answered(exchange.owner, exchange, socket, NULL, 0, socket.reason)
        return
    socket.in_flight += 1
    watch_deadline(socket, exchange)
    enqueue(socket, exchange)


cdef void enqueue(client_socket_t *socket, exchange_t *exchange) noexcept nogil:
    cdef int32_t i
    socket.last_correlation_id = (socket.last_correlation_id + 1) & 0x7fffffff
    exchange.correlation_id = socket.last_correlation_id
    store_u32(<uint8_t *>exchange.pieces[0].iov_base + 8, <uint32_t>exchange.correlation_id)
    for i in range(exchange.piece_count):
        socket.unsent += exchange.pieces[i].iov_len
    queue_push(socket.queue, socket.queue_tail, exchange, exchange.next)
    socket.pump.requests += 1
    socket_mark_dirty(socket)


cdef void socket_release(client_socket_t *socket) noexcept nogil:
    cdef exchange_t *exchange
    socket.held = False
    while socket.held_back != NULL:
        exchange = socket.held_back
        socket.held_back = exchange.next
        enqueue(socket, exchange)


cdef void watch_deadline(client_socket_t *socket, exchange_t *exchange) noexcept nogil:
    if exchange.deadline_ms >= 0 and (socket.timer.previous == NULL or exchange.deadline_ms < socket.timer.due_ms):
        wheel_add(socket.pump.wheel, &socket.timer, exchange.deadline_ms)


cdef void passed(client_socket_t *socket, int64_t sent) noexcept nogil:
    """Note that `sent` more bytes of the queue have been sent."""
    cdef exchange_t *exchange = socket.queue
    cdef size_t left = <size_t>sent
    cdef size_t rest
    socket.unsent -= sent
    while exchange != NULL:
        while socket.piece < exchange.piece_count:
            rest = exchange.pieces[socket.piece].iov_len - socket.piece_at
            if rest > left:
                socket.piece_at += left
                return
            left -= rest
            socket.piece += 1
            socket.piece_at = 0
        socket.queue = exchange.next
        socket.piece = 0
        if exchange.silent:
            socket.in_flight -= 1
            exchange.answered(exchange.owner, exchange, socket, NULL, 0, NULL)
        else:
            queue_push(socket.waiting, socket.waiting_tail, exchange, exchange.next)
        if left == 0:
            return
        exchange = socket.queue


cdef size_t gather(client_socket_t *socket, iovec *vectors) noexcept nogil:
    """Fill `vectors` with the next unsent pieces, VECTORS at most. Return their number."""
    cdef exchange_t *exchange = socket.queue
    cdef int32_t piece = socket.piece
    cdef size_t at = socket.piece_at
    cdef size_t count = 0
    while exchange != NULL:
        while piece < exchange.piece_count:
            if count == VECTORS:
                return count
            vectors[count].iov_base = <uint8_t *>exchange.pieces[piece].iov_base + at
            vectors[count].iov_len = exchange.pieces[piece].iov_len - at
            count += 1
            piece += 1
            at = 0
        exchange = exchange.next
        piece = 0
    return count


cdef bint stuck(client_socket_t *socket) noexcept nogil:
    """Look at errno after a failed send.

    Return whether to stop sending; close the socket if the connection is broken.
    """
    if errno == EAGAIN:
        socket.blocked = True
    elif errno == EINTR:
        return False
    elif errno == EPIPE or errno == ECONNRESET:
        socket_close(socket, "the broker closed the connection")
    else:
        socket_close(socket, "the connection broke")
    return True


cdef void socket_flush(client_socket_t *socket) noexcept nogil:
    cdef iovec vectors[VECTORS]
    cdef size_t count
    cdef ssize_t sent
    if socket.transport != NULL:
        flush_encrypted(socket)
        return
    while socket.queue != NULL and not socket.blocked and not socket.closing:
        count = gather(socket, vectors)
        sent = send_vectors(socket.fd, vectors, count)
        if sent >= 0:
            socket.bytes_out += sent
            passed(socket, sent)
        elif stuck(socket):
            return


cdef int64_t encrypt(client_socket_t *socket, iovec *vectors, size_t count) noexcept with gil:
    """Encrypt the first ENCRYPTED_AT_ONCE bytes at most into socket.wire.

    Return the number of plain bytes that were encrypted, or -1 if the transport cannot.
    """
    cdef bytes plain
    cdef int64_t size = 0
    cdef int64_t at = 0
    cdef size_t i
    for i in range(count):
        size += vectors[i].iov_len
    size = min(size, <int64_t>ENCRYPTED_AT_ONCE)
    try:
        plain = PyBytes_FromStringAndSize(NULL, size)
        for i in range(count):
            if at == size:
                break
            memcpy(PyBytes_AS_STRING(plain) + at, vectors[i].iov_base, min(size - at, <int64_t>vectors[i].iov_len))
            at += min(size - at, <int64_t>vectors[i].iov_len)
        wire_seal(&socket.wire, socket.transport, plain)
    except Exception:
        return -1
    return size


cdef void flush_encrypted(client_socket_t *socket) noexcept nogil:
    cdef iovec vectors[VECTORS]
    cdef int64_t size
    cdef ssize_t sent
    while not socket.blocked and not socket.closing:
        if socket.wire.sealed == NULL:
            if socket.queue == NULL:
                return
            size = encrypt(socket, vectors, gather(socket, vectors))
            if size < 0:
                socket_close(socket, "its transport cannot encrypt")
                return
            passed(socket, size)
        while wire_has_rest(&socket.wire):
            sent = wire_send(&socket.wire, socket.fd)
            if sent >= 0:
                socket.bytes_out += sent
            elif stuck(socket):
                return
        wire_drop(&socket.wire)


# --- receiving --------------------------------------------------------------------------------------------

cdef void socket_receive(client_socket_t *socket) noexcept nogil:
    cdef int64_t budget = TURN_BYTES
    cdef int64_t asked
    cdef uint8_t *into
    cdef ssize_t got
    while socket.readable and not socket.closing:
        if budget <= 0:
            socket_mark_ready(socket)
            return
        if socket.frame != NULL and socket.transport == NULL:
            into = socket.frame + socket.frame_used
            asked = socket.frame_size - socket.frame_used
        else:
            into = socket.pump.scratch
            asked = FIRST_READ if socket.transport == NULL else RECEIVE_SCRATCH
        got = receive_bytes(socket.fd, into, asked)
        if got > 0:
            budget -= got
            socket.bytes_in += got
            if got < asked and not socket.hung_up:
                socket.readable = False      # epoll reports when there is more
            if socket.transport != NULL:
                decrypt(socket, got)
            elif socket.frame != NULL:
                socket.frame_used += got
                if socket.frame_used == socket.frame_size:
                    answer_own(socket)
            else:
                socket_feed(socket, socket.pump.scratch, got)
        elif got == 0:
            socket_close(socket, "the broker closed the connection")
        elif errno == EAGAIN:
            socket.readable = False
        elif errno == ECONNRESET:
            socket_close(socket, "the broker reset the connection")
        elif errno != EINTR:
            socket_close(socket, "the connection broke")


cdef void decrypt(client_socket_t *socket, int64_t size) noexcept with gil:
    cdef const uint8_t[::1] plain
    try:
        plain = opened(socket.transport, socket.pump.scratch, size)
    except Exception as error:
        socket_close(socket, f"TLS: {error}".encode())
        return
    if plain.shape[0]:
        with nogil:
            socket_feed(socket, &plain[0], plain.shape[0])


cdef bint size_fits(client_socket_t *socket, int64_t size) noexcept nogil:
    if 4 <= size <= socket.pump.max_response_size:
        return True
    if not socket.closing and size >> 16 == TLS_ALERT:
        socket_close(socket, "it answers as a TLS listener does")
    elif not socket.closing:
        socket_close(socket, "")
        snprintf(socket.reason, REASON_SIZE,
                 "it announced a response of %lld bytes (receive.message.max.bytes=%lld); is it a Kafka listener of "
                 "this protocol?",
                 <long long>size, <long long>socket.pump.max_response_size)
    return False


cdef bint begin_own(client_socket_t *socket, int64_t size) noexcept nogil:
    """Begin a buffer of its own for a response of `size` bytes. Return False, and close the socket, if memory is out.

    A large buffer takes up memory only as far as bytes have arrived.
    """
    socket.frame = buffer_take(size, &socket.frame_capacity)
    if socket.frame == NULL:
        socket_close(socket, "memory is out")
        return False
    socket.frame_size = size
    socket.frame_used = 0
    return True


cdef void socket_feed(client_socket_t *socket, const uint8_t *data, int64_t size) noexcept nogil:
    cdef const uint8_t *end = data + size
    cdef int64_t frame_size
    cdef int64_t part
    while data < end and not socket.closing:
        if socket.frame != NULL:
            part = min(end - data, socket.frame_size - socket.frame_used)
            memcpy(socket.frame + socket.frame_used, data, part)
            socket.frame_used += part
            data += part
            if socket.frame_used == socket.frame_size:
                answer_own(socket)
            continue
        if socket.head_size or end - data < 4:
            part = min(end - data, <int64_t>(4 - socket.head_size))
            memcpy(socket.head + socket.head_size, data, part)
            socket.head_size += <int32_t>part
            data += part
            if socket.head_size < 4:
                return
            frame_size = <int32_t>load_u32(socket.head)
            socket.head_size = 0
        else:
            frame_size = <int32_t>load_u32(data)
            data += 4
        if not size_fits(socket, frame_size):
            return
        if end - data >= frame_size:
            answer(socket, data, frame_size)
            data += frame_size
        elif not begin_own(socket, frame_size):
            return


cdef void answer_own(client_socket_t *socket) noexcept nogil:
    answer(socket, socket.frame, socket.frame_size)
    if socket.frame != NULL:
        buffer_free(socket.frame, socket.frame_capacity)
        socket.frame = NULL


cdef void answer(client_socket_t *socket, const uint8_t *data, int64_t size) noexcept nogil:
    """Give a response, which begins with its correlation id, to the oldest request.

    Close the socket if the correlation id is not that request's.
    """
    cdef exchange_t *exchange = socket.waiting
    cdef reader_t r
    if exchange == NULL:
        socket_close(socket, "it sent a response that nobody asked for")
        return
    if <int32_t>load_u32(data) != exchange.correlation_id:
        socket_close(socket, "")
        snprintf(socket.reason, REASON_SIZE, "it answered with correlation id %d where %d was due",
                 <int>load_u32(data), <int>exchange.correlation_id)
        return
    reader_init(&r, data + 4, size - 4)
    if exchange.api_version >= socket.pump.flexible_from[exchange.api_key]:
        skip_tags(&r)
        if r.failed:
            socket_close(socket, "it sent a response whose header is malformed")
            return
    socket.waiting = exchange.next
    socket.in_flight -= 1
    socket.pump.responses += 1
    socket.answer = data
    socket.answer_size = size
    exchange.answered(exchange.owner, exchange, socket, r.at, <int64_t>reader_left(&r), NULL)


cdef uint8_t *frame_take(client_socket_t *socket, const uint8_t **body, int64_t *capacity) noexcept nogil:
    cdef uint8_t *taken
    if socket.answer == socket.frame:
        taken = socket.frame
        capacity[0] = socket.frame_capacity
        socket.frame = NULL
        return taken
    taken = buffer_take(socket.answer_size, capacity)
    if taken != NULL:
        memcpy(taken, socket.answer, socket.answer_size)
        body[0] = taken + (body[0] - socket.answer)
    return taken


# --- ends -------------------------------------------------------------------------------------------------

cdef int64_t first_deadline(exchange_t *exchange, int64_t first_ms) noexcept nogil:
    while exchange != NULL:
        if exchange.deadline_ms >= 0 and (first_ms < 0 or exchange.deadline_ms < first_ms):
            first_ms = exchange.deadline_ms
        exchange = exchange.next
    return first_ms


cdef void socket_overdue(client_socket_t *socket) noexcept nogil:
    cdef int64_t first_ms = first_deadline(socket.waiting, -1)
    first_ms = first_deadline(socket.queue, first_ms)
    first_ms = first_deadline(socket.held_back, first_ms)
    if first_ms < 0:
        return
    if first_ms <= socket.pump.now_ms:
        socket_close(socket, "no answer in time")
    else:
        wheel_add(socket.pump.wheel, &socket.timer, first_ms)


cdef void fail_list(client_socket_t *socket, exchange_t **head) noexcept nogil:
    cdef exchange_t *exchange
    while head[0] != NULL:
        exchange = head[0]
        head[0] = exchange.next
        socket.in_flight -= 1
        exchange.answered(exchange.owner, exchange, socket, NULL, 0, socket.reason)


cdef void socket_fail_all(client_socket_t *socket) noexcept nogil:
    fail_list(socket, &socket.waiting)
    fail_list(socket, &socket.queue)
    fail_list(socket, &socket.held_back)
    if socket.frame != NULL:
        buffer_free(socket.frame, socket.frame_capacity)
        socket.frame = NULL
