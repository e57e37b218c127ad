"""Parses a Fetch request, versions 0 to 17. What each version added is in fetch.pyx."""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kbroker._core.base.arrays cimport with_room
from kbroker._core.log.partition cimport TO_HIGH_WATERMARK, TO_LAST_STABLE, TO_LOG_END
from kbroker._core.server.connection cimport request_t
from kbroker._core.server.fetch.fetch cimport (
    CONVERTED_AT_ONCE, FINAL_EPOCH, KNOWN, fetch_entry_t, fetch_t,
)
from kbroker._core.wire.apis cimport FETCH_BATCHES_FROM, READ_COMMITTED, READ_UNCOMMITTED
from kbroker._core.wire.cursor cimport (
    MOST_ELEMENTS, is_utf8, read_array_count, read_i8, read_i32, read_i64, read_string, read_tag, read_uvarint,
    reader_left, reader_t, reader_take, skip_tags,
)


cdef fetch_entry_t *add_entry(fetch_t *f) noexcept nogil:
    cdef fetch_entry_t *grown
    if f.entry_count == MOST_ELEMENTS:
        return NULL
    grown = <fetch_entry_t *>with_room(f.entries, f.entry_count, &f.entry_capacity, sizeof(fetch_entry_t))
    if grown == NULL:
        return NULL
    f.entries = grown
    grown = &f.entries[f.entry_count]
    f.entry_count += 1
    grown.partition = NULL
    grown.read.segment = NULL
    grown.read.aborted = NULL
    grown.error = 0
    grown.unknown = KNOWN
    grown.cached = -1
    grown.last_fetched_epoch = -1
    grown.preferred = -1
    grown.leader_id = -1
    grown.leader_epoch = -1
    grown.diverging_epoch = -1
    grown.follower_start = -1
    return grown

cdef bint read_topic(reader_t *r, bint flexible, bint by_id, const uint8_t **topic, int32_t *topic_size) noexcept nogil:
    """Read a topic: its name or, with `by_id`, the 16 bytes of its id. False: it does not parse."""
    if by_id:
        topic[0] = reader_take(r, 16)
        topic_size[0] = 0
    else:
        topic[0] = read_string(r, flexible, topic_size)
        if topic[0] != NULL and not is_utf8(topic[0], topic_size[0]):
            return False
    return topic[0] != NULL

cdef bint parse_topics(fetch_t *f, reader_t *r, bint flexible) noexcept nogil:
    cdef bint by_id = f.version >= 13
    cdef const uint8_t *topic = NULL
    cdef int32_t topic_size = 0
    cdef int32_t topic_count = read_array_count(r, flexible, 3)
    cdef int32_t partition_count
    cdef fetch_entry_t *e
    if topic_count < 0:
        return False
    while topic_count > 0:
        topic_count -= 1
        if not read_topic(r, flexible, by_id, &topic, &topic_size):
            return False
        partition_count = read_array_count(r, flexible, 16)
        if partition_count < 0:
            return False
        while partition_count > 0:
            partition_count -= 1
            e = add_entry(f)
            if e == NULL:
                return False
            if by_id:
                memcpy(e.topic_id, topic, 16)
                e.topic = NULL
            else:
                e.topic = topic
            e.topic_size = <int16_t>topic_size
            e.partition_id = read_i32(r)
            e.current_leader_epoch = read_i32(r) if f.version >= 9 else -1
            e.offset = read_i64(r)
            if f.version >= 12:
                e.last_fetched_epoch = read_i32(r)
            if f.version >= 5:
                e.follower_start = read_i64(r)
            e.max_bytes = read_i32(r)
            if flexible:
                skip_tags(r)
            if r.failed:
                return False
        if flexible:
            skip_tags(r)
    return not r.failed

cdef bint next_forgotten(reader_t *r, bint flexible, bint by_id, const uint8_t **topic, int32_t *topic_size,
                         int32_t *partition_count) noexcept nogil:
    if not read_topic(r, flexible, by_id, topic, topic_size):
        return False
    partition_count[0] = read_array_count(r, flexible, 4)
    return partition_count[0] >= 0

cdef bint parse_forgotten(fetch_t *f, reader_t *r, bint flexible) noexcept nogil:
    """Check that the forgotten topics are well-formed; open_session reads them again."""
    cdef const uint8_t *topic = NULL
    cdef int32_t topic_size = 0
    cdef int32_t partition_count = 0
    cdef int32_t topic_count = read_array_count(r, flexible, 3)
    if topic_count < 0:
        return False
    while topic_count > 0:
        topic_count -= 1
        if not next_forgotten(r, flexible, f.version >= 13, &topic, &topic_size, &partition_count):
            return False
        reader_take(r, <int64_t>partition_count * 4)
        if flexible:
            skip_tags(r)
        if r.failed:
            return False
    return True

cdef void parse_tags(fetch_t *f, reader_t *r) noexcept nogil:
    """Parse the tagged fields of the request: 0 cluster id (of the quorum, ignored), 1 replica state (version 15)."""
    cdef uint32_t count = read_uvarint(r)
    cdef uint32_t tag
    cdef reader_t state
    while count > 0 and not r.failed:
        count -= 1
        tag = read_tag(r, &state)
        if tag == 1 and f.version >= 15 and not r.failed:
            f.replica_id = read_i32(&state)
            f.replica_epoch = read_i64(&state)
            skip_tags(&state)
            if state.failed or reader_left(&state):
                r.failed = True

cdef bint parse_request(fetch_t *f, request_t *request, reader_t *forgotten) noexcept nogil:
    cdef reader_t r = request.body
    cdef bint flexible = f.version >= 12
    f.replica_id = read_i32(&r) if f.version < 15 else -1
    f.replica_epoch = -1
    f.max_wait_ms = read_i32(&r)
    f.min_bytes = read_i32(&r)
    f.max_bytes = read_i32(&r) if f.version >= 3 else INT32_MAX
    if f.version < FETCH_BATCHES_FROM:
        f.max_bytes = min(f.max_bytes, CONVERTED_AT_ONCE)
        f.isolation = READ_UNCOMMITTED
    else:
        f.isolation = read_i8(&r)
    f.session_epoch = FINAL_EPOCH
    if f.version >= 7:
        f.session_id = read_i32(&r)
        f.session_epoch = read_i32(&r)
    if not parse_topics(f, &r, flexible):
        return False
    forgotten[0] = r
    if f.version >= 7 and not parse_forgotten(f, &r, flexible):
        return False
    if f.version >= 11:
        f.rack = read_string(&r, flexible, &f.rack_size)
        if f.rack == NULL:
            return False
    if flexible:
        parse_tags(f, &r)
    f.until = TO_LOG_END if f.replica_id >= 0 else TO_LAST_STABLE if f.isolation == READ_COMMITTED \
        else TO_HIGH_WATERMARK
    return not r.failed     # bytes after the message are ignored, as in Apache Kafka

