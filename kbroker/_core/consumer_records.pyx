"""Records as a consumer gets them. No object per record is made before somebody asks for one, and its fields are made when read.

A batch is inflated by whoever reads it first, and its bytes live as long as a record of it or its iterator does.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker._core.arrays cimport with_room
from kbroker._core.columns cimport RecordColumns
from kbroker._core.consumer_chunk cimport (
    aborted_t, batch_place_t, chunk_free, chunk_index, chunk_new, chunk_number, chunk_t, fetch_buffer_new, fetch_buffer_ref,
    fetch_buffer_t, fetch_buffer_unref, records_before,
)
from kbroker._core.cursor cimport load_u16, load_u32, load_u64
from kbroker._core.layout cimport (
    ATTRIBUTE_CODEC_MASK, ATTRIBUTE_LOG_APPEND_TIME, BATCH_ATTRIBUTES, BATCH_BASE_OFFSET, BATCH_BASE_TIMESTAMP, BATCH_HEADER_SIZE,
    BATCH_LAST_OFFSET_DELTA, BATCH_LEADER_EPOCH, BATCH_MAX_TIMESTAMP,
)
from kbroker._core.receive_buffers cimport buffer_free, buffer_take
from kbroker._core.record cimport MIN_RECORD_SIZE, record_t, take_deltas, take_record
from kbroker._core.record_batch cimport (
    BATCH_BAD_COUNT, BATCH_BAD_RECORD, BATCH_OK, BATCH_TOO_SHORT, batch_header, batch_info_t,
)
from kbroker._core.records cimport bytes_or_none, read_headers

from kbroker._core.record_batch import FINDINGS as _FINDINGS
from kbroker.errors import BadInput, ErrorCode
from kbroker.model import TopicPartition

cdef enum:
    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class UnreadableRecords(BadInput):
    """Records of a partition cannot be read: damaged, or not what the protocol says. `offset` is the first of them.

    What stands before them has been given. Seeking behind `offset` leaves them out.
    """

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = False
    hint = "seek past the offset to leave the records out, or find out with kbroker verify-log what is on the broker's disk"

    def __init__(self, str topic, int partition, int64_t offset, str what):
        super().__init__(f"{topic}-{partition}: the records at offset {offset} cannot be read: {what}")
        self.topic = topic
        self.partition = partition
        self.offset = offset

# --- one record -------------------------------------------------------------------------------------

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
    """One record. Its fields are made when they are read, each time anew; it keeps the memory that it came in."""

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
        """Milliseconds since 1970, -1 for none."""
        if load_u16(self.header + BATCH_ATTRIBUTES) & ATTRIBUTE_LOG_APPEND_TIME:
            return <int64_t>load_u64(self.header + BATCH_MAX_TIMESTAMP)
        return <int64_t>(load_u64(self.header + BATCH_BASE_TIMESTAMP) + <uint64_t>self.record.timestamp_delta)

    @property
    def timestamp_type(self):
        """0: the producer's time, 1: the broker's, when it was appended."""
        return LOG_APPEND_TIME if load_u16(self.header + BATCH_ATTRIBUTES) & ATTRIBUTE_LOG_APPEND_TIME else CREATE_TIME

    @property
    def leader_epoch(self):
        """The epoch of the leader that appended it, or None."""
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
        """The value without a copy; as long as it is kept, so is all that was fetched with it."""
        cdef Py_ssize_t at
        if self.record.value_size < 0:
            return None
        at = self.record.value - self.source.start
        return PyMemoryView_FromObject(self.source)[at:at + self.record.value_size]

    @property
    def headers(self):
        """Pairs of a name and bytes or None."""
        return read_headers(&self.record) if self.record.header_count else ()

    def __repr__(self):
        return (f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
                f"timestamp={self.timestamp}, key={self.key!r}, value={self.value!r}, headers={self.headers!r})")


cdef inline ConsumerRecord new_record(RecordSource source, const uint8_t *header):
    cdef ConsumerRecord made = ConsumerRecord.__new__(ConsumerRecord)
    made.source = source
    made.header = header
    return made

# --- one partition ----------------------------------------------------------------------------------

# Both walk a payload that `source` keeps. -1: it is not right.

cdef int32_t skipped_of(RecordSource source, const payload_t *payload, const batch_info_t *info, int64_t position) noexcept:
    return records_before(payload.records, payload.end - payload.records, info, position)


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
        """Where to go on behind it."""
        return self.chunk.next_offset

    @property
    def leader_epoch(self):
        """Of its last batch; -1 when it has none."""
        return self.chunk.leader_epoch

    @property
    def error(self):
        """UnreadableRecords, when what follows is not right; else None."""
        if self.chunk.finding == BATCH_OK:
            return None
        return self.unreadable(self.chunk.finding, self.chunk.next_offset)

    def __len__(self):
        return self.chunk.record_count

    cdef object unreadable(self, int finding, int64_t offset):
        return UnreadableRecords(self.source.topic, self.source.partition, offset, _FINDINGS[finding][2])

    cdef int settle(self) except -1:
        """Find out how many records of a compressed batch stand before the position."""
        cdef payload_t payload
        cdef batch_info_t info
        cdef batch_place_t *place
        cdef int32_t i
        for i in range(self.chunk.batch_count):
            place = &self.chunk.batches[i]
            if place.skipped >= 0:
                continue
            batch_header(place.data, place.size, &info)
            place.skipped = skipped_of(self.open(i, &payload), &payload, &info, self.chunk.start_offset)
            if place.skipped < 0:
                raise self.unreadable(BATCH_BAD_RECORD, info.base_offset)
        chunk_number(self.chunk)
        return 0

    cdef int32_t batch_of(self, int64_t number) noexcept nogil:
        """The batch of a record by its number, which is one of the chunk's."""
        cdef int32_t low = 0
        cdef int32_t high = self.chunk.batch_count - 1
        cdef int32_t middle
        while low < high:
            middle = (low + high + 1) // 2
            if self.chunk.batches[middle].first <= number:
                low = middle
            else:
                high = middle - 1
        # A batch all of whose records stand before the position has none: the next one has the same number.
        return low

    cdef RecordSource open(self, int32_t batch, payload_t *payload):
        """Where a batch's records are, inflated, and what keeps them."""
        cdef batch_place_t *place = &self.chunk.batches[batch]
        cdef RecordSource source = self.source
        cdef int codec = load_u16(place.data + BATCH_ATTRIBUTES) & ATTRIBUTE_CODEC_MASK
        cdef int64_t offset
        cdef Py_ssize_t at
        payload.header = place.data
        payload.records = place.data + BATCH_HEADER_SIZE
        payload.end = place.data + place.size
        payload.count = place.count
        payload.skipped = max(place.skipped, 0)
        if not codec:
            return source
        offset = max(<int64_t>load_u64(place.data + BATCH_BASE_OFFSET), self.chunk.start_offset)
        at = payload.records - source.start
        try:
            inflated = self.inflate(codec, PyMemoryView_FromObject(source)[at:at + (payload.end - payload.records)])
        except BadInput as error:
            raise UnreadableRecords(source.topic, source.partition, offset, str(error)) from error
        source = new_source(source.topic, source.partition, source.buffer, inflated)
        payload.records = source.start
        payload.end = source.start + source.size
        if payload.count > source.size // MIN_RECORD_SIZE:
            raise self.unreadable(BATCH_BAD_COUNT, offset)
        return source

    cdef int64_t offset_of(self, int64_t number) except -1:
        """The position of a record by its number; of the one behind the last, where to go on."""
        cdef batch_place_t *place
        cdef payload_t payload
        cdef int64_t base_offset
        cdef int64_t left
        cdef int32_t delta
        if number >= self.chunk.record_count:
            return self.chunk.next_offset
        place = &self.chunk.batches[self.batch_of(number)]
        base_offset = <int64_t>load_u64(place.data + BATCH_BASE_OFFSET)
        left = number - place.first + place.skipped
        if place.count == <int64_t><int32_t>load_u32(place.data + BATCH_LAST_OFFSET_DELTA) + 1:
            return base_offset + left
        delta = offset_delta_of(self.open(self.batch_of(number), &payload), &payload, left)
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
    made.settle()
    return made


