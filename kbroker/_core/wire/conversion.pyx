"""Conversion between record formats: messages of magic 0 and 1 to a batch of magic 2, back, and from magic 1 to 0.

It works on decompressed bytes, without the GIL. What is kept and dropped follows Apache Kafka 3.9 (LogValidator,
RecordsUtil.downConvert, MemoryRecordsBuilder). The results are builders, so that the caller can compress what they hold
and finish with `build` or `wrap`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t

from kbroker._core.wire.cursor cimport writer_reserve, writer_t
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.message_set cimport (
    Message, MessageSetBuilder, message_check, message_put, message_read, message_t, set_info_t, set_walk,
)
from kbroker._core.wire.record cimport MIN_RECORD_SIZE, record_t, take_record
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_COUNT, BATCH_BAD_RECORD, BATCH_EMPTY, BATCH_NESTED, BATCH_OK, BATCH_TOO_LARGE, OUT_OF_MEMORY, BatchInfo,
    batch_info_t,
)
from kbroker._core.wire.records cimport RecordsBuilder
from kbroker._core.wire.varint cimport bytes_size, put_bytes, put_varlong, varlong_size

from kbroker._core.wire.record_batch import InvalidBatch

# --- magic 0 and 1 to 2 -----------------------------------------------------------------------------

cdef int put_record(RecordsBuilder builder, int64_t limit, int64_t timestamp, const uint8_t *key, int32_t key_size,
                    const uint8_t *value, int32_t value_size) noexcept nogil:
    """Add a record with the next offset delta and no headers. Return BATCH_OK, BATCH_TOO_LARGE or OUT_OF_MEMORY."""
    cdef int64_t base = timestamp if builder.count == 0 else builder.base_timestamp
    cdef int64_t timestamp_delta = <int64_t>(<uint64_t>timestamp - <uint64_t>base)
    cdef int64_t body = (2 + varlong_size(timestamp_delta) + varlong_size(builder.count)
                         + bytes_size(key_size) + bytes_size(value_size))
    cdef int64_t size = varlong_size(body) + body
    cdef uint8_t *p
    if size > limit - <int64_t>builder.out.size:
        return BATCH_TOO_LARGE
    p = writer_reserve(&builder.out, <size_t>size)
    if p == NULL:
        return OUT_OF_MEMORY
    p += put_varlong(p, body)
    p[0] = 0
    p += 1
    p += put_varlong(p, timestamp_delta)
    p += put_varlong(p, builder.count)
    p = put_bytes(p, key, key_size)
    p = put_bytes(p, value, value_size)
    p[0] = 0
    builder.base_timestamp = base
    if timestamp > builder.max_timestamp:    # begins at -1, as in Kafka: a smaller timestamp does not count
        builder.max_timestamp = timestamp
    builder.last_offset_delta = builder.count
    builder.count += 1
    return BATCH_OK


cdef int flat_set(const uint8_t *data, int64_t size, const message_t *wrapper, set_info_t *info) noexcept nogil:
    """Walk over a set as `set_walk` does, for a set that must not have compressed messages.

    `info.size` is set to 0: the caller counts in it the bytes that it has converted.
    """
    cdef int finding = set_walk(data, size, wrapper, info)
    if finding != BATCH_OK:
        return finding
    info.size = 0
    return BATCH_NESTED if info.codec else BATCH_OK


cdef int convert_up(const uint8_t *data, int64_t size, const message_t *wrapper, int64_t limit, RecordsBuilder builder,
                    set_info_t *info) noexcept nogil:
    cdef message_t message
    cdef const uint8_t *p
    cdef bint stamped = wrapper != NULL and wrapper.attributes & ATTRIBUTE_LOG_APPEND_TIME and wrapper.magic == 1
    cdef int finding = flat_set(data, size, wrapper, info)
    if finding == BATCH_OK and info.count == 0:
        return BATCH_EMPTY
    while finding == BATCH_OK and info.size < size:
        p = data + info.size
        finding = message_read(p, size - info.size, &message)
        if finding != BATCH_OK:
            return finding
        finding = put_record(builder, limit, wrapper.timestamp if stamped else message.timestamp,
                             p + message.key_position, message.key_size, p + message.value_position, message.value_size)
        if finding == BATCH_OK:
            info.size += message.size
    return finding


def batch_of_messages(buffer, *, Message wrapper=None, int64_t limit=INT32_MAX):
    """Return a RecordsBuilder with the records of one batch of magic 2, made of a flat set of magic 0 or 1.

    With `wrapper`, `buffer` has the decompressed inner messages of this compressed message. Offset deltas are 0, 1,
    2... regardless of the messages' offsets. Messages of magic 0, which have no timestamps, get -1. `limit` bounds the
    bytes of the records. Raises InvalidBatch if the set is malformed or empty, has a compressed message, or exceeds
    `limit`.
    """
    cdef Py_buffer view
    cdef set_info_t info
    cdef RecordsBuilder builder = RecordsBuilder()
    cdef const message_t *outer = &wrapper.message if wrapper is not None else NULL
    cdef int finding
    limit = min(limit, <int64_t>INT32_MAX - BATCH_HEADER_SIZE)
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            finding = convert_up(<const uint8_t *>view.buf, view.len, outer, limit, builder, &info)
    finally:
        PyBuffer_Release(&view)
    raise_finding(finding, info.size)
    return builder


cdef int raise_finding(int finding, int64_t position) except -1:
    if finding == OUT_OF_MEMORY:
        raise MemoryError()
    if finding != BATCH_OK:
        raise InvalidBatch(finding, position)
    return 0

# --- magic 2 to 0 and 1 -----------------------------------------------------------------------------

cdef struct records_left_t:
    # The records of a batch of magic 2 that are to be converted: start of the next one, end of the last one, their
    # number.
    const uint8_t *p
    const uint8_t *end
    int32_t count


cdef inline int64_t plus(int64_t base, int64_t delta) noexcept nogil:
    return <int64_t>(<uint64_t>base + <uint64_t>delta)


cdef int plain_messages(const uint8_t *batch, const batch_info_t *info, int64_t start_offset, int magic,
                        writer_t *out) noexcept nogil:
    cdef const uint8_t *p = batch + BATCH_HEADER_SIZE
    cdef const uint8_t *end = batch + info.size
    cdef bint log_append_time = magic == 1 and info.attributes & ATTRIBUTE_LOG_APPEND_TIME
    cdef int attributes = ATTRIBUTE_LOG_APPEND_TIME if log_append_time else 0
    cdef record_t record
    cdef int64_t offset
    cdef int32_t left = info.record_count
    cdef int finding
    if info.attributes & ATTRIBUTE_CONTROL:
        return BATCH_OK
    if left < 0 or left > (end - p) // MIN_RECORD_SIZE:
        return BATCH_BAD_COUNT
    while left > 0:
        p = take_record(p, end, &record)
        if p == NULL:
            return BATCH_BAD_RECORD
        offset = plus(info.base_offset, record.offset_delta)
        if offset >= start_offset:
            finding = message_put(
                out, INT32_MAX, magic, attributes, offset,
                info.max_timestamp if log_append_time else plus(info.base_timestamp, record.timestamp_delta),
                record.key, record.key_size, record.value, record.value_size)
            if finding != BATCH_OK:
                return finding
        left -= 1
    return BATCH_OK if p == end else BATCH_BAD_RECORD


cdef int put_first(MessageSetBuilder builder, int64_t offset, int64_t timestamp, const uint8_t *key, int32_t key_size,
                   const uint8_t *value, int32_t value_size) noexcept nogil:
    """Add the first message of a set, regardless of the builder's limit: a larger message is alone in its set."""
    cdef int64_t limit = builder.limit
    cdef int finding
    builder.limit = INT32_MAX
    finding = builder.add(offset, timestamp, key, key_size, value, value_size)
    builder.limit = limit
    return finding


