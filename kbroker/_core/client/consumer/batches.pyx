"""The batches of one partition, for the code that reads their records; see batches.pxd.

A compressed batch is decompressed when its records are read, not before.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport INT32_MAX
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.base.receive_buffers cimport buffer_free, buffer_take
from kbroker._core.client.consumer.chunk cimport (
    aborted_t, batch_place_t, chunk_cut, chunk_free, chunk_index, chunk_new, chunk_number, fetch_buffer_new,
    fetch_buffer_t, fetch_buffer_unref, records_before,
)
from kbroker._core.client.consumer.messages cimport batch_of_set
from kbroker._core.client.consumer.record cimport new_source
from kbroker._core.wire.cursor cimport load_u16, load_u32, load_u64, writer_free, writer_init, writer_t
from kbroker._core.wire.layout cimport (
    ATTRIBUTE_CODEC_MASK, BATCH_ATTRIBUTES, BATCH_BASE_OFFSET, BATCH_HEADER_SIZE, BATCH_LAST_OFFSET_DELTA,
    BATCH_LEADER_EPOCH, BATCH_RECORD_COUNT, MESSAGE_MAGIC,
)
from kbroker._core.wire.message_set cimport message_read, message_t
from kbroker._core.wire.record cimport MIN_RECORD_SIZE, record_t, take_deltas
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_COUNT, BATCH_BAD_RECORD, BATCH_OK, BATCH_TOO_SHORT, OUT_OF_MEMORY, batch_header,
)

from kbroker._core.client.consumer.record import UnreadableRecords
from kbroker._core.wire.record_batch import FINDINGS as _FINDINGS
from kbroker.errors import BadInput


# skipped_of and offset_delta_of walk over the records of a payload, whose memory `source` keeps. Both return -1 if the
# records are malformed.

cdef int32_t skipped_of(RecordSource source, const payload_t *payload, const batch_info_t *info,
                        int64_t position) noexcept:
    return records_before(payload.records, payload.end - payload.records, info, position)


cdef void header_of(const payload_t *payload, batch_info_t *info) noexcept nogil:
    # The batch's length was checked when the chunk was indexed.
    batch_header(payload.header, INT32_MAX, info)


cdef int32_t offset_delta_of(RecordSource source, const payload_t *payload, int64_t number) noexcept:
    cdef record_t record
    cdef const uint8_t *p = payload.records
    record.offset_delta = 0
    while number >= 0:
        p = take_deltas(p, payload.end, &record)
        if p == NULL:
            return -1
        number -= 1
    return record.offset_delta


@cython.final
@cython.no_gc
cdef class Chunk:

    def __init__(self):
        raise TypeError("made by read_chunk")

    def __dealloc__(self):
        if self.chunk != NULL:
            chunk_free(self.chunk)

    @property
    def topic(self):
        return self.source.topic

    @property
    def partition(self):
        return self.source.partition

    @property
    def next_offset(self):
        """The offset of the next record behind this chunk."""
        return self.chunk.next_offset

    @property
    def leader_epoch(self):
        """The leader epoch of the chunk's last batch; -1 if it is not known."""
        return self.chunk.leader_epoch

    @property
    def error(self):
        """An UnreadableRecords if the bytes behind the chunk's last batch cannot be read, else None."""
        if self.failure is not None or self.chunk.finding == BATCH_OK:
            return self.failure
        return self.unreadable(self.chunk.finding, self.chunk.next_offset)

    def __len__(self):
        return self.chunk.record_count

    cdef object unreadable(self, int finding, int64_t offset):
        made = UnreadableRecords(self.source.topic, self.source.partition, offset, _FINDINGS[finding][2])
        if finding == BATCH_TOO_SHORT:
            made.hint = ("raise max.partition.fetch.bytes: before Kafka 0.10.1 a broker sends no more, be it part of a "
                         "message")
        return made

    cdef int settle(self) except -1:
        """Number all records of the chunk, without those before its position.

        How many records of a compressed batch lie before the position is known only once it is decompressed: this is
        done here. A batch that cannot be read ends the chunk before it; `failure` says why.
        """
        cdef int32_t i
        for i in range(self.chunk.batch_count):
            if self.chunk.batches[i].skipped >= 0:
                continue
            try:
                self.settle_batch(i)
            except UnreadableRecords as error:
                chunk_cut(self.chunk, i)
                self.failure = error
                break
        chunk_number(self.chunk)
        return 0

    cdef int settle_batch(self, int32_t batch) except -1:
        cdef batch_place_t *place = &self.chunk.batches[batch]
        cdef payload_t payload
        cdef batch_info_t info
        cdef RecordSource source = self.open(batch, &payload)
        header_of(&payload, &info)
        place.count = info.record_count
        place.skipped = skipped_of(source, &payload, &info, self.chunk.start_offset)
        if place.skipped < 0:
            raise self.unreadable(BATCH_BAD_RECORD, info.base_offset)
        return 0

    cdef int32_t epoch_before(self, int64_t number) noexcept nogil:
        """The leader epoch of the record before record `number`; -1 if it is not known."""
        cdef batch_place_t *place
        if number >= self.chunk.record_count:
            return self.chunk.leader_epoch
        if number == 0:
            return -1
        place = &self.chunk.batches[self.batch_of(number - 1)]
        return <int32_t>load_u32(place.data + BATCH_LEADER_EPOCH) if place.data[MESSAGE_MAGIC] == 2 else -1

    cdef int32_t batch_of(self, int64_t number) noexcept nogil:
        """The index of the batch that holds record `number` of the chunk."""
        cdef int32_t low = 0
        cdef int32_t high = self.chunk.batch_count - 1
        cdef int32_t middle
        while low < high:
            middle = (low + high + 1) // 2
            if self.chunk.batches[middle].first <= number:
                low = middle
            else:
                high = middle - 1
        # A batch whose records all stand before the position gives none: the next batch begins with the same number.
        return low

    cdef RecordSource open(self, int32_t batch, payload_t *payload):
        """Fill `payload` with the decompressed records of a batch, and return the RecordSource that keeps their memory.

        Raises UnreadableRecords if the batch cannot be decompressed, or has more records than its bytes can hold.
        """
        cdef batch_place_t *place = &self.chunk.batches[batch]
        cdef RecordSource source = self.source
        cdef int codec
        cdef int64_t offset
        if batch == self.kept_batch:
            payload[0] = self.kept_payload
            return self.kept
        if place.data[MESSAGE_MAGIC] < 2:
            return self.open_messages(place, payload)
        codec = load_u16(place.data + BATCH_ATTRIBUTES) & ATTRIBUTE_CODEC_MASK
        payload.header = place.data
        payload.records = place.data + BATCH_HEADER_SIZE
        payload.end = place.data + place.size
        payload.count = place.count
        payload.skipped = max(place.skipped, 0)
        if not codec:
            return source
        offset = max(<int64_t>load_u64(place.data + BATCH_BASE_OFFSET), self.chunk.start_offset)
        inflated = self.inflated(codec, payload.records, payload.end - payload.records, 2, offset)
        source = new_source(source.topic, source.partition, source.buffer, inflated)
        payload.records = source.start
        payload.end = source.start + source.size
        if payload.count > source.size // MIN_RECORD_SIZE:
            raise self.unreadable(BATCH_BAD_COUNT, offset)
        return source

    cdef RecordSource open_messages(self, const batch_place_t *place, payload_t *payload):
        """Do what `open` does, for messages of magic 0 or 1, which are converted to one batch of magic 2."""
        cdef RecordSource source = self.source
        cdef const uint8_t *data = place.data
        cdef int64_t size = place.size
        cdef message_t message
        cdef writer_t out
        cdef int finding = message_read(data, size, &message)
        cdef int codec = message.attributes & ATTRIBUTE_CODEC_MASK
        cdef bytes inner = None
        writer_init(&out)
        try:
            if codec:
                inner = self.inflated(codec, data + message.value_position, message.value_size, message.magic,
                                      max(message.offset, self.chunk.start_offset))
                data = <const uint8_t *>PyBytes_AS_STRING(inner)
                size = len(inner)
            with nogil:
                finding = batch_of_set(data, size, &message if codec else NULL, &out)
            if finding == OUT_OF_MEMORY:
                raise MemoryError()
            if finding != BATCH_OK:
                raise self.unreadable(finding, message.offset)
            made = PyBytes_FromStringAndSize(<char *>out.data, <Py_ssize_t>out.size)
        finally:
            writer_free(&out)
        source = new_source(source.topic, source.partition, source.buffer, made)
        payload.header = source.start
        payload.records = source.start + BATCH_HEADER_SIZE
        payload.end = source.start + source.size
        payload.count = <int32_t>load_u32(payload.header + BATCH_RECORD_COUNT)
        payload.skipped = max(place.skipped, 0)
        return source

    cdef object inflated(self, int codec, const uint8_t *data, int64_t size, int magic, int64_t offset):
        cdef Py_ssize_t at = data - self.source.start
        try:
            return self.inflate(codec, PyMemoryView_FromObject(self.source)[at:at + size], magic)
        except BadInput as error:
            raise UnreadableRecords(self.source.topic, self.source.partition, offset, str(error)) from error

    cdef int keep(self, int64_t number) except -1:
        """Keep the batch of record `number` decompressed, because more of its records will be read soon.

        With -1, or the number behind the last record, no batch is kept.
        """
        cdef int32_t batch = self.batch_of(number) if 0 <= number < self.chunk.record_count else -1
        cdef payload_t payload
        if batch == self.kept_batch:
            return 0
        self.kept_batch = -1
        self.kept = None
        if batch >= 0:
            source = self.open(batch, &payload)
            if source is not self.source:
                self.kept_batch = batch
                self.kept = source
                self.kept_payload = payload
        return 0

    cdef int64_t offset_of(self, int64_t number) except -1:
        """The offset of record `number`, but not below the chunk's position; behind the last record, `next_offset`."""
        cdef batch_place_t *place
        cdef payload_t payload
        cdef RecordSource source
        cdef int64_t base_offset
        cdef int64_t left
        cdef int32_t delta
        if number >= self.chunk.record_count:
            return self.chunk.next_offset
        place = &self.chunk.batches[self.batch_of(number)]
        left = number - place.first + place.skipped
        if (place.data[MESSAGE_MAGIC] == 2
                and place.count == <int64_t><int32_t>load_u32(place.data + BATCH_LAST_OFFSET_DELTA) + 1):
            return <int64_t>load_u64(place.data + BATCH_BASE_OFFSET) + left
        source = self.open(self.batch_of(number), &payload)
        base_offset = <int64_t>load_u64(payload.header + BATCH_BASE_OFFSET)
        delta = offset_delta_of(source, &payload, left)
        if delta < 0:
            raise self.unreadable(BATCH_BAD_RECORD, base_offset)
        return max(base_offset + delta, self.chunk.start_offset)