def read_chunk(str topic not None, int32_t partition, data, inflate, *, int64_t position=0, aborted=None, bint check_crcs=True):
    """The records of one partition as Fetch brings them, from `position` on; the bytes are copied.

    `inflate(codec, data)` returns bytes or raises BadInput. With `aborted`, pairs of a producer id and a first offset, the records of
    these transactions are left out (read_committed). Raises UnreadableRecords only where a compressed first batch cannot be read;
    else see `error`.
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

# --- one poll ---------------------------------------------------------------------------------------

@cython.final
cdef class RecordIterator:
    """Goes over records once. After an error it goes on with the next batch."""

    cdef Records records
    cdef int32_t part
    cdef int32_t batch
    cdef int64_t part_left       # records of the part that are in batches behind this one
    cdef int32_t left            # records of this batch
    cdef RecordSource source
    cdef const uint8_t *header
    cdef const uint8_t *p
    cdef const uint8_t *end

    def __iter__(self):
        return self

    def __next__(self):
        cdef ConsumerRecord made
        while self.left == 0:
            if not self.next_batch():
                self.source = None
                raise StopIteration
        self.left -= 1
        made = new_record(self.source, self.header)
        self.p = take_record(self.p, self.end, &made.record)
        if self.p == NULL:
            self.left = 0
            raise self.unreadable()
        return made

    cdef object unreadable(self):
        return (<Chunk>self.records.chunks[self.part]).unreadable(
            BATCH_BAD_RECORD, <int64_t>load_u64(self.header + BATCH_BASE_OFFSET))

    cdef bint next_batch(self) except -1:
        cdef part_t *part
        cdef Chunk chunk
        cdef payload_t payload
        cdef record_t record
        cdef int64_t number
        cdef int64_t wanted
        cdef int32_t skipped
        while self.part_left == 0:
            if self.part + 1 >= self.records.part_count:
                return False
            self.part += 1
            self.part_left = self.records.parts[self.part].end - self.records.parts[self.part].first
            self.batch = -1
        part = &self.records.parts[self.part]
        chunk = <Chunk>self.records.chunks[self.part]
        number = part.end - self.part_left
        self.batch = chunk.batch_of(number) if self.batch < 0 else self.batch + 1
        wanted = chunk.chunk.batches[self.batch].first + chunk.chunk.batches[self.batch].count
        wanted -= chunk.chunk.batches[self.batch].skipped
        wanted = min(wanted - number, self.part_left)
        self.part_left -= wanted
        self.source = chunk.open(self.batch, &payload)
        self.header = payload.header
        self.p = payload.records
        self.end = payload.end
        skipped = payload.skipped + <int32_t>(number - chunk.chunk.batches[self.batch].first)
        while skipped > 0:
            self.p = take_record(self.p, self.end, &record)
            if self.p == NULL:
                raise self.unreadable()
            skipped -= 1
        self.left = <int32_t>wanted
        return True


@cython.final
cdef class Records:
    """The records of one poll, a sequence of ConsumerRecord: those of a partition in order of their offsets, one partition after the other.

    Safe to read from several threads only by iterating. Reading raises UnreadableRecords where a batch is damaged.
    """

    def __cinit__(self):
        self.chunks = []
        self.near_part = -1

    def __init__(self, chunks=(), max_records=None):
        """Of `chunks`, as `read_chunk` makes them, at most the first `max_records` records."""
        cdef Chunk chunk
        cdef int64_t left = INT64_MAX if max_records is None else max_records
        for chunk in chunks:
            self.add(chunk, 0, min(left, chunk.chunk.record_count))
            left -= min(left, chunk.chunk.record_count)

    def __dealloc__(self):
        free(self.parts)
        free(self.near_records)

    cdef int add(self, Chunk chunk, int64_t first, int64_t end) except -1:
        cdef part_t *grown = <part_t *>with_room(self.parts, self.part_count, &self.part_capacity, sizeof(part_t))
        if grown == NULL:
            raise MemoryError()
        self.parts = grown
        self.chunks.append(chunk)
        grown = &self.parts[self.part_count]
        grown.first = first
        grown.end = end
        grown.before = self.count
        self.part_count += 1
        self.count += end - first
        return 0

    def __len__(self):
        return self.count

    def __iter__(self):
        cdef RecordIterator made = RecordIterator.__new__(RecordIterator)
        made.records = self
        made.part = -1
        return made

    def __getitem__(self, index):
        cdef int64_t number
        cdef int64_t start
        cdef int64_t stop
        cdef int64_t step
        cdef int32_t part
        cdef int32_t batch
        cdef Chunk chunk
        cdef ConsumerRecord made
        if isinstance(index, slice):
            start, stop, step = index.indices(self.count)
            if step != 1:
                raise ValueError("records can only be cut out in steps of 1")
            return self.cut(start, max(start, stop))
        number = index
        if number < 0:
            number += self.count
        if not 0 <= number < self.count:
            raise IndexError(f"record {index} of {self.count}")
        part = self.part_of(number)
        chunk = <Chunk>self.chunks[part]
        number += self.parts[part].first - self.parts[part].before
        batch = chunk.batch_of(number)
        if self.near_part != part or self.near_batch != batch:
            self.load(part, batch)
        made = new_record(self.near_source, self.near_header)
        made.record = self.near_records[number - chunk.chunk.batches[batch].first]
        return made

    cdef int32_t part_of(self, int64_t number) noexcept nogil:
        cdef int32_t low = 0
        cdef int32_t high = self.part_count - 1
        cdef int32_t middle
        while low < high:
            middle = (low + high + 1) // 2
            if self.parts[middle].before <= number:
                low = middle
            else:
                high = middle - 1
        return low

    cdef int load(self, int32_t part, int32_t batch) except -1:
        """Read one batch, for those who ask by index."""
        cdef Chunk chunk = <Chunk>self.chunks[part]
        cdef payload_t payload
        cdef record_t skipped
        cdef record_t *records
        cdef const uint8_t *p
        cdef int32_t i
        cdef RecordSource source = chunk.open(batch, &payload)
        records = <record_t *>malloc(<size_t>payload.count * sizeof(record_t))
        if records == NULL:
            raise MemoryError()
        p = payload.records
        for i in range(payload.count):
            p = take_record(p, payload.end, &skipped if i < payload.skipped else &records[i - payload.skipped])
            if p == NULL:
                free(records)
                raise chunk.unreadable(BATCH_BAD_RECORD, <int64_t>load_u64(payload.header + BATCH_BASE_OFFSET))
        free(self.near_records)
        self.near_records = records
        self.near_source = source
        self.near_header = payload.header
        self.near_part = part
        self.near_batch = batch
        return 0

    cdef Records cut(self, int64_t start, int64_t stop):
        cdef Records made = new_records()
        cdef part_t *part
        cdef int32_t i
        cdef int64_t first
        cdef int64_t end
        for i in range(self.part_count):
            part = &self.parts[i]
            first = max(start - part.before, 0) + part.first
            end = min(stop - part.before + part.first, part.end)
            if first < end:
                made.add(<Chunk>self.chunks[i], first, end)
        return made

    def partitions(self):
        """The partitions that have records here, in the order of their first ones."""
        cdef int32_t i
        cdef Chunk chunk
        found = {}
        for i in range(self.part_count):
            if self.parts[i].end > self.parts[i].first:
                chunk = <Chunk>self.chunks[i]
                found[TopicPartition(chunk.source.topic, chunk.source.partition)] = None
        return list(found)

    def of_partition(self, str topic not None, int32_t partition):
        """The records of one partition."""
        cdef Records made = new_records()
        cdef int32_t i
        cdef Chunk chunk
        for i in range(self.part_count):
            chunk = <Chunk>self.chunks[i]
            if chunk.source.partition == partition and chunk.source.topic == topic:
                made.add(chunk, self.parts[i].first, self.parts[i].end)
        return made

    def next_offsets(self):
        """Per partition the offset to go on with behind these records: what a commit of them says."""
        cdef int32_t i
        cdef Chunk chunk
        found = {}
        for i in range(self.part_count):
            chunk = <Chunk>self.chunks[i]
            found[TopicPartition(chunk.source.topic, chunk.source.partition)] = chunk.offset_of(self.parts[i].end)
        return found

    def columns(self, columns=None):
        """Flat columns of all records (kbroker._core.columns.Columns), or of those named: of what is not, nothing is copied."""
        cdef RecordColumns made = RecordColumns(0, INT64_MAX, columns)
        cdef int32_t i
        for i in range(self.part_count):
            self.collect(made, <Chunk>self.chunks[i], &self.parts[i])
        return made.finish()

    cdef int collect(self, RecordColumns columns, Chunk chunk, part_t *part) except -1:
        cdef payload_t payload
        cdef batch_info_t info
        cdef batch_place_t *place
        cdef int64_t number = part.first
        cdef int32_t batch = chunk.batch_of(number) if part.end > part.first else 0
        cdef int32_t skipped
        cdef int32_t most
        cdef int finding
        cdef RecordSource source
        while number < part.end:
            place = &chunk.chunk.batches[batch]
            source = chunk.open(batch, &payload)
            skipped = payload.skipped + <int32_t>(number - place.first)
            most = <int32_t>min(<int64_t>(place.count - skipped), part.end - number)
            columns.next_partition(source.topic, source.partition)
            with nogil:
                batch_header(place.data, place.size, &info)
                finding = columns.take(payload.records, payload.end - payload.records, &info, skipped, most)
            if finding > BATCH_OK:
                raise chunk.unreadable(finding, info.base_offset)
            columns.raise_for(finding, 0)
            number += most
            batch += 1
        return 0

    def arrow(self, columns=None):
        """A pyarrow.RecordBatch; see kbroker._core.consumer_columns.arrow_batch for its columns. ImportError without pyarrow."""
        from kbroker._core.consumer_columns import arrow_batch
        return arrow_batch(self.columns(columns))

    def numpy(self, columns=None, *, dtypes=None):
        """A dict of NumPy arrays; see kbroker._core.consumer_columns.numpy_arrays for what is in it. ImportError without NumPy."""
        from kbroker._core.consumer_columns import numpy_arrays
        return numpy_arrays(self.columns(columns), dtypes)

    def __repr__(self):
        return f"<Records: {self.count} of {', '.join(map(str, self.partitions())) or 'no partition'}>"


cdef Records new_records():
    return Records.__new__(Records)
