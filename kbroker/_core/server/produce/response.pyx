"""Writes a Produce response; see response.pxd. The layout of each version is in produce.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc
from libc.string cimport strlen

from kbroker._core.base.sync cimport atomic_load_i32, atomic_load_i64
from kbroker._core.log.partition cimport ack_waiter_t
from kbroker._core.server.connection cimport SLOT_CLOSE, SLOT_READY, SLOT_SILENT, slot_t
from kbroker._core.server.counters cimport count_error
from kbroker._core.wire.apis cimport API_PRODUCE
from kbroker._core.server.produce.work cimport entry_t, must_wait, produce_t
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.cursor cimport (
    write_array_count, write_i16, write_i32, write_i64, write_string, write_uvarint, writer_t,
)
from kbroker._core.wire.error_codes cimport (
    CORRUPT_MESSAGE, NOT_ENOUGH_REPLICAS, INVALID_TIMESTAMP, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR,
)

cdef const char *refusal_text(int16_t error) noexcept nogil:
    return b"the timestamp is out of the topic's bounds" if error == INVALID_TIMESTAMP \
        else b"a compacted topic needs keys"


cdef const char *storage_text(entry_t *e) noexcept nogil:
    """Return a text that says why the disk refuses the batch; NULL when that is not known here."""
    if e.partition == NULL:
        return NULL
    if atomic_load_i32(&e.partition.dir.offline):
        return b"the log directory is offline after an error of its disk"
    if atomic_load_i64(&e.partition.dir.full_told_ns):
        return b"disk full: no space is left in the log directory"
    return NULL


cdef void write_errors(writer_t *out, produce_t *w, entry_t *e) noexcept nogil:
    """Write the list of wrong records and the error message, which responses have from version 8 on."""
    cdef const char *refusal = refusal_text(e.error)
    cdef const char *text = NULL
    cdef int32_t i
    write_array_count(out, e.bad_count, w.flexible)
    for i in range(e.bad_count):
        write_i32(out, e.bad_records[i])
        write_string(out, refusal, <int32_t>strlen(refusal), w.flexible)
        if w.flexible:
            write_uvarint(out, 0)
    if e.unverified and (e.error == INVALID_TXN_STATE or e.error == NOT_ENOUGH_REPLICAS):
        text = b"the transaction's coordinator does not know of this partition, or cannot tell"
    elif e.bad_count or e.error == INVALID_TIMESTAMP:
        text = refusal
    elif e.error == KAFKA_STORAGE_ERROR:
        text = storage_text(e)       # called once: another append may find space meanwhile
    write_string(out, text, <int32_t>strlen(text) if text != NULL else -1, w.flexible)


cdef int32_t write_partition(slot_t *slot, produce_t *w, entry_t *e) noexcept nogil:
    """Write one partition. Return where in slot.out its error code stands."""
    cdef writer_t *out = &slot.out
    cdef int32_t error_at
    cdef int64_t log_start_offset = -1
    write_i32(out, e.partition_id)
    error_at = <int32_t>out.size
    write_i16(out, e.error)
    if e.error == 0:
        log_start_offset = e.result.log_start_offset
    elif not e.before_append and e.error != CORRUPT_MESSAGE:
        log_start_offset = atomic_load_i64(&e.partition.log_start_offset)
    write_i64(out, e.result.base_offset if e.error == 0 else -1)
    if w.version >= 2:
        write_i64(out, e.result.log_append_time if e.error == 0 else -1)
    if w.version >= 5:
        write_i64(out, log_start_offset)
    if w.version >= 8:
        write_errors(out, w, e)
    if w.flexible:
        write_uvarint(out, 0)
    return error_at


cdef bint make_waiters(slot_t *slot, int32_t count) noexcept nogil:
    """Allocate `count` ack waiters with their errors and positions. False: memory is out."""
    cdef char *room = <char *>calloc(count, sizeof(ack_waiter_t) + sizeof(uint32_t) + sizeof(int16_t))
    if room == NULL:
        return False
    slot.waiters = <ack_waiter_t *>room
    slot.waiter_positions = <uint32_t *>(room + count * sizeof(ack_waiter_t))
    slot.waiter_errors = <int16_t *>(room + count * (sizeof(ack_waiter_t) + sizeof(uint32_t)))
    slot.waiter_count = 0
    return True


cdef int32_t produce_response(Serving serving, slot_t *slot, produce_t *w, uint8_t *frame,
                              int32_t waiting) noexcept nogil:
    cdef writer_t *out = &slot.out
    cdef ack_waiter_t *waiter
    cdef int32_t topic_count = 0
    cdef int32_t error_at
    cdef int32_t i
    cdef entry_t *e
    cdef bint failed = False
    for i in range(w.count):
        e = &w.entries[i]
        topic_count += e.topic_partitions > 0
        if e.error:
            count_error(&serving.p.counters[API_PRODUCE], e.error)
            failed = True
    if w.acks == 0:
        return SLOT_CLOSE if failed else SLOT_SILENT
    if waiting and not make_waiters(slot, waiting):
        return SLOT_CLOSE
    write_array_count(out, topic_count, w.flexible)
    for i in range(w.count):
        e = &w.entries[i]
        if e.topic_partitions:
            if w.flexible and i:
                write_uvarint(out, 0)        # tagged fields of the topic before
            write_string(out, frame + e.topic_at, e.topic_size, w.flexible)
            write_array_count(out, e.topic_partitions, w.flexible)
        error_at = write_partition(slot, w, e)
        if must_wait(e):
            waiter = &slot.waiters[slot.waiter_count]
            waiter.partition = e.partition
            waiter.offset = e.result.last_offset
            waiter.led_since = e.result.led_since
            waiter.for_flush = e.result.must_flush
            waiter.for_replicas = e.result.must_replicate
            waiter.pending = &slot.pending
            waiter.error = &slot.waiter_errors[slot.waiter_count]
            waiter.mail = &slot.acks_mail
            slot.waiter_positions[slot.waiter_count] = error_at
            slot.waiter_count += 1
    if w.flexible and w.count:
        write_uvarint(out, 0)
    if w.version >= 1:
        write_i32(out, 0)
    if w.flexible:
        write_uvarint(out, 0)
    return SLOT_READY
