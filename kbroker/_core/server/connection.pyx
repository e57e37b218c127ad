"""What is done with a connection besides receiving and sending; see connection.pxd."""

from libc.stdint cimport INT32_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.links cimport queue_push, queue_remove
from kbroker._core.base.mailbox cimport MAIL_ACKS, MAIL_SLOT
from kbroker._core.base.receive_buffers cimport LARGE_BUFFER, buffer_free, buffer_grow, buffer_take
from kbroker._core.base.sync cimport atomic_add_i32
from kbroker._core.base.timer_wheel cimport wheel_add, wheel_remove
from kbroker._core.log.acks cimport acks_forget, acks_give_up
from kbroker._core.log.partition cimport segment_unref
from kbroker._core.server.counters cimport count_answer, counters_t
from kbroker._core.wire.apis cimport API_CONTROLLED_SHUTDOWN, API_KEYS, API_VERSIONS
from kbroker._core.wire.cursor cimport (
    load_u32, read_i16, read_i32, read_string, reader_init, skip_tags, store_u32, write_i8, write_i32, writer_free,
)
from kbroker._core.wire.error_codes cimport REQUEST_TIMED_OUT

cdef enum:
    STOLEN_FROM = 32 << 10       # bytes; an incomplete frame of this size takes the scratch buffer along, uncopied
    SMALLEST_PARTIAL = 512       # bytes of the smallest buffer for an incomplete frame
    MAX_UNSENT = 1 << 20         # response bytes in memory beyond which a connection is overloaded
    MAX_SLOTS = 1000             # requests of a connection under way, from which on it is overloaded
    KEPT_SLOTS = 2048            # unused slots that a processor keeps
    KEPT_RESPONSE = 1024         # bytes; an unused slot keeps a response buffer up to this size
    KEPT_SPLICES = 64            # an unused slot keeps room for so many splices

# --- slots ------------------------------------------------------------------------------------------

cdef slot_t *slot_new(conn_t *conn, request_t *request) noexcept nogil:
    cdef processor_t *p = conn.processor
    cdef slot_t *slot = p.free_slots
    if slot != NULL:
        p.free_slots = slot.next
        p.free_slot_count -= 1
    else:
        slot = <slot_t *>calloc(1, sizeof(slot_t))
        if slot == NULL:
            return NULL
        slot.mail.kind = MAIL_SLOT
        slot.mail.box = p.mailbox
        slot.acks_mail.kind = MAIL_ACKS
        slot.acks_mail.box = p.mailbox
        slot.timer.kind = TIMER_ACKS
        slot.acks_timeout_ms = -1
    slot.conn = conn
    slot.state = SLOT_RUNNING
    slot.outcome = SLOT_CLOSE
    slot.outstanding = 0
    slot.mutes = False
    slot.api_key = request.api_key
    slot.api_version = request.api_version
    slot.correlation_id = request.correlation_id
    slot.received_ns = p.now_ns
    slot.size = 0
    queue_push(conn.slots, conn.slots_tail, slot, slot.next)
    conn.slot_count += 1
    return slot


cdef void slot_free(processor_t *p, slot_t *slot) noexcept nogil:
    cdef int32_t i
    for i in range(slot.splice_count):
        segment_unref(slot.splices[i].segment)
    slot.splice_count = 0
    if slot.splice_capacity > KEPT_SPLICES:
        free(slot.splices)
        slot.splices = NULL
        slot.splice_capacity = 0
    wheel_remove(p.wheel, &slot.timer)
    for i in range(slot.waiter_count):
        acks_forget(&slot.waiters[i])
    free(slot.waiters)
    slot.waiters = NULL
    slot.waiter_count = 0
    slot.acks_timeout_ms = -1
    slot.conn = NULL
    if p.free_slot_count >= KEPT_SLOTS:
        writer_free(&slot.out)
        free(slot.splices)
        free(slot)
        return
    if slot.out.capacity > KEPT_RESPONSE or slot.out.failed:
        writer_free(&slot.out)
    slot.out.size = 0
    slot.next = p.free_slots
    p.free_slots = slot
    p.free_slot_count += 1


cdef void slot_begin_response(slot_t *slot, request_t *request) noexcept nogil:
    begin_response(slot, request.flexible)


cdef void begin_response(slot_t *slot, bint flexible) noexcept nogil:
    slot.out.size = 0
    write_i32(&slot.out, 0)
    write_i32(&slot.out, slot.correlation_id)
    # The response header of ApiVersions never has tags: its client does not know the versions yet (KIP-511).
    if flexible and slot.api_key != API_VERSIONS:
        write_i8(&slot.out, 0)