cdef int convert_down(records_left_t *left, BatchInfo batch, int64_t start_offset,
                      MessageSetBuilder builder) noexcept nogil:
    """Convert records until the builder is full or no record is left. `left` has the rest for the next call."""
    cdef const uint8_t *p
    cdef record_t record
    cdef int64_t offset, timestamp
    cdef int finding
    while left.count > 0:
        p = take_record(left.p, left.end, &record)
        if p == NULL:
            return BATCH_BAD_RECORD
        offset = plus(batch.info.base_offset, record.offset_delta)
        if offset >= start_offset:
            if builder.magic == 0:
                timestamp = -1
            elif builder.log_append_time:
                timestamp = batch.info.max_timestamp
            else:
                timestamp = plus(batch.info.base_timestamp, record.timestamp_delta)
            finding = put_first(builder, offset, timestamp, record.key, record.key_size, record.value,
                                record.value_size) \
                if builder.count == 0 else \
                builder.add(offset, timestamp, record.key, record.key_size, record.value, record.value_size)
            if finding != BATCH_OK:
                return finding
        left.p = p
        left.count -= 1
    return BATCH_OK if left.p == left.end else BATCH_BAD_RECORD


def message_sets_of_batch(BatchInfo batch not None, payload, int magic, *, int64_t start_offset=0,
                          int64_t limit=INT32_MAX):
    """Yield the records of a batch of magic 2 as messages of magic 0 or 1, in MessageSetBuilders.

    Messages have their records' offsets.

    A message takes up to five times the bytes of its record. So there may be several sets, each of `limit` bytes at
    most, or with a single message that is larger. `payload` is what stands behind the batch's header, decompressed.
    Headers of records are dropped; a control batch yields nothing.

    The sets of a compressed batch have all its records, and are to be compressed and given to `wrap`. The sets of an
    uncompressed batch leave out the records before `start_offset`, as some versions of librdkafka require. Raises
    InvalidBatch if the records are malformed.
    """
    cdef Py_buffer view
    cdef bint compressed = batch.info.attributes & ATTRIBUTE_CODEC_MASK != 0
    cdef MessageSetBuilder builder
    cdef records_left_t left
    cdef int finding = BATCH_TOO_LARGE
    if batch.info.attributes & ATTRIBUTE_CONTROL:
        return
    if compressed:
        start_offset = INT64_MIN
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        left.p = <const uint8_t *>view.buf
        left.end = left.p + view.len
        left.count = batch.info.record_count
        if left.count < 0 or left.count > view.len // MIN_RECORD_SIZE:
            raise InvalidBatch(BATCH_BAD_COUNT, batch.position)
        while finding == BATCH_TOO_LARGE:
            builder = MessageSetBuilder(
                magic, compressed=compressed, log_append_time=batch.info.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0,
                limit=limit)
            with nogil:
                finding = convert_down(&left, batch, start_offset, builder)
            if finding != BATCH_TOO_LARGE or not builder.count:
                raise_finding(finding, batch.position)
            if builder.count:
                yield builder
    finally:
        PyBuffer_Release(&view)

