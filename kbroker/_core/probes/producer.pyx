"""Delivers a producer's batches at once, without sending a byte, for tests and benches of the producer's queues."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t

from kbroker._core.base.sync cimport mutex_lock, mutex_unlock
from kbroker._core.client.producer.accumulator cimport Accumulator, accumulator_t, batch_done, queue_t, seal_open
from kbroker._core.client.producer.delivery cimport run_callbacks
from kbroker._core.client.producer.outgoing cimport OUTGOING_DELIVERED, outgoing_seal, outgoing_t
from kbroker._core.client.producer.outgoing_list cimport list_pop


def deliver(Accumulator accumulator not None, int64_t base_offset=0, bint copy=True) -> list:
    """Deliver all queued batches, the first one of each partition at `base_offset`.

    Return (topic, partition, batch) of each, or an empty list if not `copy`.
    """
    cdef accumulator_t *a = &accumulator.a
    cdef queue_t *queue
    cdef outgoing_t *batch
    cdef int64_t offset
    taken = []
    while True:
        mutex_lock(&a.lock)
        queue = a.active
        if queue != NULL:
            a.active = queue.next_active
            queue.active = False
            seal_open(a, queue)
        mutex_unlock(&a.lock)
        if queue == NULL:
            return taken
        offset = base_offset
        while True:
            mutex_lock(&a.lock)
            batch = list_pop(&queue.sealed)
            mutex_unlock(&a.lock)
            if batch == NULL:
                break
            if copy:
                outgoing_seal(batch, a.transactional)
                taken.append((queue.topic.name.decode(), queue.partition_id,
                              PyBytes_FromStringAndSize(<char *>batch.data, batch.size)))
            batch.base_offset = offset
            offset += batch.count
            mutex_lock(&a.lock)
            watched = batch_done(a, batch, OUTGOING_DELIVERED)
            mutex_unlock(&a.lock)
            if watched:
                run_callbacks(batch)