cdef int slot_splice(slot_t *slot, segment_t *segment, int64_t position, int64_t size) noexcept nogil:
    cdef splice_t *splice = <splice_t *>with_room(
        slot.splices, slot.splice_count, &slot.splice_capacity, sizeof(splice_t))
    if splice == NULL:
        segment_unref(segment)
        slot.out.failed = True
        return -1
    slot.splices = splice
    splice = &slot.splices[slot.splice_count]
    slot.splice_count += 1
    splice.at = slot.out.size
    splice.segment = segment
    splice.position = position
    splice.size = size
    return 0


cdef void slot_finish(slot_t *slot) noexcept nogil:
    slot_settle(slot, SLOT_READY)


cdef void slot_settle(slot_t *slot, int32_t state) noexcept nogil:
    cdef conn_t *conn = slot.conn
    cdef int32_t i
    if state == SLOT_READY:
        slot.size = <int64_t>slot.out.size
        for i in range(slot.splice_count):
            slot.size += slot.splices[i].size
        if slot.out.failed or slot.out.size < 4 or slot.size - 4 > INT32_MAX:
            state = SLOT_CLOSE
        else:
            store_u32(slot.out.data, <uint32_t>(slot.size - 4))
            conn.unsent += <int64_t>slot.out.size
    slot.state = state
    conn.last_active_ms = conn.processor.now_ns // 1_000_000     # the connection was not idle: its request was served
    if state == SLOT_CLOSE:
        conn.refused = True
    if slot.mutes:
        slot_unmute(slot)
    conn_dirty(conn)