cdef Chunk new_chunk(chunk_t *chunk, str topic, int32_t partition, object inflate):
    cdef Chunk made
    try:
        made = Chunk.__new__(Chunk)
    except MemoryError:
        chunk_free(chunk)
        raise
    made.chunk = chunk
    made.source = new_source(topic, partition, chunk.buffer, None)
    made.inflate = inflate
    made.kept_batch = -1
    made.settle()
    return made


def read_chunk(str topic not None, int32_t partition, data, inflate, *, int64_t position=0, aborted=None,
               bint check_crcs=True):
    """Return a Chunk of one partition's records as a Fetch response has them, from offset `position` on; copy `data`.

    `inflate(codec, data, magic)` returns bytes or raises BadInput. With `aborted`, pairs of a producer id and a first
    offset, the records of these transactions are left out (read_committed). If some of the bytes cannot be read, the
    Chunk ends before them, and its `error` says why.
    """
    cdef Py_buffer view
    cdef fetch_buffer_t *buffer
    cdef chunk_t *chunk
    cdef aborted_t *transactions = NULL
    cdef int32_t count = 0
    cdef int64_t capacity = 0
    cdef uint8_t *copy
    cdef int failed
    listed = list(aborted or ())
    transactions = <aborted_t *>malloc(sizeof(aborted_t) * max(len(listed), 1))
    if transactions == NULL:
        raise MemoryError()
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        for producer_id, first_offset in listed:
            transactions[count].producer_id = producer_id
            transactions[count].first_offset = first_offset
            count += 1
        copy = buffer_take(max(view.len, 1), &capacity)
        if copy == NULL:
            raise MemoryError()
        memcpy(copy, view.buf, <size_t>view.len)
        buffer = fetch_buffer_new(copy, capacity)
        if buffer == NULL:
            buffer_free(copy, capacity)
            raise MemoryError()
        chunk = chunk_new(buffer, position)
        fetch_buffer_unref(buffer)
        if chunk == NULL:
            raise MemoryError()
        with nogil:
            failed = chunk_index(chunk, copy, view.len, transactions if count else NULL, count, check_crcs)
        if failed:
            chunk_free(chunk)
            raise MemoryError()
    finally:
        PyBuffer_Release(&view)
        free(transactions)
    return new_chunk(chunk, topic, partition, inflate)
