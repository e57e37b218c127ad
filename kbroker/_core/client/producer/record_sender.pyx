"""send and send_nowait; see record_sender.pxd. Columns of records are in record_columns.pyx."""

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX
from libc.string cimport memset

from kbroker._core.base.clock cimport monotonic_ms, wall_ms
from kbroker._core.base.field_bytes cimport field_release, field_t, field_take
from kbroker._core.base.sync cimport atomic_add_i32, atomic_load_i32, mutex_lock, mutex_unlock
from kbroker._core.client.producer.accumulator cimport (
    ADDED, IS_CLOSED, IS_SHUT, NO_ROOM, NO_SUCH_PARTITION, MEMORY_IS_OUT, TOO_LARGE, accumulator_add,
)
from kbroker._core.client.producer.delivery cimport Deliveries, Delivery
from kbroker._core.client.producer.outgoing cimport outgoing_unref
from kbroker._core.client.producer.record_columns cimport send_columns
from kbroker._core.wire.cursor cimport writer_free, writer_init, writer_reserve, writer_t
from kbroker._core.wire.varint cimport bytes_size, put_bytes, put_varlong, varlong_size

cdef uint8_t[1] no_headers
no_headers[0] = 0


cdef int check_function(on_delivery) except -1:
    if on_delivery is not None and not callable(on_delivery):
        raise TypeError(f"on_delivery must be a callable or None, not {type(on_delivery).__name__}")
    return 0


cdef int64_t timestamp_of(timestamp) except -1:
    cdef int64_t value
    if timestamp is None:
        return wall_ms()
    if not isinstance(timestamp, int):
        raise TypeError(f"timestamp must be an int (milliseconds since 1970) or None, not {type(timestamp).__name__}")
    value = timestamp
    if value < 0:
        raise ValueError(f"timestamp {value} is negative")
    return value


cdef int64_t partition_number(partition) except -2:
    cdef int64_t value
    if partition is None:
        return -1
    if not isinstance(partition, int):
        raise TypeError(f"partition must be an int or None, not {type(partition).__name__}")
    value = partition
    if not 0 <= value <= INT32_MAX:
        raise ValueError(f"partition {value} is out of range")
    return value


cdef int put_header(writer_t *out, name, value) except -1:
    cdef field_t name_field
    cdef field_t value_field
    cdef uint8_t *p
    if not isinstance(name, str):
        raise TypeError(f"the name of a header must be str, not {type(name).__name__}")
    field_take(name, &name_field, "the name of a header")
    field_take(value, &value_field, "the value of a header")
    p = writer_reserve(out, <size_t>(bytes_size(name_field.size) + bytes_size(value_field.size)))
    if p != NULL:
        p = put_bytes(p, name_field.data, name_field.size)
        put_bytes(p, value_field.data, value_field.size)
    field_release(&value_field)
    if p == NULL:
        raise MemoryError()
    return 0


cdef int put_headers(writer_t *out, headers) except -1:
    """Write headers as they are encoded in a record, count first.

    Raises TypeError if they are not pairs of a name and a value, or a dict.
    """
    cdef uint8_t *p
    pairs = list(headers.items() if hasattr(headers, "items") else headers)
    p = writer_reserve(out, varlong_size(len(pairs)))
    if p == NULL:
        raise MemoryError()
    put_varlong(p, len(pairs))
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"headers must be pairs of a name and a value, or a dict; not {pair!r}")
        put_header(out, pair[0], pair[1])
    return 0


