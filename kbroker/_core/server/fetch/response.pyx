"""Writes a Fetch response, versions 0 to 17. What each version added is in fetch.pyx."""

import logging

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t
from libc.string cimport memcmp

from kbroker._core.base.sync cimport atomic_add_i64
from kbroker._core.log.partition cimport TO_LAST_STABLE
from kbroker._core.server.connection cimport conn_t, slot_splice, slot_t
from kbroker._core.server.counters cimport count_error
from kbroker._core.server.fetch.fetch cimport CONTEXT_REFUSED, ELSEWHERE, fetch_entry_t, fetch_t
from kbroker._core.server.fetch.messages cimport write_messages
from kbroker._core.server.leaders cimport LEADER_SIZE, find_leader, write_endpoints
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.apis cimport FETCH_BATCHES_FROM, FETCH_LEADERS_FROM
from kbroker._core.wire.cursor cimport (
    store_u32, write_array_count, write_i16, write_i32, write_i64, write_raw, write_string, write_uvarint, writer_free,
    writer_init, writer_t,
)
from kbroker._core.wire.error_codes cimport (
    NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNSUPPORTED_COMPRESSION_TYPE,
)

logger = logging.getLogger("kbroker.server")


cdef inline bint follows_of_topic(fetch_t *f, fetch_entry_t *a, fetch_entry_t *b) noexcept nogil:
    if f.version >= 13:
        return memcmp(a.topic_id, b.topic_id, 16) == 0
    return a.topic == b.topic or (a.topic_size == b.topic_size and memcmp(a.topic, b.topic, a.topic_size) == 0)

cdef inline bint names_leader(fetch_t *f, fetch_entry_t *e) noexcept nogil:
    """Return whether the response names the current leader of the partition (KIP-951)."""
    return f.version >= FETCH_LEADERS_FROM and (e.error == FENCED_LEADER_EPOCH or e.error == NOT_LEADER_OR_FOLLOWER)

cdef void find_leaders(Serving serving, fetch_t *f, conn_t *conn, int32_t first, writer_t *endpoints) noexcept with gil:
    """Find the leaders that the response names, and write their endpoints: node_endpoints."""
    cdef fetch_entry_t *e
    cdef dict nodes = {}
    try:
        while first >= 0:
            e = &f.entries[first]
            first = e.next
            if names_leader(f, e):
                leader = find_leader(serving, f.peer, conn, None, e.topic_id[:16], e.partition_id, nodes)
                if leader is not None:
                    e.leader_id = leader.node_id
                    e.leader_epoch = leader.leader_epoch
        if nodes:
            write_endpoints(endpoints, nodes)
    except Exception:
        logger.exception("nobody can tell who leads a partition")

cdef void write_aborted(writer_t *w, const fetch_entry_t *e, bint flexible) noexcept nogil:
    cdef int32_t i
    write_array_count(w, e.read.aborted_count, flexible)
    for i in range(e.read.aborted_count):
        write_i64(w, e.read.aborted[i].producer_id)
        write_i64(w, e.read.aborted[i].first_offset)
        if flexible:
            write_uvarint(w, 0)

