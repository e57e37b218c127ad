"""send_many: columns are read where they are and encoded without the GIL; of lists, a share of pointers at a time with it.

How a column lies in memory: NumPy's by the buffer protocol, Arrow's by `buffers()` (validity as a bitmap, least significant bit
first; n + 1 offsets and the data, or data of a fixed width).
"""

cimport cython
from cpython.buffer cimport PyBUF_RECORDS_RO, PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from kbroker._core.accumulator cimport (
    ADDED,
    NO_ROOM,
    NO_SUCH_PARTITION,
    accumulator_add,
    accumulator_t,
    incoming_t,
    now_ms,
    topic_t,
    wall_clock_ms,
)
from kbroker._core.cursor cimport writer_free, writer_init, writer_t
from kbroker._core.delivery cimport stretch_t
from kbroker._core.field_bytes cimport field_release, field_t, field_take
from kbroker._core.layout cimport BATCH_HEADER_SIZE
from kbroker._core.outgoing cimport outgoing_t, put_record, record_body_size
from kbroker._core.partitioner cimport PARTITION_MURMUR2, PARTITION_STICKY
from kbroker._core.record_sender cimport partition_number, put_headers, timestamp_of
from kbroker._core.sync cimport atomic_load_i32, mutex_lock, mutex_unlock
from kbroker._core.varint cimport varlong_size

cdef enum:
    COLUMN_NULL = 0          # None for every record
    COLUMN_FIXED = 1
    COLUMN_STRIPPED = 2      # fixed, without trailing zeros
    COLUMN_OFFSETS_32 = 3
    COLUMN_OFFSETS_64 = 4
    COLUMN_OBJECTS = 5       # Python objects: `fields` has a share of them, from record `first` on
    COLUMN_ONE = 6           # integers: `one` for every record

    OBJECTS_AT_ONCE = 128
    RECORDS_AT_ONCE = 4096   # under the lock
    BYTES_AT_ONCE = 256 << 10
    MOST_VIEWS = 3

ctypedef struct column_t:
    int kind
    const uint8_t *data
    const uint8_t *offsets
    const uint8_t *validity  # NULL: nothing is null
    int64_t stride
    int64_t size
    int64_t first            # of Arrow: where the array begins in its buffers
    int64_t one
    field_t *fields


@cython.final
cdef class Column:
    """One column's memory: holds its buffers, or the objects."""

    cdef column_t c
    cdef Py_buffer[MOST_VIEWS] views
    cdef int view_count
    cdef object source
    cdef object items            # a list or a tuple, of COLUMN_OBJECTS
    cdef PyObject **pointers     # of an array of objects instead of `items`
    cdef readonly int64_t count
    cdef int64_t taken           # fields in use

    def __dealloc__(self):
        cdef int i
        self.release_fields()
        free(self.c.fields)
        for i in range(self.view_count):
            PyBuffer_Release(&self.views[i])

    cdef void release_fields(self) noexcept:
        cdef int64_t i
        for i in range(self.taken):
            field_release(&self.c.fields[i])
        self.taken = 0

    cdef Py_buffer *view(self, source, int flags) except NULL:
        cdef Py_buffer *view = &self.views[self.view_count]
        PyObject_GetBuffer(source, view, flags)
        self.view_count += 1
        return view

    cdef int hold_objects(self, items, int64_t count) except -1:
        self.c.kind = COLUMN_OBJECTS
        self.items = items
        self.count = count
        self.c.fields = <field_t *>calloc(OBJECTS_AT_ONCE, sizeof(field_t))
        if self.c.fields == NULL:
            raise MemoryError()
        return 0

    cdef object item(self, int64_t i):
        if self.pointers != NULL:
            return <object>(<PyObject **>(<char *>self.pointers + i * self.c.stride))[0]
        return self.items[i]

    cdef int64_t take_fields(self, int64_t first, int64_t stop, str what) except -1:
        """The bytes of some objects from `first` on; returns where it stopped. Valid while the GIL is held."""
        cdef int64_t i
        self.release_fields()
        self.c.first = -first
        if self.items is not None and len(self.items) < stop:
            raise ValueError(f"{what} has been made shorter meanwhile")
        for i in range(first, stop):
            field_take(self.item(i), &self.c.fields[i - first], what)
            self.taken += 1
        return stop