# --- magic 1 to 0 -------------------------------------------------------------------------------------

cdef int older_message(const uint8_t *data, int64_t size, int64_t start_offset, writer_t *out) noexcept nogil:
    cdef message_t message
    cdef int finding = message_check(data, size, &message)
    if finding != BATCH_OK or message.offset < start_offset:
        return finding
    return message_put(out, INT32_MAX, 0, 0, message.offset, -1, data + message.key_position, message.key_size,
                       data + message.value_position, message.value_size)


cdef int convert_older(const uint8_t *data, int64_t size, const message_t *wrapper, MessageSetBuilder builder,
                       set_info_t *info) noexcept nogil:
    cdef message_t message
    cdef const uint8_t *p
    cdef int finding = flat_set(data, size, wrapper, info)
    while finding == BATCH_OK and info.size < size:
        p = data + info.size
        finding = message_read(p, size - info.size, &message)
        if finding != BATCH_OK:
            return finding
        finding = builder.add(plus(info.base_offset, message.offset), -1, p + message.key_position, message.key_size,
                              p + message.value_position, message.value_size)
        if finding == BATCH_OK:
            info.size += message.size
    return finding


def older_messages(buffer, Message wrapper not None):
    """Return a MessageSetBuilder with the inner messages of a compressed message of magic 1, as messages of magic 0.

    `buffer` has the inner messages, decompressed. Offsets become absolute, timestamps are dropped. The result is to be
    compressed and given to `wrap`. Raises InvalidBatch if the messages are malformed.
    """
    cdef Py_buffer view
    cdef set_info_t info
    cdef MessageSetBuilder builder = MessageSetBuilder(0, compressed=True)
    cdef int finding
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            finding = convert_older(<const uint8_t *>view.buf, view.len, &wrapper.message, builder, &info)
    finally:
        PyBuffer_Release(&view)
    raise_finding(finding, info.size)
    return builder
