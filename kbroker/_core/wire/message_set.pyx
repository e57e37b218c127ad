"""Messages of magic 0 and 1, which precede record batches (https://kafka.apache.org/documentation/#messageset).

    set     = message*
    message = offset:i64 length:i32 crc:u32 magic:i8 attributes:i8 [timestamp:i64 in magic 1] key:bytes value:bytes
    bytes   = size:i32 (negative: null) data

A compressed message has a flat set of inner messages in its value, and the offset of the last of them. The inner
offsets are absolute in magic 0, and relative to the first inner message in magic 1 (KIP-31). Under LogAppendTime the
timestamp of the compressed message holds for all inner messages (KIP-32).

What is refused, and with which code, follows Apache Kafka 3.9 (LegacyRecord, AbstractLegacyRecordBatch, LogValidator)
and is stricter in three points: key and value must fill the message, a compressed message must not hold part of a
message, and an unknown codec is UNSUPPORTED_COMPRESSION_TYPE. The caller compresses and decompresses; no codec is used
here.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kbroker._core.wire.crc cimport crc32
from kbroker._core.wire.cursor cimport (
    load_u32, load_u64, store_u32, store_u64, writer_free, writer_init, writer_reserve, writer_t,
)
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_CODEC, BATCH_BAD_CRC, BATCH_BAD_LENGTH, BATCH_BAD_MAGIC, BATCH_BAD_RECORD, BATCH_BAD_WRAPPER, BATCH_EMPTY,
    BATCH_MIXED_MAGIC, BATCH_NESTED, BATCH_OK, BATCH_OLD_ZSTD, BATCH_TOO_LARGE, BATCH_TOO_SHORT,
    OUT_OF_MEMORY,
)

from kbroker._core.wire.record_batch import InvalidBatch

cdef extern from * nogil:
    void prefetch_to_write "__builtin_prefetch"(const void *where, int to_write)

cdef enum:
    MOST_AHEAD = 2048            # bytes to prefetch at most; a larger copy is fast without it

# --- one message ------------------------------------------------------------------------------------

cdef int message_header(const uint8_t *data, int64_t size, message_t *message) noexcept nogil:
    # The checks are made in Kafka's order, as in batch_header.
    cdef int64_t length
    if size < LOG_OVERHEAD:
        return BATCH_TOO_SHORT
    length = <int32_t>load_u32(data + MESSAGE_LENGTH)
    if length < MIN_MESSAGE_LENGTH_V0 or length > INT32_MAX - LOG_OVERHEAD:
        return BATCH_BAD_LENGTH
    if size <= MESSAGE_MAGIC:
        return BATCH_TOO_SHORT
    if data[MESSAGE_MAGIC] > 1:
        return BATCH_BAD_MAGIC
    if size < LOG_OVERHEAD + length:
        return BATCH_TOO_SHORT
    message.magic = data[MESSAGE_MAGIC]
    if message.magic == 1 and length < MIN_MESSAGE_LENGTH_V1:
        return BATCH_BAD_LENGTH
    message.offset = <int64_t>load_u64(data + MESSAGE_OFFSET)
    message.size = <int32_t>(LOG_OVERHEAD + length)
    message.attributes = data[MESSAGE_ATTRIBUTES]
    message.timestamp = <int64_t>load_u64(data + MESSAGE_TIMESTAMP) if message.magic == 1 else -1
    return BATCH_OK


cdef int message_verify(const uint8_t *data, int64_t size, message_t *message) noexcept nogil:
    cdef int finding = message_header(data, size, message)
    if finding == BATCH_OK and checksum(data, message.size) != load_u32(data + MESSAGE_CRC):
        return BATCH_BAD_CRC
    return finding


cdef inline uint32_t checksum(const uint8_t *data, int64_t size) noexcept nogil:
    return crc32(0, data + MESSAGE_MAGIC, <size_t>(size - MESSAGE_MAGIC))


cdef int message_as_batch(const uint8_t *data, int64_t size, bint verify, batch_info_t *info) noexcept nogil:
    cdef message_t message
    cdef int finding = message_verify(data, size, &message) if verify else message_header(data, size, &message)
    if finding != BATCH_OK:
        return finding
    memset(info, 0, sizeof(batch_info_t))
    info.base_offset = message.offset
    info.size = message.size
    info.leader_epoch = -1
    info.attributes = message.attributes
    info.max_timestamp = message.timestamp
    info.base_timestamp = message.timestamp
    info.producer_id = -1
    info.record_count = 1
    return BATCH_OK


cdef int message_check(const uint8_t *data, int64_t size, message_t *message) noexcept nogil:
    cdef int finding = message_verify(data, size, message)
    cdef int codec
    if finding != BATCH_OK:
        return finding
    codec = message.attributes & ATTRIBUTE_CODEC_MASK
    if codec > CODEC_LZ4:
        return BATCH_OLD_ZSTD if codec == CODEC_ZSTD else BATCH_BAD_CODEC
    if not place_fields(data, message) or (codec and message.value_size < 0):
        return BATCH_BAD_RECORD
    return BATCH_OK


cdef int message_read(const uint8_t *data, int64_t size, message_t *message) noexcept nogil:
    cdef int finding = message_header(data, size, message)
    if finding == BATCH_OK and not place_fields(data, message):
        return BATCH_BAD_RECORD
    return finding


cdef inline bint place_fields(const uint8_t *data, message_t *message) noexcept nogil:
    """Find key and value of a message whose header was checked. Return False if their sizes do not fill the message."""
    cdef int64_t at = MESSAGE_KEY_V1 if message.magic == 1 else MESSAGE_KEY_V0
    cdef int64_t left = message.size - at - 8    # bytes of key and value; the two sizes fit into the smallest length
    cdef int64_t size = <int32_t>load_u32(data + at)
    if size > left:
        return False
    message.key_position = <int32_t>(at + 4)
    message.key_size = <int32_t>size if size >= 0 else -1
    if size > 0:
        at += size
        left -= size
    size = <int32_t>load_u32(data + at + 4)
    message.value_position = <int32_t>(at + 8)
    message.value_size = <int32_t>size if size >= 0 else -1
    return left == (size if size > 0 else 0)

# --- sets -------------------------------------------------------------------------------------------

cdef int set_walk(const uint8_t *data, int64_t size, const message_t *wrapper, set_info_t *info) noexcept nogil:
    cdef message_t message
    cdef int finding
    memset(info, 0, sizeof(set_info_t))
    memset(&message, 0, sizeof(message))
    info.magic = -1 if wrapper == NULL else wrapper.magic
    info.first_offset = info.last_offset = -1
    info.ascends = True
    while info.size < size:
        finding = message_check(data + info.size, size - info.size, &message)
        if finding != BATCH_OK:
            return finding
        if info.magic != message.magic:
            if info.magic != -1:
                return BATCH_MIXED_MAGIC
            info.magic = message.magic
        if message.attributes & ATTRIBUTE_CODEC_MASK:
            if wrapper != NULL:
                return BATCH_NESTED
            info.codec = message.attributes & ATTRIBUTE_CODEC_MASK
        if info.count == 0:
            info.first_offset = message.offset
        elif message.offset <= info.last_offset:
            info.ascends = False
        info.last_offset = message.offset
        info.count += 1
        info.size += message.size
    if wrapper == NULL:
        return BATCH_OK
    if info.count == 0:
        return BATCH_EMPTY
    # Some producers leave the offset of the compressed message at 0: then the inner offsets count from 0.
    if wrapper.magic == 1 and wrapper.offset != 0:
        if wrapper.offset < info.last_offset:
            return BATCH_BAD_WRAPPER
        info.base_offset = <int64_t>(<uint64_t>wrapper.offset - <uint64_t>info.last_offset)
        info.first_offset = <int64_t>(<uint64_t>info.first_offset + <uint64_t>info.base_offset)
        info.last_offset = wrapper.offset
    return BATCH_OK

# --- writing ----------------------------------------------------------------------------------------

cdef int message_put(writer_t *out, int64_t limit, int magic, int attributes, int64_t offset, int64_t timestamp,
                     const uint8_t *key, int64_t key_size, const uint8_t *value, int64_t value_size) noexcept nogil:
    cdef int64_t at = MESSAGE_KEY_V1 if magic == 1 else MESSAGE_KEY_V0
    cdef int64_t size = at + 8 + (key_size if key_size > 0 else 0) + (value_size if value_size > 0 else 0)
    cdef int64_t line
    cdef uint8_t *message
    cdef uint8_t *p
    if size > limit - <int64_t>out.size:
        return BATCH_TOO_LARGE
    message = writer_reserve(out, <size_t>size)
    if message == NULL:
        return OUT_OF_MEMORY
    # The next message will most likely be as large, and go to memory that is in no cache: its checksum would wait for
    # it.
    for line in range(0, min(size, min(<int64_t>(out.capacity - out.size), <int64_t>MOST_AHEAD)), 64):
        prefetch_to_write(message + size + line, 1)
    store_u64(message + MESSAGE_OFFSET, <uint64_t>offset)
    store_u32(message + MESSAGE_LENGTH, <uint32_t>(size - LOG_OVERHEAD))
    message[MESSAGE_MAGIC] = <uint8_t>magic
    message[MESSAGE_ATTRIBUTES] = <uint8_t>attributes
    if magic == 1:
        store_u64(message + MESSAGE_TIMESTAMP, <uint64_t>timestamp)
    p = put_sized(message + at, key, key_size)
    put_sized(p, value, value_size)
    store_u32(message + MESSAGE_CRC, checksum(message, size))
    return BATCH_OK


cdef inline uint8_t *put_sized(uint8_t *p, const uint8_t *data, int64_t size) noexcept nogil:
    store_u32(p, <uint32_t>(size if size >= 0 else -1))
    if size <= 0:
        return p + 4
    memcpy(p + 4, data, <size_t>size)
    return p + 4 + size


@cython.final
cdef class MessageSetBuilder:
    """Encodes messages of one magic one behind the other. For one thread at a time.

    With `compressed`, the messages are to be compressed and given to `wrap`, so that in magic 1 offsets are written
    relative to the first one. `log_append_time` sets the bit of that name in magic 1. The set never becomes larger than
    `limit` bytes.
    """

    def __cinit__(self, int magic, *, bint compressed=False, bint log_append_time=False, int64_t limit=INT32_MAX):
        if magic != 0 and magic != 1:
            raise ValueError(f"messages have magic 0 or 1, not {magic}")
        writer_init(&self.out)
        self.magic = magic
        self.compressed = compressed
        self.log_append_time = log_append_time and magic == 1
        self.limit = min(limit, <int64_t>INT32_MAX)
        self.first_offset = self.last_offset = self.max_timestamp = -1

    def __dealloc__(self):
        writer_free(&self.out)

    @property
    def size(self):
        """The size in bytes of the messages that were added so far."""
        return self.out.size

    cdef int add(self, int64_t offset, int64_t timestamp, const uint8_t *key, int64_t key_size, const uint8_t *value,
                 int64_t value_size) noexcept nogil:
        cdef uint64_t base = 0
        cdef int done
        if self.compressed and self.magic == 1:
            base = <uint64_t>(offset if self.count == 0 else self.first_offset)
        done = message_put(&self.out, self.limit, self.magic, ATTRIBUTE_LOG_APPEND_TIME if self.log_append_time else 0,
                           <int64_t>(<uint64_t>offset - base), timestamp, key, key_size, value, value_size)
        if done != BATCH_OK:
            return done
        if self.count == 0:
            self.first_offset = offset
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.last_offset = offset
        self.count += 1
        return BATCH_OK

    def append(self, int64_t offset, int64_t timestamp, key, value):
        """Encode one message and return `size`. In magic 0 the timestamp is dropped.

        Raises InvalidBatch if the set would become larger than `limit`; nothing was added then.
        """
        cdef Py_buffer key_view
        cdef Py_buffer value_view
        cdef int done
        if self.magic == 0:
            timestamp = -1
        memset(&key_view, 0, sizeof(key_view))
        memset(&value_view, 0, sizeof(value_view))
        key_view.len = value_view.len = -1
        try:
            if key is not None:
                PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
            if value is not None:
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
            done = self.add(offset, timestamp, <const uint8_t *>key_view.buf, key_view.len,
                            <const uint8_t *>value_view.buf, value_view.len)
        finally:
            PyBuffer_Release(&value_view)
            PyBuffer_Release(&key_view)
        if done == OUT_OF_MEMORY:
            raise MemoryError()
        if done != BATCH_OK:
            raise InvalidBatch(done)
        return self.out.size

    def messages(self):
        """Return the bytes of the set so far, as they stand in a log or go into a compressor."""
        return PyBytes_FromStringAndSize(<const char *>self.out.data, <Py_ssize_t>self.out.size)

    def wrap(self, int codec, payload):
        """Return a compressed message with the set's last offset and max timestamp; `payload` is the compressed set.

        Raises InvalidBatch if the set is empty or the format does not have the codec, and ValueError if the set was not
        made with `compressed`.
        """
        if self.count == 0:
            raise InvalidBatch(BATCH_EMPTY)
        if not self.compressed:
            raise ValueError("the offsets of this set were not written for a compressed message")
        return wrap(payload, codec, self.magic, self.last_offset, self.max_timestamp, self.log_append_time)


def wrap(payload, int codec, int magic, int64_t offset, int64_t timestamp=-1, bint log_append_time=False):
    """Return a compressed message of magic 0 or 1 whose value is `payload`.

    Raises InvalidBatch if the format does not have the codec.
    """
    cdef Py_buffer view
    cdef writer_t out
    cdef int done
    if magic != 0 and magic != 1:
        raise ValueError(f"messages have magic 0 or 1, not {magic}")
    if codec < 1 or codec > CODEC_LZ4:
        raise InvalidBatch(BATCH_OLD_ZSTD if codec == CODEC_ZSTD else BATCH_BAD_CODEC)
    writer_init(&out)
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            done = message_put(&out, INT32_MAX, magic,
                               codec | (ATTRIBUTE_LOG_APPEND_TIME if log_append_time and magic == 1 else 0), offset,
                               timestamp, NULL, -1, <const uint8_t *>view.buf, view.len)
        if done == OUT_OF_MEMORY:
            raise MemoryError()
        if done != BATCH_OK:
            raise InvalidBatch(done)
        return PyBytes_FromStringAndSize(<const char *>out.data, <Py_ssize_t>out.size)
    finally:
        PyBuffer_Release(&view)
        writer_free(&out)

# --- for Python -------------------------------------------------------------------------------------

@cython.final
cdef class Message:
    """The fields of one message.

    `position` is where it starts in the buffer it was read from; sizes are -1 for null.
    """

    def __init__(self):
        raise TypeError("made by check and messages")

    @property
    def offset(self):
        return self.message.offset

    @property
    def size(self):
        return self.message.size

    @property
    def magic(self):
        return self.message.magic

    @property
    def attributes(self):
        return self.message.attributes

    @property
    def codec(self):
        return self.message.attributes & ATTRIBUTE_CODEC_MASK

    @property
    def is_log_append_time(self):
        return self.message.magic == 1 and self.message.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0

    @property
    def timestamp(self):
        return self.message.timestamp

    @property
    def key_position(self):
        """The position of the key's bytes in the buffer."""
        return self.position + self.message.key_position

    @property
    def key_size(self):
        return self.message.key_size

    @property
    def value_position(self):
        """The position of the value's bytes in the buffer."""
        return self.position + self.message.value_position

    @property
    def value_size(self):
        return self.message.value_size

    def __repr__(self):
        return (f"<Message at {self.position}: magic {self.magic}, offset {self.offset}, {self.size} bytes, "
                f"codec {self.codec}>")