cdef inline bint is_null(const column_t *c, int64_t i) noexcept nogil:
    return c.validity != NULL and not c.validity[i >> 3] >> (i & 7) & 1


cdef inline void column_get(const column_t *c, int64_t i, const uint8_t **data, int64_t *size) noexcept nogil:
    cdef int64_t start
    cdef int64_t left
    data[0] = NULL
    size[0] = -1
    if c.kind == COLUMN_NULL:
        return
    i += c.first
    if c.kind == COLUMN_OBJECTS:
        data[0] = c.fields[i].data
        size[0] = c.fields[i].size
        return
    if is_null(c, i):
        return
    if c.kind == COLUMN_OFFSETS_32:
        start = (<const int32_t *>c.offsets)[i]
        size[0] = (<const int32_t *>c.offsets)[i + 1] - start
        data[0] = c.data + start
    elif c.kind == COLUMN_OFFSETS_64:
        start = (<const int64_t *>c.offsets)[i]
        size[0] = (<const int64_t *>c.offsets)[i + 1] - start
        data[0] = c.data + start
    else:
        data[0] = c.data + i * c.stride
        left = c.size
        if c.kind == COLUMN_STRIPPED:
            while left > 0 and data[0][left - 1] == 0:
                left -= 1
        size[0] = left


cdef inline int64_t column_int(const column_t *c, int64_t i) noexcept nogil:
    cdef const uint8_t *p
    if c.kind == COLUMN_ONE:
        return c.one
    p = c.data + (i + c.first) * c.stride
    if c.size == 8:
        return (<const int64_t *>p)[0]
    if c.size == 4:
        return (<const int32_t *>p)[0]
    if c.size == 2:
        return (<const int16_t *>p)[0]
    return (<const int8_t *>p)[0]

# --- what a column is made of -------------------------------------------------------------------------

cdef int from_arrow(Column column, source, str what) except -1:
    cdef str kind = str(source.type)
    cdef int64_t length = len(source)
    cdef int64_t first = source.offset
    cdef int64_t width
    cdef Py_buffer *view
    buffers = source.buffers()
    column.source = source
    column.count = length
    column.c.first = first
    if buffers[0] is not None and source.null_count:
        view = column.view(buffers[0], PyBUF_SIMPLE)
        column.c.validity = <const uint8_t *>view.buf
        if view.len * 8 < first + length:
            raise ValueError(f"{what}: the validity bitmap is too short")
    if kind.startswith("fixed_size_binary["):
        column.c.kind = COLUMN_FIXED
        column.c.size = column.c.stride = source.type.byte_width
        view = column.view(buffers[1], PyBUF_SIMPLE)
        column.c.data = <const uint8_t *>view.buf
        if view.len < (first + length) * column.c.stride:
            raise ValueError(f"{what}: the data are too short")
        return 0
    if kind in ("binary", "string"):
        column.c.kind = COLUMN_OFFSETS_32
        width = 4
    elif kind in ("large_binary", "large_string"):
        column.c.kind = COLUMN_OFFSETS_64
        width = 8
    else:
        raise TypeError(f"{what}: an Arrow array of {kind}; cast it to binary or string")
    if length == 0:
        column.c.kind = COLUMN_NULL
        return 0
    view = column.view(buffers[1], PyBUF_SIMPLE)
    column.c.offsets = <const uint8_t *>view.buf
    if view.len < (first + length + 1) * width:
        raise ValueError(f"{what}: the offsets are too short")
    width = 0
    if buffers[2] is not None:
        view = column.view(buffers[2], PyBUF_SIMPLE)
        column.c.data = <const uint8_t *>view.buf
        width = view.len
    if not offsets_fit(&column.c, length, width):
        raise ValueError(f"{what}: the offsets do not fit the data")
    return 0


