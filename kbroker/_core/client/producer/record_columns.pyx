"""The work of `send_many`: columns are read without a copy and encoded without the GIL.

Lists and arrays of Python objects are read and encoded with the GIL, some objects at a time.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memset

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sync cimport atomic_load_i32, mutex_lock, mutex_unlock
from kbroker._core.client.producer.accumulator cimport (
    ADDED, NO_ROOM, NO_SUCH_PARTITION, accumulator_add, count_records, accumulator_t, incoming_t, topic_t,
)
from kbroker._core.client.producer.delivery cimport stretch_t
from kbroker._core.client.producer.given_columns cimport (
    COLUMN_NULL,
    COLUMN_OBJECTS,
    COLUMN_ONE,
    OBJECTS_AT_ONCE,
    Column,
    HeaderColumns,
    column_get,
    column_int,
    column_of,
    column_t,
    header_columns_t,
    headers_of,
    integers_of,
    objects_of,
    put_header_columns,
)
from kbroker._core.client.producer.outgoing cimport outgoing_t, put_record, record_body_size
from kbroker._core.client.producer.partitioner cimport PARTITION_MURMUR2, PARTITION_STICKY
from kbroker._core.client.producer.record_sender cimport partition_number, put_headers, timestamp_of
from kbroker._core.wire.cursor cimport writer_free, writer_init, writer_t
from kbroker._core.wire.layout cimport BATCH_HEADER_SIZE
from kbroker._core.wire.varint cimport varlong_size

cdef enum:
    RECORDS_AT_ONCE = 4096   # records to add at most while the lock is held
    BYTES_AT_ONCE = 256 << 10


cdef Column partitions_of(RecordSender sender, Topic topic, source, int64_t count):
    cdef Column column = integers_of(source, "partitions", count, 0, True)
    cdef int64_t i
    for i in range(count):
        if column_int(&column.c, i) >= topic.t.spread.count \
                and not sender.has_partition(topic.name, column_int(&column.c, i)):
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
    const header_columns_t *header_columns   # NULL: all records have the headers `headers`
    writer_t encoded             # the headers of one record
    int64_t at                   # the next record
    int64_t stop
    int32_t partition            # of the record that was not added
    int64_t size                 # key and value of this record
    int32_t room                 # accumulator_t.room when add_share stopped
    bint wake
    bint impatient               # do not wait for room
    # No keys, one set of headers, one timestamp, and one partition or the sticky one: a record goes where the one
    # before went.
    bint is_plain


cdef int64_t add_run(accumulator_t *a, topic_t *topic, outgoing_t *batch, const share_t *share, int64_t most,
                     int64_t most_bytes) noexcept nogil:
    """Add records from `at` on to `batch`, for as long as `accumulator_add` would add them to this batch too.

    `batch` has the record before. Return the number of records that were added. The loop uses local variables only: a
    store through a pointer could alias the bytes that are read.
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
    cdef int64_t sticky_start
    cdef bint is_sticky = share.partitions.one < 0
    if is_sticky:
        sticky_room = a.partitioner.sticky_bytes - topic.spread.sticky_used
    sticky_start = sticky_room
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
        put_record(p, body, timestamp_delta, in_batch + count, NULL, -1, value, value_size, share.headers,
                   share.headers_size)
        p += size
        room -= size
        sticky_room -= value_size - 1 + share.headers_size + 6
        count += 1
    size = p - start
    if a.window_ms:
        count_records(a, topic, share.timestamps.one, count,
                      sticky_start - sticky_room - count * (share.headers_size + 5))
    batch.size += size
    batch.charged += size
    batch.count += <int32_t>count
    a.used += size
    a.records += count
    if is_sticky:
        topic.spread.sticky_used = a.partitioner.sticky_bytes - sticky_room
    return count


cdef int add_share(accumulator_t *a, topic_t *topic, share_t *share, Deliveries deliveries) noexcept nogil:
    """Add records of the share, from `at` on, with the lock taken once. Move `at` behind those that were added.

    Return a finding, -1 if memory is out.
    """
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
        if share.header_columns != NULL:
            share.encoded.size = 0
            if put_header_columns(&share.encoded, share.header_columns, share.at) < 0:
                finding = -1
                break
            record.headers = share.encoded.data
            record.headers_size = <int64_t>share.encoded.size
        finding = accumulator_add(a, topic, &share.partition, &record, &batch, &share.wake)
        if finding != ADDED:
            share.size = record.key_size + record.value_size
            break
        if batch == last:
            stretch.last = batch.count - 1
        else:
            stretch = deliveries.add(batch, batch.count - 1)
            if stretch == NULL:
                # The record is in the queue, but the caller gets no Delivery of it, as the call ends with MemoryError.
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


