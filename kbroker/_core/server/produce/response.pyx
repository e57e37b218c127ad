"""Writes a Produce response; see response.pxd. The layout of each version is in produce.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport strlen

from kbroker._core.base.sync cimport atomic_load_i32, atomic_load_i64
from kbroker._core.log.partition cimport ack_waiter_t, partition_t
from kbroker._core.server.connection cimport (
    SLOT_CLOSE, SLOT_READY, SLOT_SILENT, slot_done, slot_mail_came, slot_t,
)
from kbroker._core.server.counters cimport count_error
from kbroker._core.server.leaders cimport LEADER_SIZE, find_leader, write_endpoints
from kbroker._core.server.produce.work cimport entry_t, must_wait, produce_t
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.apis cimport API_PRODUCE, PRODUCE_LEADERS_FROM
from kbroker._core.wire.cursor cimport (
    store_u16, store_u64, write_array_count, write_i16, write_i32, write_i64, write_raw, write_string, write_uvarint,
    writer_free, writer_init, writer_t,
)
from kbroker._core.wire.error_codes cimport (
    CORRUPT_MESSAGE, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_LEADER_OR_FOLLOWER, INVALID_TIMESTAMP,
    INVALID_TXN_STATE, KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT,
)

import logging

logger = logging.getLogger("kbroker.server")

cdef enum:
    # Bytes from the error code of an appended partition to its tagged fields, from version 9 on: error code, base
    # offset, append time, log start offset, no wrong records, no message.
    TAGS_AFTER_ERROR = 28

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
        write_uvarint(out, e.leader_id >= 0)
        if e.leader_id >= 0:
            write_leader(out, e.leader_id, e.leader_epoch)
    return error_at


cdef inline void write_leader(writer_t *out, int32_t leader_id, int32_t leader_epoch) noexcept nogil:
    """Write tagged field 0 of a partition, its current leader, without the count of fields."""
    write_uvarint(out, 0)
    write_uvarint(out, LEADER_SIZE)
    write_i32(out, leader_id)
    write_i32(out, leader_epoch)
    write_uvarint(out, 0)


cdef inline bint names_leader(const produce_t *w, const entry_t *e) noexcept nogil:
    """Return whether the response names the current leader of the partition (KIP-951)."""
    return e.error == NOT_LEADER_OR_FOLLOWER and w.version >= PRODUCE_LEADERS_FROM


cdef void find_leaders(Serving serving, slot_t *slot, produce_t *w, uint8_t *frame, PyObject *peer,
                       writer_t *endpoints) noexcept with gil:
    """Find the leaders that the response names, and write their endpoints: node_endpoints."""
    cdef entry_t *e
    cdef dict nodes = {}
    cdef int32_t i
    try:
        for i in range(w.count):
            e = &w.entries[i]
            if names_leader(w, e):
                topic = (<char *>frame + e.topic_at)[:e.topic_size].decode()
                leader = find_leader(serving, peer, slot.conn, topic, None, e.partition_id, nodes)
                if leader is not None:
                    e.leader_id = leader.node_id
                    e.leader_epoch = leader.leader_epoch
        if nodes:
            write_endpoints(endpoints, nodes)
    except Exception:
        logger.exception("nobody can tell who leads a partition")


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


cdef int32_t produce_response(Serving serving, slot_t *slot, produce_t *w, uint8_t *frame, int32_t waiting,
                              PyObject *peer) noexcept nogil:
    cdef writer_t *out = &slot.out
    cdef writer_t endpoints
    cdef bint has_leaders = False
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
            has_leaders |= names_leader(w, e)
    if w.acks == 0:
        return SLOT_CLOSE if failed else SLOT_SILENT
    if waiting and not make_waiters(slot, waiting):
        return SLOT_CLOSE
    writer_init(&endpoints)
    if has_leaders:
        find_leaders(serving, slot, w, frame, peer, &endpoints)
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
    slot.names_endpoints = endpoints.size != 0
    if w.flexible:
        write_endpoints_tag(out, &endpoints)
    writer_free(&endpoints)
    return SLOT_READY


cdef void write_endpoints_tag(writer_t *out, const writer_t *endpoints) noexcept nogil:
    """Write the tagged fields of the response: 0, the endpoints of the leaders that it names."""
    if endpoints.size == 0 or endpoints.failed:
        write_uvarint(out, 0)
        return
    write_uvarint(out, 1)
    write_uvarint(out, 0)
    write_uvarint(out, <uint32_t>endpoints.size)
    write_raw(out, endpoints.data, endpoints.size)


cdef void slot_is_answered(Serving serving, slot_t *slot, bint from_handler) noexcept nogil:
    if not slot_mail_came(serving.p, slot, from_handler):
        return
    if slot.waiter_count:
        produce_patch(serving, slot)
    slot_done(serving.p, slot)


cdef void produce_patch(Serving serving, slot_t *slot) noexcept nogil:
    cdef int16_t error
    cdef int32_t i
    cdef bint has_leaders = False
    for i in range(slot.waiter_count):
        error = slot.waiter_errors[i]
        if error == 0:
            continue
        if slot.conn != NULL:
            count_error(&serving.p.counters[API_PRODUCE], error)
        if slot.outcome != SLOT_READY or slot.out.failed:
            continue
        store_u16(slot.out.data + slot.waiter_positions[i], <uint16_t>error)
        if error != REQUEST_TIMED_OUT and error != NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            # The base offset, behind the error code: nobody may rely on it.
            store_u64(slot.out.data + slot.waiter_positions[i] + 2, <uint64_t>-1)
        has_leaders |= error == NOT_LEADER_OR_FOLLOWER and slot.api_version >= PRODUCE_LEADERS_FROM
    if has_leaders and slot.conn != NULL:
        name_leaders(serving, slot)


cdef void name_leaders(Serving serving, slot_t *slot) noexcept with gil:
    """Name, in a written response, the leaders of the partitions that this broker has stopped leading meanwhile.

    If the response names endpoints already, no more are added: the client finds the others in the metadata.
    """
    cdef writer_t out
    cdef writer_t endpoints
    cdef partition_t *p
    cdef dict nodes = {}
    cdef size_t copied = 0
    cdef size_t at
    cdef int32_t i
    writer_init(&out)
    writer_init(&endpoints)
    try:
        for i in range(slot.waiter_count):
            if slot.waiter_errors[i] != NOT_LEADER_OR_FOLLOWER:
                continue
            p = slot.waiters[i].partition
            leader = find_leader(serving, NULL, slot.conn, p.topic[:p.topic_size].decode(), None, p.partition_id, nodes)
            if leader is None:
                continue
            at = slot.waiter_positions[i] + TAGS_AFTER_ERROR
            write_raw(&out, slot.out.data + copied, at - copied)
            write_uvarint(&out, 1)
            write_leader(&out, leader.node_id, leader.leader_epoch)
            copied = at + 1
        if nodes and not slot.names_endpoints:
            write_endpoints(&endpoints, nodes)
            write_raw(&out, slot.out.data + copied, slot.out.size - 1 - copied)
            write_endpoints_tag(&out, &endpoints)
        else:
            write_raw(&out, slot.out.data + copied, slot.out.size - copied)
        if not out.failed:
            writer_free(&slot.out)
            slot.out = out
            writer_init(&out)
    except Exception:
        logger.exception("nobody can tell who leads a partition")
    writer_free(&endpoints)
    writer_free(&out)