cdef bint offsets_fit(const column_t *c, int64_t length, int64_t size) noexcept nogil:
    """Arrow does not check what it is given; we do not read behind its buffers."""
    cdef int64_t i
    cdef int64_t at
    cdef int64_t before = 0
    for i in range(c.first, c.first + length + 1):
        if c.kind == COLUMN_OFFSETS_32:
            at = (<const int32_t *>c.offsets)[i]
        else:
            at = (<const int64_t *>c.offsets)[i]
        if at < before or at > size:
            return False
        before = at
    return True


cdef int from_buffer(Column column, source, str what) except -1:
    cdef Py_buffer *view = column.view(source, PyBUF_RECORDS_RO)
    cdef str kind = view.format.decode() if view.format != NULL else "B"
    column.source = source
    column.count = view.shape[0] if view.ndim else 0
    if view.ndim == 1 and kind == "O":
        column.hold_objects(None, column.count)
        column.pointers = <PyObject **>view.buf
        column.c.stride = view.strides[0]
        return 0
    column.c.data = <const uint8_t *>view.buf
    if view.ndim == 1 and kind.lstrip("=<>|0123456789") == "s":
        column.c.kind = COLUMN_STRIPPED
        column.c.stride = view.strides[0]
        column.c.size = view.itemsize
    elif view.ndim == 2 and view.itemsize == 1 and kind in ("B", "b", "c"):
        if view.shape[1] > 1 and view.strides[1] != 1:
            raise ValueError(f"{what}: the bytes of a row are not side by side (numpy.ascontiguousarray makes them so)")
        column.c.kind = COLUMN_FIXED
        column.c.stride = view.strides[0]
        column.c.size = view.shape[1]
    elif view.ndim == 1 and kind.lstrip("=<>|0123456789") == "w":
        column.hold_objects(source.tolist(), column.count)
    else:
        raise TypeError(f"{what}: an array of format {kind!r} and {view.ndim} dimensions; S, U, object or uint8 of two dimensions is taken")
    return 0


cdef Column column_of(source, str what, int64_t count, encoder):
    """count: of the records, -1 when this column says it."""
    cdef Column column = Column.__new__(Column)
    if source is None and count >= 0 and encoder is None:
        column.count = count
        return column
    if isinstance(source, (str, bytes, bytearray)) or source is None:
        raise TypeError(f"{what} must be a list, a NumPy or an Arrow array, not {type(source).__name__}")
    if encoder is not None:
        items = [encoder(item) for item in objects_of(source)]
        column.hold_objects(items, len(items))
    elif isinstance(source, (list, tuple)):
        column.hold_objects(source, len(source))
    elif hasattr(source, "buffers"):
        from_arrow(column, source, what)
    elif PyObject_CheckBuffer(source):
        from_buffer(column, source, what)
    else:
        items = list(source)
        column.hold_objects(items, len(items))
    if count >= 0 and column.count != count:
        raise ValueError(f"{what} has {column.count} items for {count} values")
    return column


cdef object objects_of(source):
    for method in ("to_pylist", "tolist"):
        if hasattr(source, method):
            return getattr(source, method)()
    return list(source)


cdef int from_integers(Column column, source, str what) except -1:
    cdef Py_buffer *view
    if hasattr(source, "buffers"):
        if str(source.type) not in ("int64", "int32", "int16", "int8", "timestamp[ms]") and not str(source.type).startswith("timestamp[ms,"):
            raise TypeError(f"{what}: an Arrow array of {source.type}; int64, int32 or timestamp[ms] is taken")
        if source.null_count:
            raise ValueError(f"{what} has nulls")
        column.c.size = column.c.stride = source.type.bit_width // 8
        column.c.first = source.offset
        column.count = len(source)
        if column.count:
            view = column.view(source.buffers()[1], PyBUF_SIMPLE)
            column.c.data = <const uint8_t *>view.buf
            if view.len < (column.c.first + column.count) * column.c.size:
                raise ValueError(f"{what}: the data are too short")
    else:
        view = column.view(source, PyBUF_RECORDS_RO)
        if view.ndim != 1 or view.format == NULL or view.format.decode() not in ("b", "h", "i", "l", "q"):
            raise TypeError(f"{what} must be signed integers in one dimension")
        column.c.size = view.itemsize
        column.c.stride = view.strides[0]
        column.c.data = <const uint8_t *>view.buf
        column.count = view.shape[0]
    column.source = source
    column.c.kind = COLUMN_FIXED
    return 0


