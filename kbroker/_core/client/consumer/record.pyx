"""A record as a consumer gets it; see record.pxd."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kbroker._core.client.consumer.chunk cimport fetch_buffer_ref, fetch_buffer_t, fetch_buffer_unref
from kbroker._core.wire.cursor cimport load_u16, load_u32, load_u64
from kbroker._core.wire.error_codes cimport CORRUPT_MESSAGE
from kbroker._core.wire.layout cimport (
    ATTRIBUTE_LOG_APPEND_TIME, BATCH_ATTRIBUTES, BATCH_BASE_OFFSET, BATCH_BASE_TIMESTAMP, BATCH_HEADER_SIZE,
    BATCH_LEADER_EPOCH, BATCH_MAX_TIMESTAMP,
)
from kbroker._core.wire.record cimport take_record
from kbroker._core.wire.records cimport bytes_or_none, read_headers
from kbroker._core.wire.varint cimport put_varlong, varlong_size

from kbroker.errors import BadInput, ClientError, ErrorCode

cdef enum:
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class UnreadableRecords(ClientError, BadInput):
    """Raised when records of a partition cannot be read: they are damaged, or not what the protocol says.

    `offset` is the first offset that cannot be read. The records before it have been handed out. Seeking behind
    `offset` leaves the damaged records out.
    """

    code = ErrorCode.CORRUPT_MESSAGE
    hint = ("seek past the offset to leave the records out, or find out with kbroker verify-log what is on the "
            "broker's disk")

    def __init__(self, str topic, int partition, int64_t offset, str what):
        super().__init__(f"{topic}-{partition}: the records at offset {offset} cannot be read: {what}")
        self.topic = topic
        self.partition = partition
        self.offset = offset


@cython.final
@cython.no_gc
cdef class RecordSource:

    def __init__(self):
        raise TypeError("made by Records")

    def __dealloc__(self):
        if self.buffer != NULL:
            fetch_buffer_unref(self.buffer)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, <void *>self.start, self.size, 1, flags)


cdef RecordSource new_source(str topic, int32_t partition, fetch_buffer_t *buffer, bytes inflated):
    cdef RecordSource source = RecordSource.__new__(RecordSource)
    source.topic = topic
    source.partition = partition
    fetch_buffer_ref(buffer)
    source.buffer = buffer
    source.inflated = inflated
    if inflated is None:
        source.start = buffer.data
        source.size = buffer.capacity
    else:
        source.start = <const uint8_t *>PyBytes_AS_STRING(inflated)
        source.size = len(inflated)
    return source


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class ConsumerRecord:
    """One record. Its fields are made anew each time they are read; it keeps the memory that it was received in."""

    def __init__(self):
        raise TypeError("made by Records")

    @property
    def topic(self):
        return self.source.topic

    @property
    def partition(self):
        return self.source.partition

    @property
    def offset(self):
        return <int64_t>(load_u64(self.header + BATCH_BASE_OFFSET) + <uint64_t>self.record.offset_delta)

    @property
    def timestamp(self):
        """Milliseconds since 1970 (UTC); -1 if the record has no timestamp."""
        if load_u16(self.header + BATCH_ATTRIBUTES) & ATTRIBUTE_LOG_APPEND_TIME:
            return <int64_t>load_u64(self.header + BATCH_MAX_TIMESTAMP)
        return <int64_t>(load_u64(self.header + BATCH_BASE_TIMESTAMP) + <uint64_t>self.record.timestamp_delta)

    @property
    def timestamp_type(self):
        """0: the producer's timestamp (CreateTime); 1: the broker's, when it appended the record (LogAppendTime)."""
        return LOG_APPEND_TIME if load_u16(self.header + BATCH_ATTRIBUTES) & ATTRIBUTE_LOG_APPEND_TIME else CREATE_TIME

    @property
    def leader_epoch(self):
        """The epoch of the leader that appended the record, or None if it is not known."""
        cdef int32_t epoch = <int32_t>load_u32(self.header + BATCH_LEADER_EPOCH)
        return None if epoch < 0 else epoch

    @property
    def key(self):
        return bytes_or_none(self.record.key, self.record.key_size)

    @property
    def value(self):
        return bytes_or_none(self.record.value, self.record.value_size)

    @property
    def value_view(self):
        """The value as a memoryview, without a copy.

        While the memoryview is kept, everything that was fetched together with the record stays in memory.
        """
        cdef Py_ssize_t at
        if self.record.value_size < 0:
            return None
        at = self.record.value - self.source.start
        return PyMemoryView_FromObject(self.source)[at:at + self.record.value_size]

    @property
    def headers(self):
        """The headers: pairs of a name and a value, which is bytes or None."""
        return read_headers(&self.record) if self.record.header_count else ()

    def __copy__(self):
        return self

    def __deepcopy__(self, _):
        return self

    def __reduce__(self):
        """For pickle: keep the header of the record's batch and the encoded record, nothing else that was fetched."""
        cdef Py_ssize_t rest = self.record.stop - self.record.rest
        cdef int64_t body = (1 + varlong_size(self.record.timestamp_delta) + varlong_size(self.record.offset_delta)
                             + rest)
        cdef bytes data = PyBytes_FromStringAndSize(NULL, BATCH_HEADER_SIZE + varlong_size(body) + body)
        cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(data)
        memcpy(p, self.header, BATCH_HEADER_SIZE)
        p += BATCH_HEADER_SIZE
        p += put_varlong(p, body)
        p[0] = self.record.attributes
        p += 1
        p += put_varlong(p, self.record.timestamp_delta)
        p += put_varlong(p, self.record.offset_delta)
        memcpy(p, self.record.rest, <size_t>rest)
        return restored_record, (self.topic, self.partition, data)

    def __repr__(self):
        return (f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
                f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})")


def restored_record(str topic not None, int32_t partition, bytes data not None):
    """Return the ConsumerRecord whose `__reduce__` gave these arguments.

    Raises ValueError if `data` is not a record.
    """
    cdef RecordSource source = RecordSource.__new__(RecordSource)
    cdef ConsumerRecord made
    source.topic = topic
    source.partition = partition
    source.inflated = data
    source.start = <const uint8_t *>PyBytes_AS_STRING(data)
    source.size = len(data)
    made = new_record(source, source.start)
    if source.size < BATCH_HEADER_SIZE or take_record(
            source.start + BATCH_HEADER_SIZE, source.start + source.size, &made.record) != source.start + source.size:
        raise ValueError("these bytes are not a record")
    return made