cdef class RecordSender:
    def __init__(self, Accumulator accumulator not None, *, partitioner=None, key_encoder=None, value_encoder=None,
                 int64_t block_ms=60000):
        self.accumulator = accumulator
        self.partition_of = partitioner
        self.encode_key = key_encoder
        self.encode_value = value_encoder
        self.block_ms = block_ms

    # --- what a subclass knows better -----------------------------------------------------------------

    def await_topic(self, topic):
        """Wait until a topic is known that was not. Raises an exception if it cannot be found.

        Called without any lock.
        """
        raise KeyError(topic)

    def has_partition(self, topic, partition):
        """Return whether the topic has a partition that was not known before. Called without any lock."""
        return False

    def refused(self, kind, text):
        """Return the exception for a refused record; `kind`: closed, shut, queue_full, too_large, no_partition."""
        return {"too_large": ValueError, "no_partition": ValueError, "queue_full": BufferError}.get(kind,
                                                                                                    RuntimeError)(text)

    # --------------------------------------------------------------------------------------------------

    cdef Topic topic_of(self, str name):
        cdef PyObject *found = PyDict_GetItem(self.accumulator.topics, name)
        if found == NULL:
            self.await_topic(name)
            return self.accumulator.topics[name]
        return <Topic>found

    cdef int refuse(self, int finding, Topic topic, int64_t partition, int64_t size) except -1:
        cdef accumulator_t *a = &self.accumulator.a
        if finding == MEMORY_IS_OUT:
            raise MemoryError()
        if finding == IS_CLOSED:
            raise self.refused("closed", "the producer is closed")
        if finding == IS_SHUT:
            raise self.refused("shut", "nothing can be sent now")
        if finding == NO_SUCH_PARTITION:
            raise self.refused("no_partition",
                               f"{topic.name} has partitions 0 to {topic.t.spread.count - 1}, not {partition}")
        if finding == TOO_LARGE:
            raise self.refused("too_large",
                               f"a record of {size} bytes and its overhead are more than the {a.max_record_size} bytes "
                               "of max.request.size or buffer.memory")
        raise self.refused("queue_full",
                           f"no room for a record of {size} bytes: {a.used} of {a.most_used} bytes and {a.records} "
                           f"records wait (buffer.memory, queue.buffering.max.messages)")

    cdef int add(self, Topic topic, int32_t *partition, const incoming_t *record, bint keep, outgoing_t **batch,
                 int32_t *index) except -1:
        """Add one record; wait for room if necessary. With `keep` the caller gets a reference to the batch."""
        cdef accumulator_t *a = &self.accumulator.a
        cdef int32_t seen
        cdef int finding
        cdef bint wake
        cdef bint asked = False
        cdef int64_t deadline = -2
        while True:
            wake = False
            mutex_lock(&a.lock)
            finding = accumulator_add(a, topic.t, partition, record, batch, &wake)
            if finding == ADDED:
                index[0] = batch[0].count - 1
                if keep:
                    atomic_add_i32(&batch[0].references, 1)
            seen = atomic_load_i32(&a.room)
            mutex_unlock(&a.lock)
            if wake and a.wake != NULL:
                a.wake(a.waker)
            if finding == ADDED:
                return 0
            if finding == NO_ROOM:
                if deadline == -2:
                    deadline = monotonic_ms() + self.block_ms if self.block_ms >= 0 else -1
                if self.accumulator.await_room(seen, deadline):
                    continue
            if finding == NO_SUCH_PARTITION and not asked:
                asked = True
                if self.has_partition(topic.name, partition[0]):
                    continue
            self.refuse(finding, topic, partition[0], max(0, record.key_size) + max(0, record.value_size))

    cdef int send_one(self, str topic, value, key, headers, partition, timestamp, bint keep, outgoing_t **batch,
                      int32_t *index, int32_t *chosen, int64_t *sent_timestamp) except -1:
        cdef Topic to = self.topic_of(topic)
        cdef incoming_t record
        cdef field_t key_field
        cdef field_t value_field
        cdef writer_t encoded
        if self.encode_value is not None:
            value = self.encode_value(value)
        if self.encode_key is not None:
            key = self.encode_key(key)
        if partition is not None:
            chosen[0] = <int32_t>partition_number(partition)
        elif self.partition_of is not None:
            chosen[0] = <int32_t>partition_number(self.partition_of(topic, key, to.t.spread.count))
        else:
            chosen[0] = -1
        record.timestamp = timestamp_of(timestamp)
        record.headers = no_headers
        record.headers_size = 1
        field_take(value, &value_field, "value")
        key_field.held = False
        writer_init(&encoded)
        try:
            field_take(key, &key_field, "key")
            if headers is not None:
                put_headers(&encoded, headers)
                record.headers = encoded.data
                record.headers_size = <int64_t>encoded.size
            record.key = key_field.data
            record.key_size = key_field.size
            record.value = value_field.data
            record.value_size = value_field.size
            self.add(to, chosen, &record, keep, batch, index)
        finally:
            writer_free(&encoded)
            field_release(&key_field)
            field_release(&value_field)
        sent_timestamp[0] = record.timestamp
        return 0

    def send_nowait(self, str topic not None, value=None, key=None, headers=None, partition=None,
                    timestamp=None) -> None:
        """Put a record into the queue as `send` does, but without a Delivery that tells what becomes of it."""
        cdef outgoing_t *batch = NULL
        cdef int32_t index = 0
        cdef int32_t chosen = -1
        cdef int64_t sent_timestamp = 0
        self.send_one(topic, value, key, headers, partition, timestamp, False, &batch, &index, &chosen, &sent_timestamp)

    def send(self, str topic not None, value=None, key=None, headers=None, partition=None, timestamp=None, *,
             on_delivery=None) -> Delivery:
        """Put a record into the queue, and return the Delivery that tells what becomes of it.

        value, key: bytes, str (as UTF-8), bytearray, memoryview or None, or what the encoders take. headers: pairs of a
        name and a value, or a dict. timestamp: milliseconds since 1970; None: now. If there is no room, the call waits
        for up to max.block.ms.

        `on_delivery(error, delivery)` is called once the record is delivered (error is None) or has failed (error says
        why): on the producer's thread, or inside this call if the record is done so early.
        """
        cdef Delivery delivery = Delivery.__new__(Delivery)
        check_function(on_delivery)
        self.send_one(topic, value, key, headers, partition, timestamp, True, &delivery.batch, &delivery.index,
                      &delivery.partition, &delivery.sent_timestamp)
        delivery.topic = topic
        if on_delivery is not None:
            delivery.report_to(on_delivery)
        return delivery

    def send_many(self, str topic not None, values, keys=None, headers=None, partitions=None, timestamps=None, *,
                  on_delivery=None) -> Deliveries:
        """Put a record for each of `values` into the queue, in their order, with one call. Return their Deliveries.

        values, keys: a list of what `send` takes; a NumPy array of type S (trailing zeros are not part of an item, as
        in NumPy), U, object, or uint8 with two dimensions (each row is one item); or an Arrow array of binary, string,
        large_binary, large_string or fixed_size_binary, chunked or not. Arrays of bytes are read without a copy.
        headers: headers for all records, as in `send`, or an Arrow array of list<struct<name, value>> with each
        record's own. partitions, timestamps: one int for all records, or a list, a NumPy or an Arrow array of integers.
        Where a partition is null, the partitioner chooses it.

        An exception in the middle has a note that says how many records have been taken. `on_delivery(error,
        deliveries)` is called once, when every record is delivered or has failed; error says why the first failed, or
        is None.
        """
        cdef Deliveries deliveries
        check_function(on_delivery)
        deliveries = send_columns(self, self.topic_of(topic), values, keys, headers, partitions, timestamps, None,
                                  False)
        if on_delivery is not None:
            deliveries.report_to(on_delivery)
        return deliveries

    def send_some(self, str topic not None, values, keys=None, headers=None, partitions=None, timestamps=None,
                  Deliveries taken=None) -> Deliveries:
        """Put records into the queue as `send_many` does, but take only those that there is room for now.

        `taken`: the Deliveries of an earlier call with the same arguments, to go on behind the records that it has
        taken. `len()` of the Deliveries is the number of records that all these calls have taken.
        """
        return send_columns(self, self.topic_of(topic), values, keys, headers, partitions, timestamps, taken, True)

