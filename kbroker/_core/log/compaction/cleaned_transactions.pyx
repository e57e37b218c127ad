"""Producers and transactions of a log for compaction (Kafka 3.9: CleanedTransactionMetadata); see the .pxd."""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

from kbroker._core.wire.layout cimport *
from kbroker._core.wire.record_batch cimport batch_info_t
from kbroker._core.wire.transaction_marker cimport MARKER_ABORT, MARKER_COMMIT

from collections import deque

from kbroker.model import number_key

@cython.final
cdef class LastBatches:
    """The place of each living producer's last sequence: (producer id, last offset of records or -1, epoch)."""

    def __init__(self, producers=()):
        rows = sorted(producers)
        if self.entries != NULL:
            raise TypeError("made once")
        self.entries = <last_batch_t *>malloc(sizeof(last_batch_t) * (len(rows) + 1))
        if self.entries == NULL:
            raise MemoryError
        for producer_id, data_offset, epoch in rows:
            self.entries[self.count].producer_id = producer_id
            self.entries[self.count].data_offset = data_offset
            self.entries[self.count].epoch = epoch
            self.count += 1

    def __dealloc__(self):
        free(self.entries)

    def __len__(self):
        return self.count


cdef bint is_last_of_producer(LastBatches producers, const batch_info_t *info) noexcept nogil:
    cdef int64_t low = 0
    cdef int64_t high = producers.count
    cdef int64_t middle
    cdef last_batch_t *entry
    if info.producer_id < 0:
        return False
    while low < high:
        middle = (low + high) // 2
        if producers.entries[middle].producer_id < info.producer_id:
            low = middle + 1
        else:
            high = middle
    if low == producers.count or producers.entries[low].producer_id != info.producer_id:
        return False
    entry = &producers.entries[low]
    if entry.data_offset >= 0:
        return info.base_offset + info.last_offset_delta == entry.data_offset
    return info.attributes & ATTRIBUTE_CONTROL != 0 and info.producer_epoch == entry.epoch


@cython.final
cdef class Transactions:
    """The state of transactions as a pass goes through a run of segments by offset. Each pass needs a new one.

    `aborted` are the .txnindex entries of that run, tuples that begin with (producer id, first offset). `kept` collects
    those of which the pass still met records: the entries of the copy's .txnindex.
    """

    def __init__(self, aborted=()):
        self.waiting = deque(sorted(aborted, key=lambda entry: entry[1]))
        self.aborted = {}
        self.committed = set()
        self.kept = []

    cdef int begin_to(self, int64_t offset) except -1:
        while self.waiting and self.waiting[0][1] <= offset:
            entry = self.waiting.popleft()
            self.aborted.setdefault(number_key(entry[0]), [entry, False])
        return 0


cdef int data_is_aborted(Transactions transactions, const batch_info_t *info) except -1 with gil:
    transactions.begin_to(info.base_offset + info.last_offset_delta)
    producer = number_key(info.producer_id)
    known = transactions.aborted.get(producer)
    if known is None:
        transactions.committed.add(producer)
        return False
    known[1] = True
    return True


cdef int marker_is_spent(Transactions transactions, const batch_info_t *info, int marker) except -1 with gil:
    """Return whether a marker ends a transaction of which no records were met."""
    transactions.begin_to(info.base_offset + info.last_offset_delta)
    producer = number_key(info.producer_id)
    if marker == MARKER_ABORT:
        known = transactions.aborted.pop(producer, None)
        if known is None or not known[1]:
            return True
        transactions.kept.append(known[0])
        return False
    if marker == MARKER_COMMIT:
        if producer not in transactions.committed:
            return True
        transactions.committed.discard(producer)
    return False