cdef Message new_message(const message_t *message, int64_t position):
    cdef Message made = Message.__new__(Message)
    made.message = message[0]
    made.position = position
    return made


@cython.final
cdef class SetInfo:
    """The result of a walk over a set. With a wrapper, offsets are absolute."""

    def __init__(self):
        raise TypeError("made by walk")

    @property
    def count(self):
        return self.info.count

    @property
    def size(self):
        """Bytes of all messages."""
        return self.info.size

    @property
    def magic(self):
        """The magic of every message; -1 in an empty set."""
        return self.info.magic

    @property
    def codec(self):
        """The codec of the last compressed message; 0 if no message is compressed."""
        return self.info.codec

    @property
    def first_offset(self):
        return self.info.first_offset

    @property
    def last_offset(self):
        return self.info.last_offset


def check(buffer, int64_t position=0):
    """Return the Message at `position`.

    Raises InvalidBatch if lengths, magic, CRC, codec or the sizes of key and value are wrong.
    """
    cdef Py_buffer view
    cdef message_t message
    cdef int finding
    memset(&message, 0, sizeof(message))
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or position > view.len:
            raise IndexError(f"position {position} is outside of {view.len} bytes")
        with nogil:
            finding = message_check(<const uint8_t *>view.buf + position, view.len - position, &message)
    finally:
        PyBuffer_Release(&view)
    if finding != BATCH_OK:
        raise InvalidBatch(finding, position)
    return new_message(&message, position)


