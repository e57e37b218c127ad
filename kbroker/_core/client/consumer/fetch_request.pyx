"""Writes a Fetch request; see fetch_request.pxd."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

from kbroker._core.wire.apis cimport API_FETCH
from kbroker._core.wire.cursor cimport (
    store_u32, write_array_count, write_i8, write_i16, write_i32, write_i64, write_raw, write_string, write_uvarint,
    writer_free, writer_init, writer_t,
)

cdef enum:
    REPLICA_STATE = 1            # the tagged field of the request, version 15
    REPLICA_STATE_SIZE = 13      # bytes


cdef inline bint same_topic(const fetch_ask_t *a, const fetch_ask_t *b) noexcept nogil:
    return a.topic_size == b.topic_size and memcmp(a.topic, b.topic, <size_t>a.topic_size) == 0

cdef void write_topics(writer_t *w, int16_t version, const fetch_ask_t *asks, int32_t count, int32_t max_bytes,
                       bint forgotten) noexcept nogil:
    """Write the asks, grouped by topic. Of forgotten partitions only the numbers are written."""
    cdef bint flexible = version >= 12
    cdef int32_t topics = 0
    cdef int32_t i
    cdef int32_t end
    for i in range(count):
        topics += i == 0 or not same_topic(&asks[i - 1], &asks[i])
    write_array_count(w, topics, flexible)
    i = 0
    while i < count:
        end = i + 1
        while end < count and same_topic(&asks[i], &asks[end]):
            end += 1
        if version > LAST_VERSION_WITH_NAMES:
            write_raw(w, asks[i].topic_id, TOPIC_ID_SIZE)
        else:
            write_string(w, asks[i].topic, asks[i].topic_size, flexible)
        write_array_count(w, end - i, flexible)
        while i < end:
            write_i32(w, asks[i].partition)
            if not forgotten:
                if version >= 9:
                    write_i32(w, asks[i].leader_epoch)
                write_i64(w, asks[i].offset)
                if version >= 12:
                    write_i32(w, asks[i].last_epoch)
                if version >= 5:
                    write_i64(w, asks[i].log_start_offset)
                write_i32(w, max_bytes)
                if flexible:
                    write_uvarint(w, 0)
            i += 1
        if flexible:
            write_uvarint(w, 0)

cdef void write_fetch(writer_t *w, int16_t version, const fetch_options_t *options, int32_t session_id,
                      int32_t session_epoch, const fetch_ask_t *asks, int32_t ask_count, const fetch_ask_t *forgotten,
                      int32_t forgotten_count) noexcept nogil:
    cdef bint flexible = version >= 12
    cdef size_t start = w.size
    write_i32(w, 0)
    write_i16(w, API_FETCH)
    write_i16(w, version)
    write_i32(w, 0)
    write_i16(w, options.client_id_size)
    write_raw(w, options.client_id, <size_t>options.client_id_size)
    if flexible:
        write_uvarint(w, 0)
    if version < 15:
        write_i32(w, options.replica_id)
    write_i32(w, options.max_wait_ms)
    write_i32(w, options.min_bytes)
    if version >= 3:
        write_i32(w, options.max_bytes)
    if version >= 4:
        write_i8(w, options.isolation_level)
    if version >= 7:
        write_i32(w, session_id)
        write_i32(w, session_epoch)
    write_topics(w, version, asks, ask_count, options.max_partition_bytes, False)
    if version >= 7:
        write_topics(w, version, forgotten, forgotten_count, 0, True)
    if version >= 11:
        write_string(w, options.rack, options.rack_size, flexible)
    if version >= 15 and options.replica_id >= 0:
        write_uvarint(w, 1)
        write_uvarint(w, REPLICA_STATE)
        write_uvarint(w, REPLICA_STATE_SIZE)
        write_i32(w, options.replica_id)
        write_i64(w, options.replica_epoch)
        write_uvarint(w, 0)
    elif flexible:
        write_uvarint(w, 0)
    if not w.failed:
        store_u32(w.data + start, <uint32_t>(w.size - start - 4))


cdef bytes NO_TOPIC_ID = bytes(TOPIC_ID_SIZE)


cdef fetch_ask_t *asks_of(list rows) except NULL:
    """Make asks of rows (topic, partition, leader epoch, offset[, topic id, last epoch, log start offset]).

    The asks point into the topics and their ids, bytes that `rows` keeps.
    """
    cdef fetch_ask_t *asks = <fetch_ask_t *>malloc(sizeof(fetch_ask_t) * max(len(rows), 1))
    cdef int32_t i
    cdef bytes topic
    cdef bytes topic_id
    if asks == NULL:
        raise MemoryError()
    for i, (topic, partition, leader_epoch, offset, *told) in enumerate(rows):
        topic_id, asks[i].last_epoch, asks[i].log_start_offset = told or (NO_TOPIC_ID, -1, -1)
        if len(topic_id) != TOPIC_ID_SIZE:
            free(asks)
            raise ValueError(f"a topic id of {len(topic_id)} bytes")
        asks[i].topic_id = topic_id
        asks[i].topic = topic
        asks[i].topic_size = <int16_t>len(topic)
        asks[i].partition = partition
        asks[i].leader_epoch = leader_epoch
        asks[i].offset = offset
    return asks


def encode_fetch(int16_t version, asks, forgotten=(), *, bytes client_id=b"", bytes rack=b"", int isolation_level=0,
                 int min_bytes=1, int max_wait_ms=500, int max_bytes=52428800, int max_partition_bytes=1048576,
                 int session_id=0, int session_epoch=-1, int replica_id=-1, int64_t replica_epoch=-1):
    """Return the frame of a Fetch request. Raises ValueError for a version that is not 0 to 17.

    asks, forgotten: rows (topic as bytes, partition, leader epoch or -1, offset), of a follower also (..., topic id,
    last fetched epoch, log start offset).
    """
    cdef writer_t out
    cdef fetch_options_t options
    cdef list asked = list(asks)
    cdef list left = list(forgotten)
    cdef fetch_ask_t *asked_rows = NULL
    cdef fetch_ask_t *left_rows = NULL
    if not 0 <= version <= LAST_FETCH_VERSION:
        raise ValueError(f"Fetch {version}")
    options.client_id = client_id
    options.client_id_size = <int16_t>len(client_id)
    options.rack = rack
    options.rack_size = <int16_t>len(rack)
    options.isolation_level = isolation_level
    options.min_bytes = min_bytes
    options.max_wait_ms = max_wait_ms
    options.max_bytes = max_bytes
    options.max_partition_bytes = max_partition_bytes
    options.replica_id = replica_id
    options.replica_epoch = replica_epoch
    writer_init(&out)
    try:
        asked_rows = asks_of(asked)
        left_rows = asks_of(left)
        write_fetch(&out, version, &options, session_id, session_epoch, asked_rows, <int32_t>len(asked), left_rows,
                    <int32_t>len(left))
        if out.failed:
            raise MemoryError()
        return PyBytes_FromStringAndSize(<char *>out.data, <Py_ssize_t>out.size)
    finally:
        free(asked_rows)
        free(left_rows)
        writer_free(&out)