cdef void write_partition(Serving serving, fetch_t *f, fetch_entry_t *e, slot_t *slot) noexcept nogil:
    cdef writer_t *w = &slot.out
    cdef bint flexible = f.version >= 12
    cdef int64_t size = e.read.size if e.read.segment != NULL else 0
    cdef int16_t error = e.error
    cdef size_t start = w.size
    cdef size_t at
    cdef bint is_null
    if error == KAFKA_STORAGE_ERROR and f.version <= 5:
        error = NOT_LEADER_OR_FOLLOWER
    if error:
        count_error(&serving.p.counters[slot.api_key], error)
    write_i32(w, e.partition_id)
    write_i16(w, error)
    write_i64(w, e.read.high_watermark)
    if f.version < FETCH_BATCHES_FROM:
        at = w.size
        write_i32(w, 0)
        if e.read.segment == NULL or error:
            return
        e.error = write_messages(serving, f, e, w)
        if e.error:
            e.read.high_watermark = -1
            w.size = start
            write_partition(serving, f, e, slot)
        elif not w.failed:
            store_u32(w.data + at, <uint32_t>(w.size - at - 4))
            atomic_add_i64(&e.partition.bytes_out, <int64_t>(w.size - at - 4))
        return
    write_i64(w, e.read.last_stable_offset)
    if f.version >= 5:
        write_i64(w, e.read.log_start_offset)
    if f.until == TO_LAST_STABLE and not error:
        write_aborted(w, e, flexible)
    else:
        is_null = (not e.unknown or e.unknown == ELSEWHERE) and error != UNSUPPORTED_COMPRESSION_TYPE
        write_array_count(w, -1 if is_null else 0, flexible)
    if f.version >= 11:
        write_i32(w, e.preferred)
    if f.context == CONTEXT_REFUSED or error == UNSUPPORTED_COMPRESSION_TYPE:
        size = -1                # null
    if flexible:
        write_uvarint(w, <uint32_t>(size + 1))
    else:
        write_i32(w, <int32_t>size)
    if size > 0:
        atomic_add_i64(&e.partition.bytes_out, size)
        if slot_splice(slot, e.read.segment, e.read.position, size) < 0:
            w.failed = True
        e.read.segment = NULL
    if flexible:
        write_tags(w, e)

cdef inline void write_tags(writer_t *w, const fetch_entry_t *e) noexcept nogil:
    """Write the tagged fields of a partition: 0 diverging epoch (KIP-595), 1 current leader (KIP-951)."""
    write_uvarint(w, (e.diverging_epoch >= 0) + (e.leader_id >= 0))
    if e.diverging_epoch >= 0:
        write_uvarint(w, 0)
        write_uvarint(w, 13)
        write_i32(w, e.diverging_epoch)
        write_i64(w, e.diverging_end)
        write_uvarint(w, 0)
    if e.leader_id >= 0:
        write_uvarint(w, 1)
        write_uvarint(w, LEADER_SIZE)
        write_i32(w, e.leader_id)
        write_i32(w, e.leader_epoch)
        write_uvarint(w, 0)

cdef void write_response(Serving serving, fetch_t *f, slot_t *slot, int32_t first, int16_t error,
                         int32_t session_id) noexcept nogil:
    cdef writer_t *w = &slot.out
    cdef writer_t endpoints
    cdef bint has_leaders = False
    cdef bint flexible = f.version >= 12
    cdef int32_t topic_count = 0
    cdef int32_t partition_count
    cdef int32_t i = first
    cdef int32_t k
    cdef fetch_entry_t *e
    if f.version >= 1:
        write_i32(w, 0)          # throttle time
    if error:
        count_error(&serving.p.counters[slot.api_key], error)
    if f.version >= 7:
        write_i16(w, error)
        write_i32(w, session_id)
    writer_init(&endpoints)
    while i >= 0:
        e = &f.entries[i]
        i = e.next
        has_leaders |= names_leader(f, e)
        if i < 0 or not follows_of_topic(f, e, &f.entries[i]):
            topic_count += 1
    if has_leaders:
        find_leaders(serving, f, slot.conn, first, &endpoints)
    write_array_count(w, topic_count, flexible)
    i = first
    while i >= 0:
        e = &f.entries[i]
        if f.version >= 13:
            write_raw(w, e.topic_id, 16)
        else:
            write_string(w, e.topic, e.topic_size, flexible)
        partition_count = 1
        k = e.next
        while k >= 0 and follows_of_topic(f, e, &f.entries[k]):
            partition_count += 1
            k = f.entries[k].next
        write_array_count(w, partition_count, flexible)
        while i != k:
            write_partition(serving, f, &f.entries[i], slot)
            i = f.entries[i].next
        if flexible:
            write_uvarint(w, 0)
    if endpoints.size and not endpoints.failed:
        write_uvarint(w, 1)
        write_uvarint(w, 0)      # node endpoints
        write_uvarint(w, <uint32_t>endpoints.size)
        write_raw(w, endpoints.data, endpoints.size)
    elif flexible:
        write_uvarint(w, 0)
    writer_free(&endpoints)