cdef Column integers_of(source, str what, int64_t count, int64_t one):
    """`one`: for every record, when `source` is None."""
    cdef Column column = Column.__new__(Column)
    cdef int64_t i
    if source is None:
        column.c.kind = COLUMN_ONE
        column.c.one = one
        return column
    if not hasattr(source, "buffers") and not PyObject_CheckBuffer(source):
        from array import array
        for item in source:
            if not isinstance(item, int):
                raise TypeError(f"{what} must be integers, not {type(item).__name__}")
        source = array("q", source)
    from_integers(column, source, what)
    if column.count != count:
        raise ValueError(f"{what} has {column.count} items for {count} values")
    for i in range(count):
        if column_int(&column.c, i) < 0:
            raise ValueError(f"{what}: {column_int(&column.c, i)} at {i} is negative")
    return column


cdef Column partitions_of(RecordSender sender, Topic topic, source, int64_t count):
    cdef Column column = integers_of(source, "partitions", count, 0)
    cdef int64_t i
    for i in range(count):
        if column_int(&column.c, i) >= topic.t.spread.count and not sender.has_partition(topic.name, column_int(&column.c, i)):
            sender.refuse(NO_SUCH_PARTITION, topic, column_int(&column.c, i), 0)
    return column

# --- adding -------------------------------------------------------------------------------------------

ctypedef struct share_t:
    const column_t *keys
    const column_t *values
    const column_t *partitions
    const column_t *timestamps
    const uint8_t *headers
    int64_t headers_size
    int64_t at                   # the next record
    int64_t stop
    int32_t partition            # of the record that was not added
    int64_t size
    int32_t room                 # accumulator_t.room when there was none
    bint wake
    bint impatient               # what there is no room for is left
    bint is_plain                # no keys, one timestamp, one partition or the sticky one: records go where the one before went


cdef int64_t add_run(accumulator_t *a, topic_t *topic, outgoing_t *batch, const share_t *share, int64_t most, int64_t most_bytes) noexcept nogil:
    """Adds records behind the one before `at`, which went into `batch`, while accumulator_add would have nothing to decide.

    The number of them. What the loop touches is local: a store through a pointer could alias the bytes that are read.
    """
    cdef uint8_t *p = batch.data + batch.size
    cdef const uint8_t *start = p
    cdef const uint8_t *value = NULL
    cdef int64_t value_size = -1
    cdef int64_t body
    cdef int64_t size
    cdef int64_t count = 0
    cdef int64_t in_batch = batch.count
    cdef int64_t timestamp_delta = share.timestamps.one - batch.base_timestamp
    cdef int64_t largest = a.max_record_size - BATCH_HEADER_SIZE
    cdef int64_t room = min(min(batch.capacity, a.batch_size) - batch.size, a.most_used - a.used - BATCH_HEADER_SIZE)
    cdef int64_t sticky_room = INT64_MAX
    cdef bint is_sticky = share.partitions.one < 0
    if is_sticky:
        sticky_room = a.partitioner.sticky_bytes - topic.spread.sticky_used
    most = min(most, a.batch_records - in_batch)
    if a.most_records:
        most = min(most, a.most_records - a.records)
    room = min(room, most_bytes)
    while count < most and sticky_room > 0:
        column_get(share.values, share.at + count, &value, &value_size)
        body = record_body_size(timestamp_delta, in_batch + count, -1, value_size, share.headers_size)
        size = body + varlong_size(body)
        if size > room or size > largest:
            break
        put_record(p, body, timestamp_delta, in_batch + count, NULL, -1, value, value_size, share.headers, share.headers_size)
        p += size
        room -= size
        sticky_room -= value_size - 1 + share.headers_size + 6
        count += 1
    size = p - start
    batch.size += size
    batch.charged += size
    batch.count += <int32_t>count
    a.used += size
    a.records += count
    if is_sticky:
        topic.spread.sticky_used = a.partitioner.sticky_bytes - sticky_room
    return count


