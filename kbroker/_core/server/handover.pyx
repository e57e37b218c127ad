"""Requests on their way to Python and back; see handover.pxd."""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._core.base.arrays cimport with_room
from kbroker._core.server.connection cimport (
    conn_close, conn_ready, conn_t, partial_free, request_t, slot_free, slot_mute, slot_new, slot_settle, slot_t, slot_unmute,
)
from kbroker._core.server.fetch.fetch cimport fetch_came
from kbroker._core.server.processor cimport Processor
from kbroker._core.server.produce.produce cimport produce_discard, produce_t
from kbroker._core.base.receive_buffers cimport LARGE_BUFFER, SMALL_BUFFERS_END, buffer_take
from kbroker._core.server.request cimport Frame, Request
from kbroker._core.base.sync cimport atomic_add_i32, atomic_store_i32


cdef enum:
    GIVEN_AT_ONCE = 16           # requests for each time that the GIL is taken

# A request on its way to Python: its frame, and what was found in it.
ctypedef struct handed_t:
    slot_t *slot
    void *work
    uint8_t *buffer
    int64_t at
    int64_t capacity
    int64_t size
    int64_t body_at
    int64_t client_id_at
    int32_t client_id_size       # -1: it has none
    bint flexible


cdef void hand_over(Processor processor, conn_t *conn, request_t *request) noexcept nogil:
    """Give the request to Python, in memory of its own: a large buffer changes its owner, anything else is copied."""
    cdef handed_t one
    cdef handed_t *room = &one
    cdef slot_t *slot
    cdef void *work = processor.handed
    cdef uint8_t *buffer = NULL
    cdef int64_t capacity = 0
    cdef int64_t at = 0
    processor.handed = NULL
    if processor.gathers:
        room = <handed_t *>with_room(
            processor.gathered, processor.gathered_count, &processor.gathered_capacity, sizeof(handed_t)
        )
        if room != NULL:
            processor.gathered = room
            room += processor.gathered_count
    slot = slot_new(conn, request) if room != NULL else NULL
    if slot != NULL:
        if conn.partial_capacity >= LARGE_BUFFER and conn.partial_at == conn.partial_size and \
                request.frame_size >= SMALL_BUFFERS_END:
            # The last frame of the connection's own buffer, which nobody needs any more.
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
            produce_discard(<produce_t *>work)
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
    if processor.gathers:
        processor.gathered_count += 1
    else:
        give(processor, room, 1)


cdef void give_gathered(Processor processor) noexcept nogil:
    cdef int32_t count = processor.gathered_count
    cdef int32_t done = 0
    processor.gathered_count = 0
    while done < count:
        give(processor, <handed_t *>processor.gathered + done, min(count - done, GIVEN_AT_ONCE))
        done += GIVEN_AT_ONCE
        processor.send_dirty()


cdef void hand_over_fetch(Processor processor, slot_t *slot) noexcept nogil:
    slot.outstanding = 1
    slot_mute(slot)
    give_fetch(processor, slot)


cdef void give_fetch(Processor processor, slot_t *slot) noexcept with gil:
    put(processor, slot.conn, new_request(processor, slot))


cdef Request new_request(Processor processor, slot_t *slot):
    cdef Request request = Request.__new__(Request)
    request.processor = processor
    request.slot = slot
    request.api_key = slot.api_key
    request.api_version = slot.api_version
    request.correlation_id = slot.correlation_id
    request.received_ns = slot.received_ns
    return request


cdef void put(Processor processor, conn_t *conn, Request request) noexcept:
    """Give it to Python; what the request channel has no room for is held."""
    try:
        request.connection = processor.connection_of(conn)
        if processor.on_request(request, processor) is False:
            processor.held.append(request)
            processor.p.paused = True
    except BaseException as error:
        request.fail(error)


cdef void slot_came(Processor processor, slot_t *slot, bint from_handler) noexcept nogil:
    """One of the slot's mails."""
    cdef conn_t *conn = slot.conn
    cdef int32_t outstanding = atomic_add_i32(&slot.outstanding, -1)
    if conn == NULL:
        if outstanding == 0:
            if slot.fetch != NULL:
                fetch_came(processor, slot)
            slot_free(processor.p, slot)
            processor.p.orphans -= 1
        return
    if outstanding:
        if from_handler and slot.mutes:
            slot_unmute(slot)         # appended; only its acks are missing, the next requests go on
        return
    if slot.fetch != NULL and not fetch_came(processor, slot):
        return
    slot_settle(slot, slot.outcome)


cdef void give(Processor processor, handed_t *handed, int32_t count) noexcept with gil:
    cdef int32_t i
    for i in range(count):
        call_on_request(processor, &handed[i])


cdef void call_on_request(Processor processor, handed_t *handed) noexcept:
    cdef Frame frame = Frame.__new__(Frame)
    cdef conn_t *conn = handed.slot.conn
    cdef Request request = new_request(processor, handed.slot)
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
            # Invalid UTF-8 is somebody's own name for himself; it is shown, never used as bytes.
            request.client_id = PyUnicode_DecodeUTF8(
                <char *>handed.buffer + handed.at + handed.client_id_at, handed.client_id_size, "replace"
            )
    except BaseException as error:
        request.fail(error)
        return
    put(processor, conn, request)


cdef void resume_held(Processor processor) noexcept with gil:
    cdef conn_t *conn = processor.p.conns
    atomic_store_i32(&processor.resumed, 0)
    while processor.held:
        request = processor.held[0]
        try:
            if processor.on_request(request, processor) is False:
                return
        except BaseException as error:
            (<Request>request).fail(error)
        del processor.held[0]
    processor.p.paused = False
    while conn != NULL:
        if conn.readable or conn.partial != NULL:
            conn_ready(conn)
        conn = conn.next
