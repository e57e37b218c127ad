"""Hands requests over to Python; see handover.pxd."""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.receive_buffers cimport LARGE_BUFFER, SMALL_BUFFERS_END, buffer_take
from kbroker._core.server.connection cimport (
    conn_close, conn_ready, conn_t, partial_free, request_t, slot_mute, slot_new, slot_t,
)
from kbroker._core.server.peer cimport connection_of
from kbroker._core.server.produce.produce cimport produce_discard
from kbroker._core.server.produce.work cimport produce_t
from kbroker._core.server.request cimport Frame, Request
from kbroker._core.server.sending cimport send_dirty
from kbroker._core.server.serving cimport Serving, handed_t

cdef enum:
    HANDED_AT_ONCE = 16          # requests handed over each time that the GIL is taken


cdef void hand_over(Serving serving, conn_t *conn, request_t *request) noexcept nogil:
    """Give the request to Python. A large buffer changes its owner; any other frame is copied."""
    cdef handed_t one
    cdef handed_t *room = &one
    cdef slot_t *slot
    cdef produce_t *work = serving.handed
    cdef uint8_t *buffer = NULL
    cdef int64_t capacity = 0
    cdef int64_t at = 0
    serving.handed = NULL
    if serving.gathers:
        room = <handed_t *>with_room(
            serving.gathered, serving.gathered_count, &serving.gathered_capacity, sizeof(handed_t)
        )
        if room != NULL:
            serving.gathered = room
            room += serving.gathered_count
    slot = slot_new(conn, request) if room != NULL else NULL
    if slot != NULL:
        if conn.partial_capacity >= LARGE_BUFFER and conn.partial_at == conn.partial_size and \
                request.frame_size >= SMALL_BUFFERS_END:
            # The frame is the last one in the connection's own buffer, which is not needed any more.
            buffer = conn.partial
            capacity = conn.partial_capacity
            at = request.frame - buffer
            conn.partial = NULL
            partial_free(conn)
        else:
            buffer = buffer_take(max(request.frame_size, 1), &capacity)
            if buffer != NULL:
                memcpy(buffer, request.frame, request.frame_size)
    if buffer == NULL:
        if work != NULL:
            produce_discard(work)
        conn_close(conn, "memory is out")
        return
    slot.outstanding = 1
    slot_mute(slot)
    room.slot = slot
    room.work = work
    room.buffer = buffer
    room.at = at
    room.capacity = capacity
    room.size = request.frame_size
    room.body_at = request.body.at - request.body.start
    room.client_id_at = <const uint8_t *>request.client_id - request.frame if request.client_id != NULL else 0
    room.client_id_size = request.client_id_size if request.client_id != NULL else -1
    room.flexible = request.flexible
    if serving.gathers:
        serving.gathered_count += 1
    else:
        hand_to_python(serving, room, 1)


cdef void hand_over_gathered(Serving serving) noexcept nogil:
    cdef int32_t count = serving.gathered_count
    cdef int32_t done = 0
    serving.gathered_count = 0
    while done < count:
        hand_to_python(serving, serving.gathered + done, min(count - done, HANDED_AT_ONCE))
        done += HANDED_AT_ONCE
        send_dirty(serving.p)


cdef void hand_over_fetch(Serving serving, slot_t *slot) noexcept nogil:
    slot.outstanding = 1
    slot_mute(slot)
    hand_fetch_to_python(serving, slot)


cdef void hand_fetch_to_python(Serving serving, slot_t *slot) noexcept with gil:
    hand_or_hold(serving, slot.conn, new_request(serving, slot))


cdef Request new_request(Serving serving, slot_t *slot):
    cdef Request request = Request.__new__(Request)
    request.serving = serving
    request.slot = slot
    request.api_key = slot.api_key
    request.api_version = slot.api_version
    request.correlation_id = slot.correlation_id
    request.received_ns = slot.received_ns
    return request


cdef void hand_or_hold(Serving serving, conn_t *conn, Request request) noexcept:
    """Give the request to Python, or hold it when the request channel has no room."""
    try:
        request.connection = connection_of(serving, conn)
        if serving.on_request(request, serving) is False:
            serving.held.append(request)
            serving.p.paused = True
    except BaseException as error:
        request.fail(error)


cdef void hand_to_python(Serving serving, handed_t *handed, int32_t count) noexcept with gil:
    cdef int32_t i
    for i in range(count):
        call_on_request(serving, &handed[i])


cdef void call_on_request(Serving serving, handed_t *handed) noexcept:
    cdef Frame frame = Frame.__new__(Frame)
    cdef conn_t *conn = handed.slot.conn
    cdef Request request = new_request(serving, handed.slot)
    frame.buffer = handed.buffer
    frame.capacity = handed.capacity
    frame.at = handed.at
    frame.size = handed.size
    request.frame = frame
    request.body_at = handed.body_at
    request.work = handed.work
    request.flexible = handed.flexible
    try:
        if handed.client_id_size >= 0:
            # A client id need not be valid UTF-8. It is only shown to people, never used as bytes.
            request.client_id = PyUnicode_DecodeUTF8(
                <char *>handed.buffer + handed.at + handed.client_id_at, handed.client_id_size, "replace"
            )
    except BaseException as error:
        request.fail(error)
        return
    hand_or_hold(serving, conn, request)


cdef void resume_held(Serving serving) noexcept with gil:
    cdef conn_t *conn = serving.p.conns
    while serving.held:
        request = serving.held[0]
        try:
            if serving.on_request(request, serving) is False:
                return
        except BaseException as error:
            (<Request>request).fail(error)
        del serving.held[0]
    serving.p.paused = False
    while conn != NULL:
        if conn.readable or conn.partial != NULL:
            conn_ready(conn)
        conn = conn.next