cdef int add_share(accumulator_t *a, topic_t *topic, share_t *share, Deliveries deliveries) noexcept nogil:
    """Adds records from `at` on, some under one lock; `at` is where it stopped."""
    cdef incoming_t record
    cdef outgoing_t *batch = NULL
    cdef outgoing_t *last = NULL
    cdef stretch_t *stretch = NULL
    cdef int64_t stop = share.stop
    cdef int64_t start_used
    cdef int finding = ADDED
    if stop > share.at + RECORDS_AT_ONCE:
        stop = share.at + RECORDS_AT_ONCE
    record.headers = share.headers
    record.headers_size = share.headers_size
    mutex_lock(&a.lock)
    start_used = a.used
    while share.at < stop and a.used - start_used < BYTES_AT_ONCE:
        column_get(share.values, share.at, &record.value, &record.value_size)
        column_get(share.keys, share.at, &record.key, &record.key_size)
        record.timestamp = column_int(share.timestamps, share.at)
        share.partition = <int32_t>column_int(share.partitions, share.at)
        finding = accumulator_add(a, topic, &share.partition, &record, &batch, &share.wake)
        if finding != ADDED:
            share.size = record.key_size + record.value_size
            break
        if batch == last:
            stretch.last = batch.count - 1
        else:
            stretch = deliveries.add(batch, batch.count - 1)
            if stretch == NULL:
                # The record is under way; only that its sender could wait for it is lost, as the call ends with MemoryError.
                share.at += 1
                finding = -1
                break
            last = batch
        share.at += 1
        if share.is_plain:
            share.at += add_run(a, topic, batch, share, stop - share.at, BYTES_AT_ONCE - (a.used - start_used))
            stretch.last = batch.count - 1
    share.room = atomic_load_i32(&a.room)
    mutex_unlock(&a.lock)
    return finding


cdef int send_share(RecordSender sender, Topic topic, share_t *share, Deliveries deliveries, Column keys, Column values) except -1:
    """Everything from `at` to `stop`, waiting for room; 0 when it was not waited for."""
    cdef accumulator_t *a = &sender.accumulator.a
    cdef bint objects = values.c.kind == COLUMN_OBJECTS or keys.c.kind == COLUMN_OBJECTS
    cdef int64_t stop = share.stop
    cdef int64_t deadline = -2
    cdef int finding
    while share.at < stop:
        share.wake = False
        if objects:
            share.stop = min(stop, share.at + OBJECTS_AT_ONCE)
            if values.c.kind == COLUMN_OBJECTS:
                values.take_fields(share.at, share.stop, "values")
            if keys.c.kind == COLUMN_OBJECTS:
                keys.take_fields(share.at, share.stop, "keys")
            finding = add_share(a, topic.t, share, deliveries)
            values.release_fields()
            keys.release_fields()
        else:
            with nogil:
                finding = add_share(a, topic.t, share, deliveries)
        if share.wake and a.wake != NULL:
            a.wake(a.waker)
        if finding == ADDED:
            deadline = -2
            continue
        if finding == -1:
            raise MemoryError()
        if finding == NO_ROOM:
            if share.impatient:
                return 0
            if deadline == -2:
                deadline = now_ms() + sender.block_ms if sender.block_ms >= 0 else -1
            if sender.accumulator.await_room(share.room, deadline):
                continue
        sender.refuse(finding, topic, share.partition, share.size)
    return 1


cdef bint is_chunked(column) noexcept:
    return hasattr(column, "num_chunks")