cdef bint slot_mail_came(processor_t *p, slot_t *slot, bint from_handler) noexcept nogil:
    if atomic_add_i32(&slot.outstanding, -1) == 0:
        return True
    if from_handler:
        # A Produce is appended and waits for acks only: the next requests are served.
        if slot.acks_timeout_ms >= 0:
            wheel_add(p.wheel, &slot.timer, p.now_ns // 1000000 + slot.acks_timeout_ms)
        if slot.mutes and slot.conn != NULL:
            slot_unmute(slot)
    return False


cdef void acks_timer(slot_t *slot, int32_t timeout_ms) noexcept nogil:
    cdef processor_t *p = slot.conn.processor
    wheel_add(p.wheel, &slot.timer, p.now_ns // 1000000 + max(timeout_ms, 0))


cdef void acks_timed_out(slot_t *slot) noexcept nogil:
    cdef int32_t i
    for i in range(slot.waiter_count):
        acks_give_up(&slot.waiters[i], REQUEST_TIMED_OUT)


cdef void slot_done(processor_t *p, slot_t *slot) noexcept nogil:
    if slot.conn != NULL:
        slot_settle(slot, slot.outcome)
    else:
        slot_free(p, slot)
        p.orphans -= 1


cdef void slot_unmute(slot_t *slot) noexcept nogil:
    slot.mutes = False
    slot.conn.muted = False
    conn_ready(slot.conn)


cdef void slot_pop(conn_t *conn, int64_t now_ns) noexcept nogil:
    cdef processor_t *p = conn.processor
    cdef slot_t *slot = conn.slots
    cdef counters_t *counters = &p.counters[slot.api_key]
    cdef bint held_back = overloaded(conn)
    conn.slots = slot.next
    conn.slot_count -= 1
    if slot.state == SLOT_READY:
        conn.unsent -= <int64_t>slot.out.size
        conn.bytes_out += slot.size
        counters.bytes_out += slot.size
    count_answer(counters, now_ns - slot.received_ns)
    slot_free(p, slot)
    if held_back:
        conn_ready(conn)

# --- lists of connections -----------------------------------------------------------------------------

cdef void conn_ready(conn_t *conn) noexcept nogil:
    cdef processor_t *p = conn.processor
    if conn.in_ready or conn.closing or not (conn.readable or conn.partial != NULL):
        return
    conn.in_ready = True
    queue_push(p.ready, p.ready_tail, conn, conn.next_ready)


cdef void conn_dirty(conn_t *conn) noexcept nogil:
    cdef processor_t *p = conn.processor
    if conn.in_dirty or conn.closing:
        return
    conn.in_dirty = True
    queue_push(p.dirty, p.dirty_tail, conn, conn.next_dirty)


cdef conn_t *take_ready(processor_t *p) noexcept nogil:
    cdef conn_t *conn = p.ready
    p.ready = conn.next_ready
    conn.in_ready = False
    return conn


cdef conn_t *take_dirty(processor_t *p) noexcept nogil:
    cdef conn_t *conn = p.dirty
    p.dirty = conn.next_dirty
    conn.in_dirty = False
    return conn


cdef void conn_unlink(conn_t *conn) noexcept nogil:
    cdef processor_t *p = conn.processor
    if conn.in_ready:
        queue_remove(p.ready, p.ready_tail, conn, conn.next_ready)
    if conn.in_dirty:
        queue_remove(p.dirty, p.dirty_tail, conn, conn.next_dirty)


cdef void conn_close(conn_t *conn, const char *reason) noexcept nogil:
    if conn.closing:
        return
    conn.closing = True
    if reason != NULL:
        conn.reason = reason
    conn.next_doomed = conn.processor.doomed
    conn.processor.doomed = conn


cdef void conn_refuse(conn_t *conn, const char *reason) noexcept nogil:
    if conn.closing or conn.refused:
        return
    conn.refused = True
    conn.reason = reason
    if conn.slots == NULL and conn.wire.sealed == NULL:
        conn_close(conn, reason)


cdef bint overloaded(conn_t *conn) noexcept nogil:
    return conn.unsent > MAX_UNSENT or conn.slot_count >= MAX_SLOTS


# --- frames -------------------------------------------------------------------------------------------

cdef bint read_header(processor_t *p, request_t *request, const uint8_t *frame, int64_t size) noexcept nogil:
    cdef reader_t *r = &request.body
    cdef int16_t key
    reader_init(r, frame, size)
    key = read_i16(r)
    request.api_key = key
    request.api_version = read_i16(r)
    request.correlation_id = read_i32(r)
    request.frame = frame
    request.frame_size = size
    request.flexible = 0 <= key < API_KEYS and request.api_version >= p.apis[key].flexible_from
    if key == API_CONTROLLED_SHUTDOWN and request.api_version == 0:
        # Its header is of version 0, which has no client id.
        request.client_id = NULL
        request.client_id_size = -1
    else:
        request.client_id = read_string(r, False, &request.client_id_size)
    if request.flexible:
        skip_tags(r)
    return not r.failed


cdef bint partial_room(conn_t *conn) noexcept nogil:
    cdef int64_t have = conn.partial_size - conn.partial_at
    cdef int64_t total = SMALLEST_PARTIAL
    cdef int64_t wanted
    cdef uint8_t *grown
    if have >= 4:
        total = 4 + <int64_t>load_u32(conn.partial + conn.partial_at)
    if conn.partial_at > 0 and conn.partial_capacity - conn.partial_at < total:
        memmove(conn.partial, conn.partial + conn.partial_at, have)
        conn.partial_at = 0
        conn.partial_size = have
    if conn.partial_size < conn.partial_capacity:
        return True
    wanted = max(min(total, 2 * have), SMALLEST_PARTIAL)
    grown = buffer_grow(conn.partial, conn.partial_size, wanted, &conn.partial_capacity)
    if grown == NULL:
        return False
    conn.partial = grown
    return True


cdef void partial_free(conn_t *conn) noexcept nogil:
    if conn.partial != NULL:
        buffer_free(conn.partial, conn.partial_capacity)
        conn.partial = NULL
    conn.partial_at = 0
    conn.partial_size = 0
    conn.partial_capacity = 0


cdef bint partial_keep(conn_t *conn, uint8_t *data, int64_t size) noexcept nogil:
    cdef processor_t *p = conn.processor
    cdef int64_t capacity = 0
    cdef uint8_t *scratch
    cdef uint8_t *own
    if size >= STOLEN_FROM:
        scratch = buffer_take(LARGE_BUFFER, &capacity)
        if scratch == NULL:
            return False
        conn.partial = p.scratch
        conn.partial_at = data - p.scratch
        conn.partial_size = conn.partial_at + size
        conn.partial_capacity = LARGE_BUFFER
        p.scratch = scratch
        return True
    own = buffer_take(max(2 * size, SMALLEST_PARTIAL), &capacity)
    if own == NULL:
        return False
    memcpy(own, data, size)
    conn.partial = own
    conn.partial_at = 0
    conn.partial_size = size
    conn.partial_capacity = capacity
    return True


cdef bint partial_append(conn_t *conn, const uint8_t *data, int64_t size) noexcept nogil:
    cdef uint8_t *grown
    if conn.partial == NULL:
        conn.partial = buffer_take(max(size, SMALLEST_PARTIAL), &conn.partial_capacity)
        if conn.partial == NULL:
            return False
    elif conn.partial_capacity - conn.partial_size < size:
        grown = buffer_grow(conn.partial, conn.partial_size, max(2 * conn.partial_capacity, conn.partial_size + size),
                            &conn.partial_capacity)
        if grown == NULL:
            return False
        conn.partial = grown
    memcpy(conn.partial + conn.partial_size, data, size)
    conn.partial_size += size
    return True
