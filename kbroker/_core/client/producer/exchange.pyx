"""Produce requests under way; see exchange.pxd."""

from cpython.ref cimport Py_XDECREF
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memmove, memset

from kbroker._core.base.sockets cimport iovec
from kbroker._core.client.producer.accumulator cimport queue_t
from kbroker._core.wire.cursor cimport writer_free, writer_init

cdef enum:
    MOST_KEPT_TEXT = 64 << 10    # bytes of the frame's buffer (without batches) that a free exchange keeps at most


cdef produce_exchange_t *exchange_new() noexcept nogil:
    cdef produce_exchange_t *exchange = <produce_exchange_t *>calloc(1, sizeof(produce_exchange_t))
    if exchange != NULL:
        writer_init(&exchange.out)
    return exchange


cdef void exchange_free(produce_exchange_t *exchange) noexcept nogil:
    free(exchange.batches)
    free(exchange.entries)
    free(exchange.pieces)
    writer_free(&exchange.out)
    free(exchange)


cdef void exchange_reset(produce_exchange_t *exchange) noexcept nogil:
    if exchange.out.capacity > MOST_KEPT_TEXT:
        writer_free(&exchange.out)
    if exchange.older != NULL:
        with gil:
            Py_XDECREF(exchange.older)
            exchange.older = NULL
    exchange.next = NULL
    exchange.count = 0
    exchange.size = 0
    exchange.out.size = 0
    exchange.out.failed = False


cdef bint exchange_room(produce_exchange_t *exchange) noexcept nogil:
    cdef int32_t capacity = exchange.capacity
    cdef void *grown
    if exchange.count < capacity:
        return True
    capacity = 2 * capacity if capacity else 8
    grown = realloc(exchange.batches, <size_t>capacity * sizeof(outgoing_t *))
    if grown == NULL:
        return False
    exchange.batches = <outgoing_t **>grown
    grown = realloc(exchange.entries, <size_t>capacity * sizeof(produce_entry_t))
    if grown == NULL:
        return False
    exchange.entries = <produce_entry_t *>grown
    grown = realloc(exchange.pieces, <size_t>(2 * capacity + 1) * sizeof(iovec))
    if grown == NULL:
        return False
    exchange.pieces = <iovec *>grown
    exchange.capacity = capacity
    return True


cdef void exchange_add(produce_exchange_t *exchange, outgoing_t *batch) noexcept nogil:
    exchange.batches[exchange.count] = batch
    exchange.count += 1
    exchange.size += batch.size


cdef void exchange_remove(produce_exchange_t *exchange, int32_t i) noexcept nogil:
    exchange.count -= 1
    exchange.size -= exchange.batches[i].size
    memmove(&exchange.batches[i], &exchange.batches[i + 1], <size_t>(exchange.count - i) * sizeof(outgoing_t *))
    memmove(&exchange.entries[i], &exchange.entries[i + 1], <size_t>(exchange.count - i) * sizeof(produce_entry_t))


cdef int by_topic(const void *one, const void *other) noexcept nogil:
    cdef const queue_t *a = <const queue_t *>(<outgoing_t **>one)[0].queue
    cdef const queue_t *b = <const queue_t *>(<outgoing_t **>other)[0].queue
    if a.topic != b.topic:
        return -1 if <size_t>a.topic < <size_t>b.topic else 1
    return a.partition_id - b.partition_id


cdef void exchange_sort(produce_exchange_t *exchange) noexcept nogil:
    cdef produce_entry_t *entry
    cdef queue_t *queue
    cdef int32_t i
    qsort(exchange.batches, exchange.count, sizeof(outgoing_t *), by_topic)
    for i in range(exchange.count):
        queue = <queue_t *>exchange.batches[i].queue
        entry = &exchange.entries[i]
        memset(entry, 0, sizeof(produce_entry_t))
        entry.topic = queue.topic.name
        entry.topic_size = queue.topic.name_size
        entry.partition_id = queue.partition_id
        entry.data = exchange.batches[i].data
        entry.size = exchange.batches[i].size