cdef object whole(column):
    """A chunked Arrow array of one chunk as that chunk."""
    return column.chunk(0) if is_chunked(column) and column.num_chunks == 1 else column


cdef object part_of(column, int64_t first, int64_t stop):
    if column is None or isinstance(column, int):
        return column
    part = whole(column[first:stop])
    return whole(part.combine_chunks()) if is_chunked(part) else part


cdef Deliveries send_columns(RecordSender sender, Topic topic, values, keys, headers, partitions, timestamps,
                             Deliveries taken, bint impatient):
    cdef Deliveries deliveries = Deliveries.__new__(Deliveries) if taken is None else taken
    cdef int64_t skipped = deliveries.count
    cdef bint goes_on
    cdef writer_t encoded
    cdef int64_t first = 0
    cdef int64_t size
    values, keys, partitions, timestamps = whole(values), whole(keys), whole(partitions), whole(timestamps)
    if sender.partition_of is not None and partitions is None:
        count = topic.t.spread.count
        found = [None] * len(values) if keys is None else objects_of(keys)
        partitions = [partition_number(sender.partition_of(topic.name, key, count)) for key in found]
    writer_init(&encoded)
    try:
        put_headers(&encoded, () if headers is None else headers)
        if is_chunked(values) or is_chunked(keys) or is_chunked(partitions) or is_chunked(timestamps):
            for chunk in values.chunks if is_chunked(values) else [values]:
                size = len(chunk)
                goes_on = send_part(sender, topic, &encoded, deliveries, chunk, part_of(keys, first, first + size),
                                    part_of(partitions, first, first + size), part_of(timestamps, first, first + size),
                                    skipped - first, impatient)
                if not goes_on:
                    break
                first += size
        else:
            send_part(sender, topic, &encoded, deliveries, values, keys, partitions, timestamps, skipped, impatient)
    finally:
        writer_free(&encoded)
    return deliveries


cdef int send_part(RecordSender sender, Topic topic, writer_t *headers, Deliveries deliveries, values, keys, partitions,
                   timestamps, int64_t skipped, bint impatient) except -1:
    cdef share_t share
    cdef Column value_column = column_of(values, "values", -1, sender.encode_value)
    cdef int64_t count = value_column.count
    cdef Column key_column = column_of(keys, "keys", count, None if keys is None else sender.encode_key)
    cdef Column partition_column
    cdef Column timestamp_column
    if partitions is None or isinstance(partitions, int):
        partition_column = integers_of(None, "partitions", count, partition_number(partitions))
        if partitions is not None and partitions >= topic.t.spread.count:
            sender.has_partition(topic.name, partitions)
    else:
        partition_column = partitions_of(sender, topic, partitions, count)
    if timestamps is None or isinstance(timestamps, int):
        timestamp_column = integers_of(None, "timestamps", count, timestamp_of(timestamps))
    else:
        timestamp_column = integers_of(timestamps, "timestamps", count, 0)
    memset(&share, 0, sizeof(share))
    share.keys = &key_column.c
    share.values = &value_column.c
    share.partitions = &partition_column.c
    share.timestamps = &timestamp_column.c
    share.headers = headers.data
    share.headers_size = <int64_t>headers.size
    share.stop = count
    share.is_plain = (
        key_column.c.kind == COLUMN_NULL
        and timestamp_column.c.kind == COLUMN_ONE
        and partition_column.c.kind == COLUMN_ONE
        and (partition_column.c.one >= 0 or sender.accumulator.a.partitioner.kind in (PARTITION_MURMUR2, PARTITION_STICKY))
    )
    share.impatient = impatient
    skipped = min(max(skipped, 0), count)
    share.at = skipped
    try:
        return send_share(sender, topic, &share, deliveries, key_column, value_column)
    except Exception as error:
        if deliveries.count + share.at > skipped:
            error.add_note(f"{deliveries.count + share.at - skipped} records of this call were taken before")
        raise
    finally:
        deliveries.count += share.at - skipped
