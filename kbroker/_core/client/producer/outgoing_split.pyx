"""Splits batches; see outgoing_split.pxd."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker._core.base.sync cimport atomic_add_i32
from kbroker._core.client.producer.accumulator cimport batch_done, compress_later
from kbroker._core.client.producer.outgoing cimport (
    NO_SEQUENCE, OUTGOING_SPLIT, outgoing_new, outgoing_t, outgoing_unref, pool_give, pool_take,
)
from kbroker._core.client.producer.outgoing_list cimport list_pop, list_push_front
from kbroker._core.wire.layout cimport BATCH_HEADER_SIZE
from kbroker._core.wire.record cimport record_t, take_deltas
from kbroker._core.wire.varint cimport put_varlong, varlong_size


cdef outgoing_t *new_part(accumulator_t *a, outgoing_t *whole) noexcept nogil:
    cdef outgoing_t *part = outgoing_new()
    if part == NULL:
        return NULL
    part.data = pool_take(&a.pool, whole.size, &part.capacity)
    if part.data == NULL:
        outgoing_unref(part)
        return NULL
    part.queue = whole.queue
    part.made_ms = whole.made_ms
    part.attempts = whole.attempts
    part.base_timestamp = whole.base_timestamp
    part.max_timestamp = whole.base_timestamp
    part.producer_id = whole.producer_id
    part.producer_epoch = whole.producer_epoch
    return part


cdef const uint8_t *copy_records(outgoing_t *part, const uint8_t *p, const uint8_t *end, int32_t count) noexcept nogil:
    """Copy `count` records from `p` on into `part`, with offset deltas from 0 on.

    Return the end of the records at `p`.
    """
    cdef record_t record
    cdef uint8_t *out = part.data + part.size
    cdef int64_t rest
    cdef int64_t timestamp
    cdef int32_t i
    for i in range(count):
        p = take_deltas(p, end, &record)
        if p == NULL:                        # cannot happen: this producer has written the records
            break
        rest = record.stop - record.rest
        timestamp = part.base_timestamp + record.timestamp_delta
        if timestamp > part.max_timestamp:
            part.max_timestamp = timestamp
        out += put_varlong(out, 1 + varlong_size(record.timestamp_delta) + varlong_size(i) + rest)
        out[0] = record.attributes
        out += 1
        out += put_varlong(out, record.timestamp_delta)
        out += put_varlong(out, i)
        memcpy(out, record.rest, <size_t>rest)
        out += rest
    part.size = out - part.data
    part.count = count
    return p


cdef void link_part(accumulator_t *a, outgoing_t *part, outgoing_t *whole, int64_t number,
                    int32_t base_sequence) noexcept nogil:
    """Put a part into the list of batches that are not done, before `whole`, and count its bytes and its records."""
    part.number = number
    part.base_sequence = base_sequence
    part.charged = part.size
    a.used += part.size
    a.records += part.count
    part.older = whole.older
    part.newer = whole
    if whole.older != NULL:
        whole.older.newer = part
    else:
        a.oldest = part
    whole.older = part
    atomic_add_i32(&part.references, 1)      # the parent's


cdef bint restore_records(accumulator_t *a, outgoing_t *batch, const uint8_t *records, int64_t size) noexcept nogil:
    cdef int64_t capacity = 0
    cdef uint8_t *data
    if BATCH_HEADER_SIZE + size != batch.charged:
        return False
    data = pool_take(&a.pool, batch.charged, &capacity)
    if data == NULL:
        return False
    memcpy(data + BATCH_HEADER_SIZE, records, <size_t>size)
    pool_give(&a.pool, batch.data, batch.capacity)
    batch.data = data
    batch.capacity = capacity
    batch.size = batch.charged
    batch.compressed = False
    return True


cdef bint split_outgoing(accumulator_t *a, outgoing_list_t *items) noexcept nogil:
    cdef outgoing_t *whole = items.head
    cdef outgoing_t *first
    cdef outgoing_t *second
    cdef const uint8_t *p
    cdef const uint8_t *end
    cdef int32_t base = whole.base_sequence
    cdef int32_t half = whole.count // 2
    if whole.count < 2 or whole.compressed or whole.number_step < 2:
        return False
    first = new_part(a, whole)
    second = new_part(a, whole)
    if first == NULL or second == NULL:
        if first != NULL:
            outgoing_unref(first)
        if second != NULL:
            outgoing_unref(second)
        return False
    end = whole.data + whole.size
    p = copy_records(first, whole.data + BATCH_HEADER_SIZE, end, half)
    copy_records(second, p, end, whole.count - half)
    first.number_step = second.number_step = whole.number_step // 2
    list_pop(items)
    link_part(a, first, whole, whole.number - first.number_step, base)
    if base != NO_SEQUENCE:
        base = <int32_t>((<int64_t>base + half) & 0x7fffffff)
    link_part(a, second, whole, whole.number, base)
    list_push_front(items, second)
    list_push_front(items, first)
    if a.codec:
        compress_later(a, first)
        compress_later(a, second)
    whole.parts = first
    first.sibling = second
    # Deliveries of `whole` look at its parts from now on. Its callbacks move to the parts in run_callbacks.
    if batch_done(a, whole, OUTGOING_SPLIT):
        whole.next = a.split_watched
        a.split_watched = whole
    return True
