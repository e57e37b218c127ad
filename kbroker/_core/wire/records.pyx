"""Decoding the records of a batch into Python objects, and encoding them: for internal topics, commands and tests.

record_batch.pyx has the grammar. The broker makes no object per record when it appends and reads; columns.pyx is for
reading many records.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kbroker._core.wire.crc cimport crc32c
from kbroker._core.wire.cursor cimport store_u16, store_u32, store_u64, writer_free, writer_init, writer_reserve
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.record cimport record_t, take_fields
from kbroker._core.wire.record_batch cimport BATCH_BAD_COUNT, BATCH_BAD_RECORD, BATCH_OK, BatchInfo
from kbroker._core.wire.varint cimport bytes_size, put_bytes, put_varlong, take_bytes, varlong_size

from kbroker._core.wire.record_batch import InvalidBatch


@cython.final
cdef class Record:
    """One record. `key` and `value` are bytes or None; `headers` are pairs of a name and a value (bytes or None)."""

    cdef readonly int64_t offset
    cdef readonly int64_t timestamp
    cdef readonly object key
    cdef readonly object value
    cdef readonly tuple headers

    def __init__(self, int64_t offset, int64_t timestamp, key, value, headers=()):
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = tuple(headers)

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return fields_of(self) == fields_of(other)

    def __hash__(self):
        return hash(fields_of(self))

    def __repr__(self):
        return "Record(offset=%r, timestamp=%r, key=%r, value=%r, headers=%r)" % fields_of(self)


cdef tuple fields_of(Record record):
    return record.offset, record.timestamp, record.key, record.value, record.headers

# --- reading ----------------------------------------------------------------------------------------

cdef object bytes_or_none(const uint8_t *data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *>data, size)


cdef tuple read_headers(const record_t *record):
    """Return the headers as pairs of a name and a value (bytes or None), or None if they do not fill the record."""
    cdef const uint8_t *p = record.headers
    cdef const uint8_t *data = NULL
    cdef int32_t left = record.header_count
    cdef int32_t size = 0
    headers = []
    while left > 0:
        p = take_bytes(p, record.stop, &data, &size)
        if p > record.stop or size < 0:
            return None
        name = data[:size].decode("utf-8", "surrogateescape")
        p = take_bytes(p, record.stop, &data, &size)
        if p > record.stop:
            return None
        headers.append((name, bytes_or_none(data, size)))
        left -= 1
    return tuple(headers) if p == record.stop else None


cdef int read_records(const uint8_t *p, const uint8_t *end, BatchInfo batch, list records) except -1:
    # Offset deltas may have gaps, as compaction removes records from a batch.
    cdef record_t found
    cdef int32_t left = batch.info.record_count
    cdef bint log_append_time = batch.info.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0
    cdef Record record
    if left < 0:
        return BATCH_BAD_COUNT
    while left > 0:
        p = take_fields(p, end, &found)
        if p == NULL:
            return BATCH_BAD_RECORD
        record = Record.__new__(Record)
        record.offset = <int64_t>(<uint64_t>batch.info.base_offset + <uint64_t>found.offset_delta)
        if log_append_time:
            record.timestamp = batch.info.max_timestamp
        else:
            record.timestamp = <int64_t>(<uint64_t>batch.info.base_timestamp + <uint64_t>found.timestamp_delta)
        record.key = bytes_or_none(found.key, found.key_size)
        record.value = bytes_or_none(found.value, found.value_size)
        record.headers = ()
        if found.header_count:
            record.headers = read_headers(&found)
            if record.headers is None:
                return BATCH_BAD_RECORD
        elif found.headers != found.stop:
            return BATCH_BAD_RECORD
        records.append(record)
        left -= 1
    return BATCH_OK if p == end else BATCH_BAD_RECORD


def decode_records(payload, BatchInfo batch not None):
    """Return the records of a batch as a list of Record. `payload` is what stands behind its header, decompressed.

    Raises InvalidBatch if the records are malformed.
    """
    cdef Py_buffer view
    cdef int finding
    records = []
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        finding = read_records(<const uint8_t *>view.buf, <const uint8_t *>view.buf + view.len, batch, records)
    finally:
        PyBuffer_Release(&view)
    if finding != BATCH_OK:
        raise InvalidBatch(finding, batch.position)
    return records

# --- writing ----------------------------------------------------------------------------------------

@cython.final
cdef class RecordsBuilder:
    """Encodes records one behind the other. Offset deltas are 0, 1, 2... unless given. For one thread at a time."""

    def __cinit__(self):
        writer_init(&self.out)
        self.last_offset_delta = -1
        self.base_timestamp = -1
        self.max_timestamp = -1

    def __dealloc__(self):
        writer_free(&self.out)

    @property
    def size(self):
        """The size in bytes of the records that were added so far, without a batch header."""
        return self.out.size

    def append(self, int64_t timestamp, key, value, headers=(), offset_delta=None):
        """Encode one record and return `size`.

        Raises OverflowError if a batch cannot hold the record, and ValueError if `offset_delta` is not above the last
        one; nothing was added then.
        """
        cdef Py_buffer key_view
        cdef Py_buffer value_view
        cdef int32_t delta = self.last_offset_delta + 1 if offset_delta is None else offset_delta
        if delta <= self.last_offset_delta:
            raise ValueError(f"offset delta {delta} behind {self.last_offset_delta}")
        encoded = [(name.encode("utf-8", "surrogateescape"), None if content is None else bytes(content))
                   for name, content in headers] if headers else []
        memset(&key_view, 0, sizeof(key_view))
        memset(&value_view, 0, sizeof(value_view))
        key_view.len = value_view.len = -1
        try:
            if key is not None:
                PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
            if value is not None:
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
            self.write(timestamp, delta, &key_view, &value_view, encoded)
        finally:
            PyBuffer_Release(&value_view)
            PyBuffer_Release(&key_view)
        return self.out.size

    cdef int write(self, int64_t timestamp, int32_t delta, Py_buffer *key, Py_buffer *value, list headers) except -1:
        cdef int64_t base = timestamp if self.count == 0 else self.base_timestamp
        cdef int64_t timestamp_delta = <int64_t>(<uint64_t>timestamp - <uint64_t>base)
        cdef int64_t body = (1 + varlong_size(timestamp_delta) + varlong_size(delta) + bytes_size(key.len)
                             + bytes_size(value.len))
        cdef uint8_t *p
        body += varlong_size(len(headers))
        for name, content in headers:
            body += bytes_size(len(name)) + bytes_size(-1 if content is None else len(content))
        if <int64_t>self.out.size + body + 5 > INT32_MAX - BATCH_HEADER_SIZE:
            raise OverflowError(f"{body} bytes more than a batch of 2 GiB can hold")
        p = writer_reserve(&self.out, <size_t>(varlong_size(body) + body))
        if p == NULL:
            raise MemoryError()
        p += put_varlong(p, body)
        p[0] = 0
        p += 1
        p += put_varlong(p, timestamp_delta)
        p += put_varlong(p, delta)
        p = put_bytes(p, <const uint8_t *>key.buf, key.len)
        p = put_bytes(p, <const uint8_t *>value.buf, value.len)
        p += put_varlong(p, len(headers))
        for name, content in headers:
            p = put_bytes(p, <const uint8_t *>PyBytes_AS_STRING(name), len(name))
            if content is None:
                p = put_bytes(p, NULL, -1)
            else:
                p = put_bytes(p, <const uint8_t *>PyBytes_AS_STRING(content), len(content))
        self.base_timestamp = base
        if self.count == 0 or timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        self.last_offset_delta = delta
        return 0

    def records(self):
        """Return the encoded records, as they stand behind the header of a batch or go into a compressor."""
        return PyBytes_FromStringAndSize(<const char *>self.out.data, <Py_ssize_t>self.out.size)

    def build(self, payload=None, int attributes=0, int64_t base_offset=0, int32_t leader_epoch=-1,
              int64_t producer_id=-1, int producer_epoch=-1, int32_t base_sequence=-1, max_timestamp=None):
        """Return the whole batch. `payload` has the compressed records if `attributes` has codec bits."""
        cdef Py_buffer view
        if payload is None:
            return self.assemble(self.out.data, <int64_t>self.out.size, attributes, base_offset, leader_epoch,
                                 producer_id, producer_epoch, base_sequence, max_timestamp)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            return self.assemble(<const uint8_t *>view.buf, view.len, attributes, base_offset, leader_epoch,
                                 producer_id, producer_epoch, base_sequence, max_timestamp)
        finally:
            PyBuffer_Release(&view)

    cdef bytes assemble(self, const uint8_t *payload, int64_t size, int attributes, int64_t base_offset,
                        int32_t leader_epoch, int64_t producer_id, int producer_epoch, int32_t base_sequence,
                        max_timestamp):
        cdef bytes batch
        cdef uint8_t *p
        cdef int64_t newest = self.max_timestamp if max_timestamp is None else max_timestamp
        if size > INT32_MAX - BATCH_HEADER_SIZE:
            raise OverflowError(f"{size} bytes more than a batch of 2 GiB can hold")
        batch = PyBytes_FromStringAndSize(NULL, BATCH_HEADER_SIZE + size)
        p = <uint8_t *>PyBytes_AS_STRING(batch)
        store_u64(p + BATCH_BASE_OFFSET, <uint64_t>base_offset)
        store_u32(p + BATCH_LENGTH, <uint32_t>(BATCH_HEADER_SIZE - LOG_OVERHEAD + size))
        store_u32(p + BATCH_LEADER_EPOCH, <uint32_t>leader_epoch)
        p[BATCH_MAGIC] = 2
        store_u16(p + BATCH_ATTRIBUTES, <uint16_t>attributes)
        store_u32(p + BATCH_LAST_OFFSET_DELTA, <uint32_t>self.last_offset_delta)
        store_u64(p + BATCH_BASE_TIMESTAMP, <uint64_t>self.base_timestamp)
        store_u64(p + BATCH_MAX_TIMESTAMP, <uint64_t>newest)
        store_u64(p + BATCH_PRODUCER_ID, <uint64_t>producer_id)
        store_u16(p + BATCH_PRODUCER_EPOCH, <uint16_t>producer_epoch)
        store_u32(p + BATCH_BASE_SEQUENCE, <uint32_t>base_sequence)
        store_u32(p + BATCH_RECORD_COUNT, <uint32_t>self.count)
        if size:
            memcpy(p + BATCH_HEADER_SIZE, payload, <size_t>size)
        store_u32(p + BATCH_CRC, crc32c(0, p + BATCH_ATTRIBUTES, <size_t>(BATCH_HEADER_SIZE + size - BATCH_ATTRIBUTES)))
        return batch
