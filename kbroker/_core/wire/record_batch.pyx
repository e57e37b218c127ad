"""Record batches, magic 2 (https://kafka.apache.org/documentation/#recordbatch).

    batch   = base_offset:i64 length:i32 leader_epoch:i32 magic:i8 crc:u32 attributes:i16 last_offset_delta:i32
              base_timestamp:i64 max_timestamp:i64 producer_id:i64 producer_epoch:i16 base_sequence:i32 count:i32
              record*
    record  = size:varint attributes:i8 timestamp_delta:varlong offset_delta:varint key:bytes value:bytes
              header_count:varint header*
    header  = key:bytes (not null) value:bytes
    bytes   = size:varint (negative: null) data

What is refused, and with which code, follows Apache Kafka 3.9 (ProduceRequest, LogValidator, DefaultRecordBatch,
DefaultRecord) and is stricter in three points: offset deltas must be 0..n-1, numbers must fit their type, and an
unknown codec is UNSUPPORTED_COMPRESSION_TYPE (Kafka: UNKNOWN_SERVER_ERROR).
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from kbroker._core.wire.crc cimport RELEASE_FROM, crc32c
from kbroker._core.wire.cursor cimport load_u16, load_u32, load_u64, store_u16, store_u32, store_u64
from kbroker._core.wire.error_codes cimport (
    CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD,
)
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.record cimport record_t, take_record

from kbroker.errors import BadInput, ErrorCode

# --- the findings -----------------------------------------------------------------------------------

FINDINGS = (
    # name, the protocol's error code, text for people
    ("BATCH_OK", ErrorCode.NONE, "nothing wrong"),
    ("BATCH_TOO_SHORT", ErrorCode.INVALID_RECORD, "fewer bytes than one record batch"),
    ("BATCH_BAD_LENGTH", ErrorCode.CORRUPT_MESSAGE, "length of the batch is below its header's"),
    ("BATCH_BAD_MAGIC", ErrorCode.CORRUPT_MESSAGE, "unknown magic"),
    ("BATCH_BAD_CRC", ErrorCode.CORRUPT_MESSAGE, "CRC does not match"),
    ("BATCH_BAD_CODEC", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "unknown compression codec"),
    ("BATCH_BAD_ATTRIBUTES", ErrorCode.INVALID_RECORD, "clients may not write control records"),
    ("BATCH_BAD_COUNT", ErrorCode.INVALID_RECORD, "record count and offset deltas do not agree"),
    ("BATCH_BAD_RECORD", ErrorCode.INVALID_RECORD, "a record's sizes do not add up"),
    ("BATCH_BAD_PRODUCER", ErrorCode.INVALID_RECORD, "producer id without a sequence number"),
    ("BATCH_NO_KEY", ErrorCode.INVALID_RECORD, "a compacted topic takes no record without a key"),
    ("BATCH_BAD_TIMESTAMP", ErrorCode.INVALID_TIMESTAMP, "timestamp out of the topic's bounds"),
    ("BATCH_TRAILING", ErrorCode.INVALID_RECORD, "more than one batch for a partition"),
    ("BATCH_OLD_MAGIC", ErrorCode.INVALID_RECORD, "only magic 2 is allowed here"),
    ("BATCH_BAD_BASE_OFFSET", ErrorCode.INVALID_RECORD, "base offset of a produced batch must be 0"),
    ("BATCH_NESTED", ErrorCode.INVALID_RECORD, "a compressed message inside a compressed one"),
    ("BATCH_MIXED_MAGIC", ErrorCode.INVALID_RECORD, "messages of two formats in one set"),
    ("BATCH_BAD_WRAPPER", ErrorCode.INVALID_RECORD, "offset of a compressed message is below its last inner one's"),
    ("BATCH_EMPTY", ErrorCode.INVALID_RECORD, "a set without messages"),
    ("BATCH_OLD_ZSTD", ErrorCode.INVALID_RECORD, "zstd in a message of magic 0 or 1"),
    ("BATCH_TOO_LARGE", ErrorCode.MESSAGE_TOO_LARGE, "more bytes than allowed once converted"),
)
assert len(FINDINGS) == BATCH_FINDINGS

#: Bytes of a batch before its records.
HEADER_SIZE = BATCH_HEADER_SIZE

#: The protocol's error code of every finding.
BATCH_ERROR_CODES = {finding: code for finding, (_, code, _) in enumerate(FINDINGS)}

cdef int[BATCH_FINDINGS] error_codes
for _finding, _code in BATCH_ERROR_CODES.items():
    error_codes[<int>_finding] = _code


cdef int batch_error_code(int finding) noexcept nogil:
    return error_codes[finding]


class InvalidBatch(BadInput):
    """A record batch is refused.

    `finding` is the index in FINDINGS, `code` the protocol's error code, `position` where the batch starts in its
    buffer.
    """

    def __init__(self, int finding, int64_t position=0):
        name, code, what = FINDINGS[finding]
        super().__init__(what if position == 0 else f"{what} in the batch at byte {position}")
        self.finding = finding
        self.name = name
        self.code = code
        self.position = position

# --- header -----------------------------------------------------------------------------------------

cdef int batch_header(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil:
    # The checks are made in Kafka's order: whether the batch is whole is checked before its fields.
    cdef int64_t length
    cdef int8_t magic
    if size < LOG_OVERHEAD:
        return BATCH_TOO_SHORT
    length = <int32_t>load_u32(data + BATCH_LENGTH)
    if length < MIN_MESSAGE_LENGTH_V0 or length > INT32_MAX - LOG_OVERHEAD:
        return BATCH_BAD_LENGTH
    if size <= BATCH_MAGIC:
        return BATCH_TOO_SHORT
    magic = <int8_t>data[BATCH_MAGIC]
    if magic < 0 or magic > 2:
        return BATCH_BAD_MAGIC
    if size < LOG_OVERHEAD + length:
        return BATCH_TOO_SHORT
    if magic != 2:
        return BATCH_OLD_MAGIC
    if length < MIN_BATCH_LENGTH:
        return BATCH_BAD_LENGTH
    info.base_offset = <int64_t>load_u64(data + BATCH_BASE_OFFSET)
    info.size = <int32_t>(LOG_OVERHEAD + length)
    info.leader_epoch = <int32_t>load_u32(data + BATCH_LEADER_EPOCH)
    info.attributes = <int16_t>load_u16(data + BATCH_ATTRIBUTES)
    info.last_offset_delta = <int32_t>load_u32(data + BATCH_LAST_OFFSET_DELTA)
    info.base_timestamp = <int64_t>load_u64(data + BATCH_BASE_TIMESTAMP)
    info.max_timestamp = <int64_t>load_u64(data + BATCH_MAX_TIMESTAMP)
    info.producer_id = <int64_t>load_u64(data + BATCH_PRODUCER_ID)
    info.producer_epoch = <int16_t>load_u16(data + BATCH_PRODUCER_EPOCH)
    info.base_sequence = <int32_t>load_u32(data + BATCH_BASE_SEQUENCE)
    info.record_count = <int32_t>load_u32(data + BATCH_RECORD_COUNT)
    return BATCH_OK


cdef uint32_t checksum(const uint8_t *data, int32_t size) noexcept nogil:
    return crc32c(0, data + BATCH_ATTRIBUTES, <size_t>(size - BATCH_ATTRIBUTES))


cdef int batch_verify(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil:
    cdef int finding = batch_header(data, size, info)
    if finding == BATCH_OK and checksum(data, info.size) != load_u32(data + BATCH_CRC):
        return BATCH_BAD_CRC
    return finding


cdef int batch_check(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil:
    cdef int finding = batch_header(data, size, info)
    if finding != BATCH_OK:
        return finding
    if info.base_offset != 0:
        return BATCH_BAD_BASE_OFFSET
    if checksum(data, info.size) != load_u32(data + BATCH_CRC):
        return BATCH_BAD_CRC
    if info.attributes & ATTRIBUTE_CODEC_MASK > 4:
        return BATCH_BAD_CODEC
    if info.record_count <= 0 or info.last_offset_delta != info.record_count - 1:
        return BATCH_BAD_COUNT
    if info.attributes & ATTRIBUTE_CONTROL:
        return BATCH_BAD_ATTRIBUTES
    if info.producer_id >= 0 and info.base_sequence < 0:
        return BATCH_BAD_PRODUCER
    return BATCH_OK


cdef int batch_check_trailing(const uint8_t *data, int64_t size, const batch_info_t *info) noexcept nogil:
    cdef batch_info_t other
    cdef int finding
    if size == info.size:
        return BATCH_OK
    finding = batch_header(data + info.size, size - info.size, &other)
    if finding == BATCH_OK or finding == BATCH_OLD_MAGIC:
        return BATCH_TRAILING
    return BATCH_OK if finding == BATCH_TOO_SHORT else finding

# --- records ----------------------------------------------------------------------------------------

cdef int batch_walk(const uint8_t *records, int64_t size, batch_info_t *info, bint key_required) noexcept nogil:
    # The loop uses local variables only: a store through `info` could alias the bytes that are read.
    cdef const uint8_t *p = records
    cdef const uint8_t *end = records + size
    cdef record_t record
    cdef int32_t count = info.record_count, i
    cdef int64_t base_timestamp = info.base_timestamp, timestamp
    cdef int64_t max_timestamp = -1, min_timestamp = INT64_MAX
    cdef bint log_append_time = info.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0
    if count < 0 or info.last_offset_delta != count - 1:
        return BATCH_BAD_COUNT
    for i in range(count):
        p = take_record(p, end, &record)
        if p == NULL:
            return BATCH_BAD_RECORD
        if record.offset_delta != i:
            return BATCH_BAD_COUNT
        if key_required and record.key_size < 0:
            return BATCH_NO_KEY
        timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>record.timestamp_delta)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        if timestamp < min_timestamp and timestamp != -1:
            min_timestamp = timestamp
    if p != end:
        return BATCH_BAD_RECORD
    if log_append_time:
        max_timestamp = info.max_timestamp if info.max_timestamp > -1 else -1
        min_timestamp = info.max_timestamp if info.max_timestamp != -1 else INT64_MAX
    info.walked_max_timestamp = max_timestamp
    info.walked_min_timestamp = min_timestamp
    return BATCH_OK


cdef int batch_check_timestamps(const batch_info_t *info, bint log_append_time, int64_t now_ms, int64_t before_max_ms,
                                int64_t after_max_ms) noexcept nogil:
    # A batch in which the client has set LogAppendTime is refused, except where Kafka lets it pass: the topic has
    # CreateTime, which then replaces the bit, and the batch has a timestamp.
    if info.attributes & ATTRIBUTE_LOG_APPEND_TIME and (log_append_time or info.max_timestamp == -1):
        return BATCH_BAD_TIMESTAMP
    if log_append_time or (info.walked_min_timestamp == INT64_MAX and info.walked_max_timestamp == -1):
        return BATCH_OK
    # The difference of two timestamps may not fit into 64 bits: saturating subtraction is enough to compare it.
    if saturating_difference(now_ms, info.walked_min_timestamp) > before_max_ms:
        return BATCH_BAD_TIMESTAMP
    if saturating_difference(info.walked_max_timestamp, now_ms) > after_max_ms:
        return BATCH_BAD_TIMESTAMP
    return BATCH_OK


cdef extern from * nogil:
    """
    static inline int64_t saturating_difference(int64_t a, int64_t b) {
        int64_t difference;
        return __builtin_sub_overflow(a, b, &difference) ? (a < b ? INT64_MIN : INT64_MAX) : difference;
    }
    """
    int64_t saturating_difference(int64_t a, int64_t b)

# --- stamps -----------------------------------------------------------------------------------------

cdef void batch_stamp(uint8_t *data, int64_t base_offset, int32_t leader_epoch) noexcept nogil:
    store_u64(data + BATCH_BASE_OFFSET, <uint64_t>base_offset)
    store_u32(data + BATCH_LEADER_EPOCH, <uint32_t>leader_epoch)


cdef void batch_stamp_timestamp(uint8_t *data, int32_t size, bint log_append_time,
                                int64_t max_timestamp) noexcept nogil:
    # As in Kafka, attribute bits without a meaning are dropped only when the attributes are written anew.
    cdef int attributes = load_u16(data + BATCH_ATTRIBUTES)
    cdef int wanted = attributes & ~ATTRIBUTE_LOG_APPEND_TIME | (ATTRIBUTE_LOG_APPEND_TIME if log_append_time else 0)
    if wanted == attributes and <int64_t>load_u64(data + BATCH_MAX_TIMESTAMP) == max_timestamp:
        return
    store_u16(data + BATCH_ATTRIBUTES, <uint16_t>(wanted & ATTRIBUTES_IN_USE))
    store_u64(data + BATCH_MAX_TIMESTAMP, <uint64_t>max_timestamp)
    store_u32(data + BATCH_CRC, checksum(data, size))

# --- for Python -------------------------------------------------------------------------------------

@cython.final
cdef class BatchInfo:
    """The header of one record batch. `position` is where the batch starts in the buffer it was read from."""

    def __init__(self):
        raise TypeError("made by header, verify, check and batches")

    @property
    def base_offset(self):
        return self.info.base_offset

    @property
    def last_offset(self):
        return self.info.base_offset + self.info.last_offset_delta

    @property
    def size(self):
        return self.info.size

    @property
    def leader_epoch(self):
        return self.info.leader_epoch

    @property
    def attributes(self):
        return self.info.attributes

    @property
    def codec(self):
        return self.info.attributes & ATTRIBUTE_CODEC_MASK

    @property
    def is_log_append_time(self):
        return self.info.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0

    @property
    def is_transactional(self):
        return self.info.attributes & ATTRIBUTE_TRANSACTIONAL != 0

    @property
    def is_control(self):
        return self.info.attributes & ATTRIBUTE_CONTROL != 0

    @property
    def last_offset_delta(self):
        return self.info.last_offset_delta

    @property
    def base_timestamp(self):
        return self.info.base_timestamp

    @property
    def max_timestamp(self):
        return self.info.max_timestamp

    @property
    def producer_id(self):
        return self.info.producer_id

    @property
    def producer_epoch(self):
        return self.info.producer_epoch

    @property
    def base_sequence(self):
        return self.info.base_sequence

    @property
    def record_count(self):
        return self.info.record_count

    def __repr__(self):
        return (f"<BatchInfo at {self.position}: offsets {self.base_offset}..{self.last_offset}, "
                f"{self.record_count} records, "
                f"{self.size} bytes, codec {self.codec}>")


cdef BatchInfo new_batch_info(const batch_info_t *info, int64_t position):
    cdef BatchInfo made = BatchInfo.__new__(BatchInfo)
    made.info = info[0]
    made.position = position
    return made


cdef object look(int (*function)(const uint8_t *, int64_t, batch_info_t *) noexcept nogil, object buffer,
                 int64_t position):
    cdef Py_buffer view
    cdef batch_info_t info
    cdef int finding
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or position > view.len:
            raise IndexError(f"position {position} is outside of {view.len} bytes")
        if view.len - position < RELEASE_FROM:
            finding = function(<const uint8_t *>view.buf + position, view.len - position, &info)
        else:
            with nogil:
                finding = function(<const uint8_t *>view.buf + position, view.len - position, &info)
    finally:
        PyBuffer_Release(&view)
    if finding != BATCH_OK:
        raise InvalidBatch(finding, position)
    return new_batch_info(&info, position)


def header(buffer, int64_t position=0):
    """Return the header of the batch at `position`; the CRC is not checked.

    Raises InvalidBatch if the header is wrong.
    """
    return look(batch_header, buffer, position)


def verify(buffer, int64_t position=0):
    """Return the header of the batch at `position`. Raises InvalidBatch if lengths, magic or CRC are wrong."""
    return look(batch_verify, buffer, position)


def check(buffer, int64_t position=0):
    """Do what `verify` does, and raise InvalidBatch also if the header has something that a client may not write."""
    return look(batch_check, buffer, position)


def check_trailing(buffer, BatchInfo info not None):
    """Raises InvalidBatch if another whole batch stands behind a produced one.

    Part of a batch is no error: cut it off.
    """
    cdef Py_buffer view
    cdef int finding
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if info.position + info.info.size > view.len:
            raise IndexError(f"a batch of {info.info.size} bytes is not in {view.len} bytes")
        finding = batch_check_trailing(<const uint8_t *>view.buf + info.position, view.len - info.position, &info.info)
    finally:
        PyBuffer_Release(&view)
    if finding != BATCH_OK:
        raise InvalidBatch(finding, info.position + info.info.size)


def walk(records, BatchInfo info not None, bint key_required=False):
    """Check every record of a batch against its header. Raises InvalidBatch if one is wrong.

    `records` is what stands behind the header, decompressed. Returns the largest timestamp, -1 if no record has one.
    """
    cdef Py_buffer view
    cdef int finding
    PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            finding = batch_walk(<const uint8_t *>view.buf, view.len, &info.info, key_required)
    finally:
        PyBuffer_Release(&view)
    if finding != BATCH_OK:
        raise InvalidBatch(finding, info.position)
    return info.info.walked_max_timestamp


def check_timestamps(BatchInfo info not None, bint log_append_time, int64_t now_ms, int64_t before_max_ms,
                     int64_t after_max_ms):
    """Raise InvalidBatch if timestamps of the records, which `walk` has found, are not within the topic's bounds."""
    cdef int finding = batch_check_timestamps(&info.info, log_append_time, now_ms, before_max_ms, after_max_ms)
    if finding != BATCH_OK:
        raise InvalidBatch(finding, info.position)


