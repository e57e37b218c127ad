"""The records of one poll. The object of a record is made only when somebody asks for the record.

The bytes of a batch stay in memory as long as one of its records or an iterator over it does.
"""

cimport cython
from libc.stdint cimport INT64_MAX, INT64_MIN
from libc.stdlib cimport free, malloc

from kbroker._core.base.arrays cimport with_room
from kbroker._core.client.consumer.batches cimport header_of, payload_t
from kbroker._core.client.consumer.chunk cimport batch_place_t
from kbroker._core.client.consumer.record cimport ConsumerRecord, new_record
from kbroker._core.wire.cursor cimport load_u64
from kbroker._core.wire.layout cimport BATCH_BASE_OFFSET
from kbroker._core.wire.record cimport take_record
from kbroker._core.wire.record_batch cimport BATCH_BAD_RECORD, BATCH_OK, batch_info_t

from kbroker.model import TopicPartition


@cython.final
cdef class RecordIterator:
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
            self.left += 1
            error = self.unreadable()
            self.fail()
            raise error
        self.last_delta = made.record.offset_delta
        return made

    cdef object unreadable(self):
        return (<Chunk>self.records.chunks[self.part]).unreadable(
            BATCH_BAD_RECORD, <int64_t>load_u64(self.header + BATCH_BASE_OFFSET))

    cdef void fail(self) noexcept:
        """Leave this batch, because the rest of it cannot be read.

        If `stays` is set, the next step tries the batch again.
        """
        if self.stays and self.records is not None:
            self.part_left += self.left
            self.batch = -1
        self.left = 0

    cdef void stop(self) noexcept:
        self.records = None
        self.part_left = self.left = 0

    cdef int64_t next_of(self, int32_t part) noexcept:
        """The number of the first record of a part that has not been given, or the end of the part."""
        cdef const part_t *found = &self.records.parts[part]
        if part == self.part:
            return found.end - self.part_left - self.left
        return found.end if part < self.part else found.first

    cdef int64_t position(self) noexcept:
        """The offset behind the record that was given last."""
        return <int64_t>load_u64(self.header + BATCH_BASE_OFFSET) + self.last_delta + 1

    cdef bint next_batch(self) except -1:
        cdef part_t *part
        cdef Chunk chunk
        cdef payload_t payload
        cdef int64_t number
        cdef int64_t wanted
        cdef int32_t skipped
        if self.records is None:
            return False
        while self.part_left == 0:
            if self.part + 1 >= self.records.part_count:
                self.stop()
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
        skipped = <int32_t>(number - chunk.chunk.batches[self.batch].first)
        self.part_left -= wanted
        self.left = <int32_t>wanted
        try:
            self.source = chunk.open(self.batch, &payload)
            if self.records is None:     # stopped by another thread while it was inflated
                return False
            self.header = payload.header
            self.p = payload.records
            self.end = payload.end
            self.last_delta = -1
            self.skip(payload.skipped + skipped)
        except:
            self.fail()
            raise
        return True

    cdef int skip(self, int32_t count) except -1:
        cdef record_t record
        while count > 0:
            self.p = take_record(self.p, self.end, &record)
            if self.p == NULL:
                raise self.unreadable()
            count -= 1
        return 0


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Handout:
    pass


@cython.final
cdef class Records:
    """The records of one poll: a sequence of ConsumerRecord.

    The records of a partition stand in the order of their offsets, one partition after the other. Several threads may
    read one Records only by iterating. Raises UnreadableRecords where a damaged batch is read.
    """

    def __cinit__(self):
        self.chunks = []
        self.near_part = -1

    def __init__(self, chunks=(), max_records=None):
        """Make Records of `chunks` (from `read_chunk`); with `max_records`, only of that many records at most."""
        cdef Chunk chunk
        cdef int64_t left = INT64_MAX if max_records is None else max_records
        for chunk in chunks:
            self.add(chunk, 0, min(left, chunk.chunk.record_count))
            left -= min(left, chunk.chunk.record_count)

    def __dealloc__(self):
        free(self.parts)
        free(self.near_records)

    cdef void note_seen(self) noexcept:
        if self.handout is not None:
            self.handout.is_seen = True
            self.handout = None

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
        self.note_seen()
        return self.count

    def __iter__(self):
        cdef RecordIterator made = RecordIterator.__new__(RecordIterator)
        self.note_seen()
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
        if self.handout is not None:
            self.note_seen()
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
        """Read one batch and keep its records in memory, for access by index."""
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
        """Return the TopicPartitions that have records here, in the order of their first records."""
        cdef int32_t i
        cdef Chunk chunk
        self.note_seen()
        found = {}
        for i in range(self.part_count):
            if self.parts[i].end > self.parts[i].first:
                chunk = <Chunk>self.chunks[i]
                found[TopicPartition(chunk.source.topic, chunk.source.partition)] = None
        return list(found)

    def of_partition(self, str topic not None, int32_t partition):
        """Return the Records of one partition."""
        cdef Records made = new_records()
        cdef int32_t i
        cdef Chunk chunk
        self.note_seen()
        for i in range(self.part_count):
            chunk = <Chunk>self.chunks[i]
            if chunk.source.partition == partition and chunk.source.topic == topic:
                made.add(chunk, self.parts[i].first, self.parts[i].end)
        return made

    def next_offsets(self):
        """Return a dict of TopicPartition to the offset behind these records: the offset to commit for them."""
        cdef int32_t i
        cdef Chunk chunk
        self.note_seen()
        found = {}
        for i in range(self.part_count):
            chunk = <Chunk>self.chunks[i]
            found[TopicPartition(chunk.source.topic, chunk.source.partition)] = chunk.offset_of(self.parts[i].end)
        return found

    def columns(self, columns=None):
        """Return flat columns of all records (kbroker._core.wire.columns.Columns).

        `columns` names the columns to make; None: all. Nothing is copied for the others.
        """
        cdef RecordColumns made = RecordColumns(INT64_MIN, INT64_MAX, columns)
        cdef int32_t i
        self.note_seen()
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
                header_of(&payload, &info)
                finding = columns.add_records(payload.records, payload.end - payload.records, &info, skipped, most)
            if finding > BATCH_OK:
                raise chunk.unreadable(finding, info.base_offset)
            columns.raise_for(finding, 0)
            number += most
            batch += 1
        return 0

    def arrow(self, columns=None):
        """Return a pyarrow.RecordBatch; kbroker._core.client.consumer.columns.arrow_batch describes its columns.

        Raises ImportError if pyarrow is not installed.
        """
        from kbroker._core.client.consumer.columns import arrow_batch
        return arrow_batch(self.columns(columns))

    def numpy(self, columns=None, *, dtypes=None):
        """Return a dict of NumPy arrays, which kbroker._core.client.consumer.columns.numpy_arrays describes."""
        from kbroker._core.client.consumer.columns import numpy_arrays
        return numpy_arrays(self.columns(columns), dtypes)

    def __copy__(self):
        return self

    def __deepcopy__(self, _):
        return self

    def __reduce__(self):
        raise TypeError("the Records of a poll are views of what was fetched and cannot be pickled; list(records) can")

    def __repr__(self):
        return f"<Records: {self.count} of {', '.join(map(str, self.partitions())) or 'no partition'}>"


cdef Records new_records():
    return Records.__new__(Records)
