"""Converts messages of magic 0 and 1 to a batch of magic 2; see messages.pxd."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from kbroker._core.wire.cursor cimport load_u64, store_u16, store_u32, store_u64, writer_reserve, writer_t
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.message_set cimport message_read, message_t, set_info_t, set_walk
from kbroker._core.wire.record_batch cimport BATCH_BAD_COUNT, BATCH_OK, BATCH_TOO_LARGE, OUT_OF_MEMORY
from kbroker._core.wire.varint cimport bytes_size, put_bytes, put_varlong, varlong_size


cdef bint messages_alike(const uint8_t *first, const message_t *message) noexcept nogil:
    cdef int64_t delta = message.offset - <int64_t>load_u64(first + MESSAGE_OFFSET)
    if first[MESSAGE_MAGIC] != message.magic or first[MESSAGE_ATTRIBUTES] & ATTRIBUTE_CODEC_MASK \
            or not 0 < delta <= INT32_MAX:
        return False
    if (first[MESSAGE_ATTRIBUTES] ^ message.attributes) & ATTRIBUTE_LOG_APPEND_TIME:
        return False
    # Under LogAppendTime all records of a batch have one timestamp.
    return (message.magic == 0 or not message.attributes & ATTRIBUTE_LOG_APPEND_TIME
            or <int64_t>load_u64(first + MESSAGE_TIMESTAMP) == message.timestamp)


cdef bint put_record(writer_t *out, const uint8_t *data, const message_t *message, int64_t offset_delta,
                     int64_t timestamp_delta) noexcept nogil:
    """Append a message to `out` as a record of a batch. Return False if memory is out."""
    cdef int64_t body = (2 + varlong_size(timestamp_delta) + varlong_size(offset_delta) + bytes_size(message.key_size)
                         + bytes_size(message.value_size))
    cdef uint8_t *p = writer_reserve(out, <size_t>(varlong_size(body) + body))
    if p == NULL:
        return False
    p += put_varlong(p, body)
    p[0] = 0
    p += 1
    p += put_varlong(p, timestamp_delta)
    p += put_varlong(p, offset_delta)
    p = put_bytes(p, data + message.key_position, message.key_size)
    p = put_bytes(p, data + message.value_position, message.value_size)
    p[0] = 0                     # no headers
    return True


cdef void put_header(uint8_t *header, const writer_t *out, int64_t base_offset, int64_t last_offset_delta,
                     int64_t base_timestamp, int64_t max_timestamp, bint log_append_time, int32_t count) noexcept nogil:
    memset(header, 0, BATCH_HEADER_SIZE)
    store_u64(header + BATCH_BASE_OFFSET, <uint64_t>base_offset)
    store_u32(header + BATCH_LENGTH, <uint32_t>(out.size - LOG_OVERHEAD))
    store_u32(header + BATCH_LEADER_EPOCH, <uint32_t>-1)
    header[BATCH_MAGIC] = 2
    store_u16(header + BATCH_ATTRIBUTES, ATTRIBUTE_LOG_APPEND_TIME if log_append_time else 0)
    store_u32(header + BATCH_LAST_OFFSET_DELTA, <uint32_t>last_offset_delta)
    store_u64(header + BATCH_BASE_TIMESTAMP, <uint64_t>base_timestamp)
    store_u64(header + BATCH_MAX_TIMESTAMP, <uint64_t>max_timestamp)
    store_u64(header + BATCH_PRODUCER_ID, <uint64_t>-1)
    store_u16(header + BATCH_PRODUCER_EPOCH, <uint16_t>-1)
    store_u32(header + BATCH_BASE_SEQUENCE, <uint32_t>-1)
    store_u32(header + BATCH_RECORD_COUNT, <uint32_t>count)


cdef int batch_of_set(const uint8_t *data, int64_t size, const message_t *wrapper, writer_t *out) noexcept nogil:
    cdef message_t message
    cdef set_info_t info
    cdef int64_t at = 0
    cdef int64_t base_offset = 0
    cdef int64_t base_timestamp = -1
    cdef int64_t max_timestamp = -1
    cdef int64_t delta = 0
    cdef int32_t count = 0
    cdef bint log_append_time = wrapper != NULL and wrapper.magic == 1 \
        and wrapper.attributes & ATTRIBUTE_LOG_APPEND_TIME
    cdef int finding
    memset(&info, 0, sizeof(info))
    if wrapper != NULL:
        finding = set_walk(data, size, wrapper, &info)
        if finding != BATCH_OK:
            return finding
    if writer_reserve(out, BATCH_HEADER_SIZE) == NULL:
        return OUT_OF_MEMORY
    while at < size:
        finding = message_read(data + at, size - at, &message)
        if finding != BATCH_OK:
            return finding
        message.offset = <int64_t>(<uint64_t>message.offset + <uint64_t>info.base_offset)
        if wrapper != NULL and log_append_time:
            message.timestamp = wrapper.timestamp
        if count == 0:
            base_offset = message.offset
            base_timestamp = message.timestamp
            if wrapper == NULL:
                log_append_time = message.magic == 1 and message.attributes & ATTRIBUTE_LOG_APPEND_TIME
        delta = <int64_t>(<uint64_t>message.offset - <uint64_t>base_offset)
        if not count <= delta <= INT32_MAX:
            return BATCH_BAD_COUNT
        if not put_record(out, data + at, &message, delta,
                          <int64_t>(<uint64_t>message.timestamp - <uint64_t>base_timestamp)):
            return OUT_OF_MEMORY
        if out.size > INT32_MAX:
            return BATCH_TOO_LARGE
        max_timestamp = max(max_timestamp, message.timestamp)
        count += 1
        at += message.size
    put_header(out.data, out, base_offset, delta, base_timestamp, max_timestamp, log_append_time, count)
    return BATCH_OK