def stamp(buffer, int64_t base_offset, int32_t leader_epoch, int64_t position=0):
    """Write base offset and leader epoch, which the CRC does not cover, into the batch at `position` of a buffer."""
    cdef Py_buffer view
    cdef batch_info_t info
    hold_batch(buffer, position, &view, &info)
    batch_stamp(<uint8_t *>view.buf + position, base_offset, leader_epoch)
    PyBuffer_Release(&view)


def stamp_timestamp(buffer, bint log_append_time, int64_t max_timestamp, int64_t position=0):
    """Write timestamp type, max timestamp and the new CRC into the batch at `position` of a writable buffer."""
    cdef Py_buffer view
    cdef batch_info_t info
    hold_batch(buffer, position, &view, &info)
    with nogil:
        batch_stamp_timestamp(<uint8_t *>view.buf + position, info.size, log_append_time, max_timestamp)
    PyBuffer_Release(&view)


cdef int hold_batch(buffer, int64_t position, Py_buffer *view, batch_info_t *info) except -1:
    """Read the header of the batch at `position` of a writable buffer. The caller releases the view.

    Raises IndexError and InvalidBatch; then there is nothing to release.
    """
    cdef int finding
    PyObject_GetBuffer(buffer, view, PyBUF_WRITABLE)
    try:
        if position < 0 or position > view.len:
            raise IndexError(f"position {position} is outside of {view.len} bytes")
        finding = batch_header(<const uint8_t *>view.buf + position, view.len - position, info)
        if finding != BATCH_OK:
            raise InvalidBatch(finding, position)
    except BaseException:
        PyBuffer_Release(view)
        raise
    return 0


def batches(buffer, int64_t position=0):
    """Return the headers of the batches in a buffer; CRCs are not checked. A batch that is cut short ends the list.

    Raises InvalidBatch if a header is wrong.
    """
    cdef Py_buffer view
    cdef batch_info_t info
    cdef int finding = BATCH_OK
    found = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or position > view.len:
            raise IndexError(f"position {position} is outside of {view.len} bytes")
        while position < view.len:
            finding = batch_header(<const uint8_t *>view.buf + position, view.len - position, &info)
            if finding != BATCH_OK:
                break
            found.append(new_batch_info(&info, position))
            position += info.size
    finally:
        PyBuffer_Release(&view)
    if finding != BATCH_OK and finding != BATCH_TOO_SHORT:
        raise InvalidBatch(finding, position)
    return found
