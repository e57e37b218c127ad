"""Records of many batches as flat columns, without an object per record.

The layout is Arrow's, so `pyarrow.Array.from_buffers` takes the buffers as they are: numbers little-endian,
variable-size data behind n + 1 int32 offsets, validity as a bitmap (bit set: not null, least significant first).
Nothing of Arrow is imported.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBUF_SIMPLE,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from kbroker._core.wire.cursor cimport writer_free, writer_init, writer_reserve, writer_t
from kbroker._core.wire.layout cimport ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME
from kbroker._core.wire.record cimport MIN_HEADER_SIZE, MIN_RECORD_SIZE, record_t, take_fields
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_COUNT, BATCH_BAD_RECORD, BATCH_OK, OUT_OF_MEMORY, BatchInfo, batch_info_t,
)
from kbroker._core.wire.varint cimport take_bytes

from kbroker._core.wire.record_batch import InvalidBatch

cdef uint8_t[8] nothing

#: The columns that can be asked for.
COLUMN_NAMES = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


cdef int columns_named(names) except -1:
    cdef int wanted = 0
    if names is None:
        return ALL_COLUMNS
    for name in names:
        if name not in COLUMN_NAMES:
            raise ValueError(f"no column {name!r}: there are {', '.join(COLUMN_NAMES)}")
        wanted |= 1 << <int>COLUMN_NAMES.index(name)
    return wanted


@cython.final
cdef class FlatBuffer:
    def __init__(self):
        raise TypeError("made by RecordColumns.finish")

    def __dealloc__(self):
        writer_free(&self.out)

    def __len__(self):
        return self.shape[0]

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("columns are read-only")
        view.buf = self.out.data if self.out.data != NULL else nothing
        view.obj = self
        view.len = self.shape[0] * self.item_size
        view.itemsize = self.item_size
        view.readonly = 1
        view.ndim = 1
        view.format = <char *>self.format if flags & PyBUF_FORMAT else NULL
        view.shape = self.shape if flags & PyBUF_ND else NULL
        view.strides = &self.item_size if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL


cdef FlatBuffer flat(writer_t *out, bytes format, Py_ssize_t item_size):
    """Make a FlatBuffer of the memory of `out`, which is empty afterwards."""
    cdef FlatBuffer made = FlatBuffer.__new__(FlatBuffer)
    made.out = out[0]
    made.format = format
    made.item_size = item_size
    made.shape[0] = <Py_ssize_t>out.size // item_size
    writer_init(out)
    return made


cdef void binary_init(binary_t *column) noexcept nogil:
    writer_init(&column.data)
    writer_init(&column.offsets)
    writer_init(&column.validity)
    column.rows = 0
    column.nulls = 0


cdef void binary_free(binary_t *column) noexcept nogil:
    writer_free(&column.data)
    writer_free(&column.offsets)
    writer_free(&column.validity)


cdef bint room(writer_t *out, size_t size) noexcept nogil:
    """Make room for `size` more bytes, without changing `out.size`. Return False if memory is out."""
    if writer_reserve(out, size + 1) == NULL:    # one byte more, so that there is memory even for size 0
        return False
    out.size -= size + 1
    return True


cdef bint binary_room(binary_t *column, int64_t rows, int64_t size) noexcept nogil:
    """Make room for `rows` more rows of `size` bytes together, and clear their bits of `validity`.

    False: memory is out.
    """
    cdef size_t bitmap_size = <size_t>(column.rows + 7) // 8, bitmap_end = <size_t>(column.rows + rows + 7) // 8
    if column.offsets.size == 0:
        if not room(&column.offsets, 4):
            return False
        memset(column.offsets.data, 0, 4)
        column.offsets.size = 4
    column.validity.size = bitmap_size
    if not (room(&column.data, <size_t>size) and room(&column.offsets, <size_t>rows * 4)
            and room(&column.validity, bitmap_end - bitmap_size)):
        return False
    memset(column.validity.data + bitmap_size, 0, bitmap_end - bitmap_size)
    return True


cdef inline void binary_put(binary_t *column, const uint8_t *data, int32_t size) noexcept nogil:
    """Add a row, for which `binary_room` has made room. Size -1 is null."""
    cdef int32_t end
    if size >= 0:
        memcpy(column.data.data + column.data.size, data, <size_t>size)
        column.data.size += <size_t>size
        column.validity.data[column.rows >> 3] |= 1 << (column.rows & 7)
    else:
        column.nulls += 1
    column.rows += 1
    end = <int32_t>column.data.size
    memcpy(column.offsets.data + column.offsets.size, &end, 4)
    column.offsets.size += 4


cdef void binary_cut(binary_t *column, int64_t rows, size_t data_size, int64_t nulls) noexcept nogil:
    """Undo what was added to a column since it had `rows` rows, `data_size` bytes and `nulls` nulls."""
    cdef int64_t row
    for row in range(rows, column.rows):
        column.validity.data[row >> 3] &= ~(1 << (row & 7))
    column.rows = rows
    column.data.size = data_size
    column.offsets.size = <size_t>(rows + 1) * 4 if column.offsets.size else 0
    column.nulls = nulls


@cython.final
cdef class BinaryColumn:
    def __init__(self):
        raise TypeError("made by RecordColumns.finish")

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, int64_t row):
        cdef const int32_t *offsets = <const int32_t *>self.offsets.out.data
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        if not self.validity.out.data[row >> 3] >> (row & 7) & 1:
            return None
        return (<const char *>self.data.out.data)[offsets[row]:offsets[row + 1]] if offsets[row + 1] > offsets[row] \
            else b""

    cdef int32_t fixed_size(self) noexcept nogil:
        """The size that all rows have; -1 if sizes differ or a row is null."""
        cdef const int32_t *offsets = <const int32_t *>self.offsets.out.data
        cdef int64_t rows = self.offsets.shape[0] - 1
        cdef int64_t row
        cdef int32_t size = offsets[1] if rows > 0 else 0
        if self.null_count or <int64_t>size * rows != offsets[rows]:
            return -1
        for row in range(rows):
            if offsets[row + 1] - offsets[row] != size:
                return -1
        return size


cdef BinaryColumn binary_column(binary_t *column):
    cdef BinaryColumn made = BinaryColumn.__new__(BinaryColumn)
    column.validity.size = <size_t>(column.rows + 7) // 8
    made.null_count = column.nulls
    made.data = flat(&column.data, b"B", 1)
    made.offsets = flat(&column.offsets, b"i", 4)
    made.validity = flat(&column.validity, b"B", 1)
    column.rows = 0
    column.nulls = 0
    return made


@cython.final
cdef class Columns:
    """Finished columns of `count` records.

    The headers of record i are rows header_offsets[i] to header_offsets[i + 1] - 1 of `header_names` and
    `header_values`. Raises ValueError when a column is read that was not asked for.
    """

    cdef readonly int64_t count
    cdef readonly tuple topics
    cdef int wanted
    cdef FlatBuffer _topic_indexes
    cdef FlatBuffer _partitions
    cdef FlatBuffer _offsets
    cdef FlatBuffer _timestamps
    cdef FlatBuffer _timestamp_types
    cdef BinaryColumn _keys
    cdef BinaryColumn _values
    cdef FlatBuffer _header_offsets
    cdef BinaryColumn _header_names
    cdef BinaryColumn _header_values

    def __init__(self):
        raise TypeError("made by RecordColumns.finish")

    def __len__(self):
        return self.count

    cdef object wanted_column(self, int column, object found):
        if not self.wanted & column:
            raise ValueError("a column that was not asked for")
        return found

    @property
    def names(self):
        """The names of the columns that were asked for."""
        return tuple([name for place, name in enumerate(COLUMN_NAMES) if self.wanted >> <int>place & 1])

    @property
    def topic_indexes(self):
        """For each record, the index of its topic in `topics`."""
        return self.wanted_column(COLUMN_TOPIC, self._topic_indexes)

    @property
    def partitions(self):
        return self.wanted_column(COLUMN_PARTITION, self._partitions)

    @property
    def offsets(self):
        return self.wanted_column(COLUMN_OFFSET, self._offsets)

    @property
    def timestamps(self):
        return self.wanted_column(COLUMN_TIMESTAMP, self._timestamps)

    @property
    def timestamp_types(self):
        """0: the producer's timestamp (CreateTime); 1: the broker's (LogAppendTime)."""
        return self.wanted_column(COLUMN_TIMESTAMP_TYPE, self._timestamp_types)

    @property
    def keys(self):
        return self.wanted_column(COLUMN_KEY, self._keys)

    @property
    def values(self):
        return self.wanted_column(COLUMN_VALUE, self._values)

    @property
    def header_offsets(self):
        return self.wanted_column(COLUMN_HEADERS, self._header_offsets)

    @property
    def header_names(self):
        return self.wanted_column(COLUMN_HEADERS, self._header_names)

    @property
    def header_values(self):
        return self.wanted_column(COLUMN_HEADERS, self._header_values)


@cython.final
cdef class RecordColumns:

    def __cinit__(self, int64_t start_offset=0, int64_t end_offset=INT64_MAX, columns=None):
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.wanted = columns_named(columns)
        self.topics = [""]
        writer_init(&self.topic_indexes)
        writer_init(&self.partitions)
        writer_init(&self.offsets)
        writer_init(&self.timestamps)
        writer_init(&self.timestamp_types)
        writer_init(&self.header_offsets)
        binary_init(&self.keys)
        binary_init(&self.values)
        binary_init(&self.header_names)
        binary_init(&self.header_values)

    def __dealloc__(self):
        writer_free(&self.topic_indexes)
        writer_free(&self.partitions)
        writer_free(&self.offsets)
        writer_free(&self.timestamps)
        writer_free(&self.timestamp_types)
        writer_free(&self.header_offsets)
        binary_free(&self.keys)
        binary_free(&self.values)
        binary_free(&self.header_names)
        binary_free(&self.header_values)

    @property
    def size(self):
        """Bytes of keys, values and headers so far. Call `finish` before one of these columns reaches 2 GiB."""
        return self.keys.data.size + self.values.data.size + self.header_names.data.size + self.header_values.data.size

    def next_partition(self, str topic not None, int32_t partition):
        """Set the topic and partition of the records that are added from here on."""
        if self.count == 0:
            self.topics.clear()
        if topic not in self.topics:
            self.topics.append(topic)
        self.topic_index = <int32_t>self.topics.index(topic)
        self.partition = partition

    def add(self, BatchInfo batch not None, payload):
        """Add the records of one batch, and return their number; 0 for a control batch.

        `payload` is what stands behind the batch's header, decompressed. Raises InvalidBatch if it is malformed, and
        OverflowError if a column would become larger than 2 GiB; nothing was added then.
        """
        cdef Py_buffer view
        cdef int64_t before = self.count
        cdef int finding
        if batch.info.attributes & ATTRIBUTE_CONTROL:
            return 0
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                finding = self.add_records(<const uint8_t *>view.buf, view.len, &batch.info, 0, INT32_MAX)
        finally:
            PyBuffer_Release(&view)
        self.raise_for(finding, batch.position)
        return self.count - before

    cdef int raise_for(self, int finding, int64_t position) except -1:
        if finding == OUT_OF_MEMORY:
            raise MemoryError()
        if finding == TOO_LARGE:
            raise OverflowError("a column of more than 2 GiB: take fewer records at once")
        if finding != BATCH_OK:
            raise InvalidBatch(finding, position)
        return 0

    cdef int add_records(self, const uint8_t *payload, int64_t size, const batch_info_t *info, int32_t skipped,
                         int32_t most) noexcept nogil:
        cdef int64_t rows = self.count, header_rows = self.header_names.rows
        cdef int64_t key_nulls = self.keys.nulls, value_nulls = self.values.nulls
        cdef int64_t header_nulls = self.header_values.nulls
        cdef size_t key_size = self.keys.data.size, value_size = self.values.data.size
        cdef size_t name_size = self.header_names.data.size, content_size = self.header_values.data.size
        cdef int64_t count = info.record_count
        cdef int finding
        # The count is not trusted with memory: every record takes at least MIN_RECORD_SIZE bytes.
        if count < 0 or count > size // MIN_RECORD_SIZE:
            return BATCH_BAD_COUNT
        if <int64_t>max(max(key_size, value_size), max(name_size, content_size)) + size > INT32_MAX:
            return TOO_LARGE
        if header_rows + size // MIN_HEADER_SIZE > INT32_MAX:
            return TOO_LARGE
        count = min(count, most)
        if not ((not self.wanted & COLUMN_TOPIC or room(&self.topic_indexes, <size_t>count * 4))
                and (not self.wanted & COLUMN_PARTITION or room(&self.partitions, <size_t>count * 4))
                and (not self.wanted & COLUMN_OFFSET or room(&self.offsets, <size_t>count * 8))
                and (not self.wanted & COLUMN_TIMESTAMP or room(&self.timestamps, <size_t>count * 8))
                and (not self.wanted & COLUMN_TIMESTAMP_TYPE or room(&self.timestamp_types, <size_t>count))
                and (not self.wanted & COLUMN_KEY or binary_room(&self.keys, count, size))
                and (not self.wanted & COLUMN_VALUE or binary_room(&self.values, count, size))
                and (not self.wanted & COLUMN_HEADERS or room(&self.header_offsets, <size_t>count * 4 + 4))
                and binary_room(&self.header_names, 0, 0) and binary_room(&self.header_values, 0, 0)):
            return OUT_OF_MEMORY
        if self.wanted & COLUMN_HEADERS and self.header_offsets.size == 0:
            memset(self.header_offsets.data, 0, 4)
            self.header_offsets.size = 4
        finding = self.walk(payload, payload + size, info, skipped, most)
        if finding != BATCH_OK:
            self.count = rows
            self.offsets.size = min(self.offsets.size, <size_t>rows * 8)
            self.timestamps.size = min(self.timestamps.size, <size_t>rows * 8)
            if self.wanted & COLUMN_KEY:
                binary_cut(&self.keys, rows, key_size, key_nulls)
            if self.wanted & COLUMN_VALUE:
                binary_cut(&self.values, rows, value_size, value_nulls)
            if self.wanted & COLUMN_HEADERS:
                binary_cut(&self.header_names, header_rows, name_size, 0)
                binary_cut(&self.header_values, header_rows, content_size, header_nulls)
                self.header_offsets.size = <size_t>rows * 4 + 4
            return finding
        # Columns that have the same value for all records of a batch.
        for count in range(self.count - rows):
            if self.wanted & COLUMN_TOPIC:
                memcpy(self.topic_indexes.data + self.topic_indexes.size, &self.topic_index, 4)
                self.topic_indexes.size += 4
            if self.wanted & COLUMN_PARTITION:
                memcpy(self.partitions.data + self.partitions.size, &self.partition, 4)
                self.partitions.size += 4
        if self.wanted & COLUMN_TIMESTAMP_TYPE and self.count > rows:
            memset(self.timestamp_types.data + self.timestamp_types.size,
                   info.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0, <size_t>(self.count - rows))
            self.timestamp_types.size += <size_t>(self.count - rows)
        return BATCH_OK

    cdef int walk(self, const uint8_t *p, const uint8_t *end, const batch_info_t *info, int32_t skipped,
                  int32_t most) noexcept nogil:
        cdef record_t record
        cdef int64_t base_offset = info.base_offset, base_timestamp = info.base_timestamp
        cdef int64_t start_offset = self.start_offset, end_offset = self.end_offset
        cdef int64_t offset, timestamp
        cdef int32_t left = info.record_count
        cdef int32_t header_rows
        cdef int columns = self.wanted
        cdef bint log_append_time = info.attributes & ATTRIBUTE_LOG_APPEND_TIME != 0
        cdef bint wanted
        cdef int finding
        while left > 0 and most > 0:
            left -= 1
            p = take_fields(p, end, &record)
            if p == NULL:
                return BATCH_BAD_RECORD
            offset = <int64_t>(<uint64_t>base_offset + <uint64_t>record.offset_delta)
            skipped -= 1
            wanted = skipped < 0 and start_offset <= offset < end_offset
            if record.header_count:
                finding = self.walk_headers(record.headers, record.stop, record.header_count,
                                            wanted and columns & COLUMN_HEADERS != 0)
                if finding != BATCH_OK:
                    return finding
            elif record.headers != record.stop:
                return BATCH_BAD_RECORD
            if not wanted:
                continue
            most -= 1
            self.count += 1
            if columns & COLUMN_OFFSET:
                memcpy(self.offsets.data + self.offsets.size, &offset, 8)
                self.offsets.size += 8
            if columns & COLUMN_TIMESTAMP:
                timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>record.timestamp_delta)
                if log_append_time:
                    timestamp = info.max_timestamp
                memcpy(self.timestamps.data + self.timestamps.size, &timestamp, 8)
                self.timestamps.size += 8
            if columns & COLUMN_KEY:
                binary_put(&self.keys, record.key, record.key_size)
            if columns & COLUMN_VALUE:
                binary_put(&self.values, record.value, record.value_size)
            if columns & COLUMN_HEADERS:
                header_rows = <int32_t>self.header_names.rows
                memcpy(self.header_offsets.data + self.header_offsets.size, &header_rows, 4)
                self.header_offsets.size += 4
        return BATCH_OK if p == end or left > 0 else BATCH_BAD_RECORD

    cdef int walk_headers(self, const uint8_t *p, const uint8_t *stop, int32_t count, bint wanted) noexcept nogil:
        cdef const uint8_t *name = NULL
        cdef const uint8_t *value = NULL
        cdef int32_t name_size = 0, value_size = 0
        if wanted \
                and not (binary_room(&self.header_names, count, stop - p)
                         and binary_room(&self.header_values, count, stop - p)):
            return OUT_OF_MEMORY
        while count > 0:
            p = take_bytes(p, stop, &name, &name_size)
            p = take_bytes(p, stop, &value, &value_size)
            if p > stop or name_size < 0:
                return BATCH_BAD_RECORD
            if wanted:
                binary_put(&self.header_names, name, name_size)
                binary_put(&self.header_values, value, value_size)
            count -= 1
        return BATCH_OK if p == stop else BATCH_BAD_RECORD

    def finish(self):
        """Return the Columns, which take over the memory. The collector is empty afterwards."""
        cdef Columns made = Columns.__new__(Columns)
        if not (binary_room(&self.keys, 0, 0) and binary_room(&self.values, 0, 0)
                and binary_room(&self.header_names, 0, 0)
                and binary_room(&self.header_values, 0, 0) and room(&self.header_offsets, 4)):
            raise MemoryError()
        if self.header_offsets.size == 0:
            memset(self.header_offsets.data, 0, 4)
            self.header_offsets.size = 4
        made.count = self.count
        made.wanted = self.wanted
        made.topics = tuple(self.topics)
        made._topic_indexes = flat(&self.topic_indexes, b"i", 4)
        made._partitions = flat(&self.partitions, b"i", 4)
        made._offsets = flat(&self.offsets, b"q", 8)
        made._timestamps = flat(&self.timestamps, b"q", 8)
        made._timestamp_types = flat(&self.timestamp_types, b"b", 1)
        made._keys = binary_column(&self.keys)
        made._values = binary_column(&self.values)
        made._header_offsets = flat(&self.header_offsets, b"i", 4)
        made._header_names = binary_column(&self.header_names)
        made._header_values = binary_column(&self.header_values)
        self.count = 0
        return made