def messages(buffer):
    """Return the Messages of a set, each checked; compressed messages are not opened.

    Raises InvalidBatch if one is wrong.
    """
    cdef Py_buffer view
    cdef message_t message
    cdef int64_t position = 0
    cdef int finding = BATCH_OK
    found = []
    memset(&message, 0, sizeof(message))
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            finding = message_check(<const uint8_t *>view.buf + position, view.len - position, &message)
            if finding != BATCH_OK:
                break
            found.append(new_message(&message, position))
            position += message.size
    finally:
        PyBuffer_Release(&view)
    if finding != BATCH_OK:
        raise InvalidBatch(finding, position)
    return found


def walk(buffer, *, Message wrapper=None):
    """Check a whole set, and return its SetInfo. Raises InvalidBatch if a message is wrong or bytes are left over.

    All messages must have the same magic. With `wrapper`, `buffer` has the decompressed inner messages of this message.
    """
    cdef Py_buffer view
    cdef SetInfo found = SetInfo.__new__(SetInfo)
    cdef int finding
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            finding = set_walk(<const uint8_t *>view.buf, view.len, &wrapper.message if wrapper is not None else NULL,
                               &found.info)
    finally:
        PyBuffer_Release(&view)
    if finding != BATCH_OK:
        raise InvalidBatch(finding, found.info.size)
    return found
