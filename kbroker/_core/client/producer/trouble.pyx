"""Carries out decisions about refused batches; see trouble.pxd. `client/producer/sender.py` decides."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int64_t, uint8_t

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sync cimport mutex_lock, mutex_unlock
from kbroker._core.client.producer.accumulator cimport accumulator_t
from kbroker._core.client.producer.delivery cimport fail_list, run_callbacks
from kbroker._core.client.producer.engine cimport wake_engine
from kbroker._core.client.producer.outgoing cimport NO_SEQUENCE, outgoing_t
from kbroker._core.client.producer.outgoing_list cimport list_pop, list_push, outgoing_list_t
from kbroker._core.client.producer.outgoing_split cimport restore_records, split_outgoing
from kbroker._core.wire.layout cimport BATCH_HEADER_SIZE

from collections import namedtuple

TroubledBatch = namedtuple("TroubledBatch",
                           "error refusal text record_count attempts base_sequence age_ms leader leader_epoch")


cdef void renumber_from(queue_t *queue, outgoing_t *batch) noexcept nogil:
    """Give new sequences to all held and sealed batches when they are sent, from the sequence of `batch` on."""
    if batch.base_sequence != NO_SEQUENCE:
        queue.next_sequence = batch.base_sequence
    batch = queue.held.head
    while batch != NULL:
        batch.base_sequence = NO_SEQUENCE
        batch = batch.next
    batch = queue.sealed.head
    while batch != NULL:
        batch.base_sequence = NO_SEQUENCE
        batch = batch.next


def troubles(ProduceEngine engine not None) -> list:
    """Return a Trouble for each partition that waits for a decision and that was not returned before."""
    cdef queue_t *queue
    cdef queue_t *waiting = NULL
    cdef outgoing_t *batch
    cdef Trouble trouble
    cdef int64_t now = monotonic_ms()
    cdef list found = []
    mutex_lock(&engine.a.lock)
    queue = engine.a.active
    while queue != NULL:
        if queue.muted and queue.in_flight == 0 and not queue.told:
            queue.told = True
            queue.next_found = waiting
            waiting = queue
        queue = queue.next_active
    mutex_unlock(&engine.a.lock)
    while waiting != NULL:
        trouble = Trouble.__new__(Trouble)
        trouble.queue = waiting
        trouble.engine = engine
        trouble.topic = waiting.topic.name.decode()
        trouble.partition = waiting.partition_id
        trouble.batches = []
        batch = waiting.held.head
        while batch != NULL:
            text = batch.text.decode("utf-8", "replace") if batch.text != NULL else None
            trouble.batches.append(TroubledBatch(batch.error, batch.refusal, text, batch.count, batch.attempts,
                                                 batch.base_sequence, now - batch.made_ms, batch.leader,
                                                 batch.leader_epoch))
            batch = batch.next
        found.append(trouble)
        waiting = waiting.next_found
    return found


cdef class Trouble:
    def __init__(self):
        raise TypeError("made by troubles")

    cdef int restore(self, inflate) except -1:
        cdef outgoing_t *batch = self.queue.held.head
        cdef bytes records
        if batch == NULL or not batch.compressed or batch.count < 2:
            return 0
        # Only this thread touches held batches, so the lock is not needed here.
        records = inflate(batch.codec,
                          PyBytes_FromStringAndSize(<char *>batch.data + BATCH_HEADER_SIZE,
                                                    batch.size - BATCH_HEADER_SIZE))
        mutex_lock(&self.engine.a.lock)
        restore_records(self.engine.a, batch, <const uint8_t *>PyBytes_AS_STRING(records), len(records))
        mutex_unlock(&self.engine.a.lock)
        return 0

    def resend(self, int64_t after_ms=0, *, bint renumber=False) -> None:
        """Send all held batches again, in their order, `after_ms` milliseconds from now.

        With `renumber` they get new sequences: from the first one's sequence on or, if the producer has a new id or
        epoch, from 0 on.
        """
        cdef queue_t *queue = self.queue
        cdef accumulator_t *a = self.engine.a
        cdef outgoing_list_t again
        mutex_lock(&a.lock)
        if renumber and queue.held.head != NULL:
            renumber_from(queue, queue.held.head)
        elif renumber and queue.sealed.head != NULL:
            renumber_from(queue, queue.sealed.head)
        again = queue.held
        queue.held.head = queue.held.tail = NULL
        if again.head != NULL:
            again.head.retry_ms = monotonic_ms() + after_ms
            again.tail.next = queue.sealed.head
            if queue.sealed.tail == NULL:
                queue.sealed.tail = again.tail
            queue.sealed.head = again.head
        queue.muted = False
        queue.told = False
        mutex_unlock(&a.lock)
        wake_engine(self.engine)

    def fail(self, error not None, int count=INT32_MAX) -> None:
        """Fail the first `count` held batches with `error`; the batches behind them get their sequences.

        `resend` has to be called afterwards for the rest, even if there is none.
        """
        cdef queue_t *queue = self.queue
        cdef outgoing_list_t failed
        failed.head = failed.tail = NULL
        mutex_lock(&self.engine.a.lock)
        while count > 0 and queue.held.head != NULL:
            list_push(&failed, list_pop(&queue.held))
            count -= 1
        if failed.head != NULL and failed.head.base_sequence != NO_SEQUENCE:
            renumber_from(queue, failed.head)
        mutex_unlock(&self.engine.a.lock)
        fail_list(self.engine.a, &failed, error)
        wake_engine(self.engine)             # for tell_when_empty: nothing may be left

    def split(self, inflate=None) -> bool:
        """Split the first held batch into two. Return False if it cannot be split: a single record cannot.

        `inflate(codec, data)` decompresses the records of a compressed batch.
        """
        cdef bint done
        cdef outgoing_t *whole
        self.restore(inflate)
        mutex_lock(&self.engine.a.lock)
        done = self.queue.held.head != NULL and split_outgoing(self.engine.a, &self.queue.held)
        whole = self.engine.a.split_watched
        self.engine.a.split_watched = NULL
        mutex_unlock(&self.engine.a.lock)
        if whole != NULL:
            run_callbacks(whole)
        return done