cdef int send_share(RecordSender sender, Topic topic, share_t *share, Deliveries deliveries, Column keys,
                    Column values) except -1:
    """Add all records from `at` to `stop` - 1, and wait for room.

    Return 0 if `impatient` is set and there was no room.
    """
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
                deadline = monotonic_ms() + sender.block_ms if sender.block_ms >= 0 else -1
            if sender.accumulator.await_room(share.room, deadline):
                continue
        sender.refuse(finding, topic, share.partition, share.size)
    return 1


cdef bint is_chunked(column) noexcept:
    return hasattr(column, "num_chunks")


cdef bint is_column(given) noexcept:
    """Whether `given` is an Arrow array, chunked or not."""
    return hasattr(given, "null_count")


cdef object whole(column):
    """Return the chunk of a chunked Arrow array that has only one, else the column itself."""
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
    header_column = whole(headers) if is_column(headers) else None
    if sender.partition_of is not None and not isinstance(partitions, int):
        partitions = chosen(sender, topic, keys, [None] * len(values) if partitions is None else objects_of(partitions))
    writer_init(&encoded)
    try:
        put_headers(&encoded, () if headers is None or header_column is not None else headers)
        columns = [values, keys, header_column, partitions, timestamps]
        if any([is_chunked(column) for column in columns]):
            for chunk in values.chunks if is_chunked(values) else [values]:
                size = len(chunk)
                parts = [part_of(column, first, first + size) for column in columns[1:]]
                goes_on = send_part(sender, topic, &encoded, deliveries, chunk, parts[0], parts[1], parts[2], parts[3],
                                    skipped - first, impatient)
                if not goes_on:
                    break
                first += size
        else:
            send_part(sender, topic, &encoded, deliveries, values, keys, header_column, partitions, timestamps, skipped,
                      impatient)
    finally:
        writer_free(&encoded)
    return deliveries


cdef list chosen(RecordSender sender, Topic topic, keys, list given):
    """Return a list of partitions: those of `given`, and where it has None, the choice of the user's partitioner."""
    cdef int64_t count = topic.t.spread.count
    found = [None] * len(given) if keys is None else objects_of(keys)
    return [
        partition_number(sender.partition_of(topic.name, key, count)) if partition is None else partition
        for key, partition in zip(found, given)
    ]


cdef int send_part(RecordSender sender, Topic topic, writer_t *headers, Deliveries deliveries, values, keys,
                   header_column, partitions, timestamps, int64_t skipped, bint impatient) except -1:
    """Add the records of columns that are not chunked. Without `header_column`, all records have the headers `headers`.

    `skipped` is the number of records at the beginning that were taken before.
    """
    cdef share_t share
    cdef Column value_column = column_of(values, "values", -1, sender.encode_value)
    cdef int64_t count = value_column.count
    cdef Column key_column = column_of(keys, "keys", count, None if keys is None else sender.encode_key)
    cdef Column partition_column
    cdef Column timestamp_column
    cdef HeaderColumns header_columns
    if is_column(partitions) and len(partitions) and partitions.null_count == len(partitions):
        partitions = None
    if partitions is None or isinstance(partitions, int):
        partition_column = integers_of(None, "partitions", count, partition_number(partitions), True)
        if partitions is not None and partitions >= topic.t.spread.count:
            sender.has_partition(topic.name, partitions)
    else:
        partition_column = partitions_of(sender, topic, partitions, count)
    if timestamps is None or isinstance(timestamps, int):
        timestamp_column = integers_of(None, "timestamps", count, timestamp_of(timestamps), False)
    else:
        timestamp_column = integers_of(timestamps, "timestamps", count, 0, False)
    memset(&share, 0, sizeof(share))
    share.keys = &key_column.c
    share.values = &value_column.c
    share.partitions = &partition_column.c
    share.timestamps = &timestamp_column.c
    share.headers = headers.data
    share.headers_size = <int64_t>headers.size
    if header_column is not None:
        header_columns = headers_of(header_column, count)
        share.header_columns = &header_columns.h
    share.stop = count
    share.is_plain = (
        header_column is None
        and key_column.c.kind == COLUMN_NULL
        and timestamp_column.c.kind == COLUMN_ONE
        and partition_column.c.kind == COLUMN_ONE
        and (partition_column.c.one >= 0
             or sender.accumulator.a.partitioner.kind in (PARTITION_MURMUR2, PARTITION_STICKY))
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
        writer_free(&share.encoded)
        deliveries.count += share.at - skipped
