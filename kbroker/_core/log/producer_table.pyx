"""The producers of a partition for Python; see producer_table.pxd."""

from typing import NamedTuple

from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memset

from kbroker._core.base.raw_objects cimport let_others_run
from kbroker._core.log.producers cimport (
    DEFAULT_MAX_PRODUCERS, FROM_CLIENT, REMEMBERED_BATCHES, ended_t, producer_t, producers_check, producers_copy,
    producers_end, producers_expire, producers_first_undecided, producers_free, producers_longest_search, producers_new,
    producers_remember, producers_restore, producers_t, remembered_batch_t,
)
from kbroker._core.wire.layout cimport ATTRIBUTE_TRANSACTIONAL
from kbroker._core.wire.record_batch cimport batch_info_t
from kbroker._core.wire.transaction_marker cimport MARKER_ABORT, MARKER_COMMIT, marker_t


class RememberedBatch(NamedTuple):
    """A batch that a producer has appended."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int                   # ms


class ProducerEntry(NamedTuple):
    """A producer of a partition, with the batches that are remembered of it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp: int              # ms
    transaction_first_offset: int    # -1: no open transaction
    batches: list                    # of RememberedBatch, oldest first


class ActiveProducer(NamedTuple):
    """A producer of a partition, as DescribeProducers describes it (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int               # -1: no sequence of this epoch is known
    last_timestamp: int              # ms
    coordinator_epoch: int           # of the last marker; -1: no marker
    transaction_start_offset: int    # -1: no open transaction


# Makes a NamedTuple of a tuple without the constructor's Python code, in a third of the time.
cdef object named = tuple.__new__


cdef class ProducerTable:
    """The producers of one partition. Not thread-safe."""

    def __cinit__(self, int maximum=DEFAULT_MAX_PRODUCERS):
        self.table = producers_new()
        if self.table == NULL:
            raise MemoryError
        self.table.maximum = maximum

    def __dealloc__(self):
        producers_free(self.table)

    def __len__(self):
        return self.table.count

    def check(self, producer_id, epoch, base_sequence, record_count, *, transactional=False, verified=True,
              lowest_sequence=INT32_MAX, origin=FROM_CLIENT):
        """Check a batch before it is appended.

        Return (0, None): append it; (0, (base_offset, last_offset, timestamp)): a duplicate of that batch; (error code,
        None): refuse it.
        """
        cdef batch_info_t info
        cdef remembered_batch_t known
        fill(&info, producer_id, epoch, base_sequence, record_count, transactional)
        cdef int code = producers_check(self.table, &info, origin, verified, lowest_sequence, False, &known)
        if code == 1:
            return 0, (known.last_offset - known.offset_delta, known.last_offset, known.timestamp)
        return code, None

    def remember(self, producer_id, epoch, base_sequence, record_count, base_offset, timestamp, *, transactional=False):
        """Remember an appended batch."""
        cdef batch_info_t info
        fill(&info, producer_id, epoch, base_sequence, record_count, transactional)
        if producers_remember(self.table, &info, base_offset, timestamp) < 0:
            raise MemoryError

    def end(self, producer_id, epoch, coordinator_epoch, offset, timestamp, *, commit):
        """Remember an appended marker.

        Return (first offset of the transaction it ended or -1, last stable offset after it).
        """
        cdef batch_info_t info
        cdef marker_t marker
        cdef ended_t ended
        fill(&info, producer_id, epoch, -1, 1, True)
        marker.type = MARKER_COMMIT if commit else MARKER_ABORT
        marker.coordinator_epoch = coordinator_epoch
        if producers_end(self.table, &info, &marker, offset, timestamp, &ended) < 0:
            raise MemoryError
        return ended.first_offset, ended.last_stable_offset

    @property
    def longest_search(self):
        """The most slots that a search looks at: for the producer that is farthest from its home slot."""
        return producers_longest_search(self.table)

    @property
    def first_undecided_offset(self):
        """The first offset of the oldest open transaction; 2^63 - 1 when none is open."""
        return producers_first_undecided(self.table)

    def expire(self, oldest_timestamp):
        """Forget producers without an open transaction whose last batch is older than `oldest_timestamp` (ms)."""
        if producers_expire(self.table, oldest_timestamp) < 0:
            raise MemoryError

    def restore(self, producer_id, epoch, coordinator_epoch, last_timestamp, transaction_first_offset, batches):
        """Enter a producer, given as the fields of a ProducerEntry. Raises ValueError for more than five batches."""
        cdef producer_t producer
        memset(&producer, 0, sizeof(producer))
        if len(batches) > REMEMBERED_BATCHES:
            raise ValueError(f"{len(batches)} batches")
        producer.producer_id = producer_id
        producer.epoch = epoch
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp = last_timestamp
        producer.transaction_first_offset = transaction_first_offset
        for first_sequence, last_sequence, last_offset, offset_delta, timestamp in batches:
            producer.batches[producer.batch_count].first_sequence = first_sequence
            producer.batches[producer.batch_count].last_sequence = last_sequence
            producer.batches[producer.batch_count].last_offset = last_offset
            producer.batches[producer.batch_count].offset_delta = offset_delta
            producer.batches[producer.batch_count].timestamp = timestamp
            producer.batch_count += 1
        if producers_restore(self.table, &producer) < 0:
            raise MemoryError

    def states(self):
        """Return the producers as ActiveProducer, sorted by id.

        Other threads run during the call; none of them may change the table.
        """
        cdef producer_t **by_id = <producer_t **>malloc((<size_t>self.table.count + 1) * sizeof(producer_t *))
        cdef producer_t *producer
        cdef int32_t at
        if by_id == NULL:
            raise MemoryError
        with nogil:
            sort_by_id(self.table, by_id)
        states = []
        try:
            for at in range(self.table.count):
                producer = by_id[at]
                states.append(named(ActiveProducer, (
                    producer.producer_id, producer.epoch,
                    producer.batches[producer.batch_count - 1].last_sequence if producer.batch_count else -1,
                    producer.last_timestamp, producer.coordinator_epoch, producer.transaction_first_offset,
                )))
                let_others_run()
        finally:
            free(by_id)
        return states

    def export(self):
        """Return all producers as ProducerEntry, sorted by id."""
        cdef producer_t *producer
        exported = []
        for at in range(self.table.capacity):
            producer = &self.table.slots[at]
            if producer.producer_id != -1:
                exported.append(named(ProducerEntry, (
                    producer.producer_id, producer.epoch, producer.coordinator_epoch, producer.last_timestamp,
                    producer.transaction_first_offset,
                    [
                        named(RememberedBatch, (
                            producer.batches[i].first_sequence, producer.batches[i].last_sequence,
                            producer.batches[i].last_offset, producer.batches[i].offset_delta,
                            producer.batches[i].timestamp,
                        ))
                        for i in range(producer.batch_count)
                    ],
                )))
        exported.sort()
        return exported

    def copy(self):
        """Return another table with the same producers."""
        cdef ProducerTable other = ProducerTable(self.table.maximum)
        if producers_copy(self.table, other.table) < 0:
            raise MemoryError
        return other


cdef void sort_by_id(producers_t *table, producer_t **by_id) noexcept nogil:
    cdef int32_t count = 0
    cdef int32_t at
    for at in range(table.capacity):
        if table.slots[at].producer_id != -1:
            by_id[count] = &table.slots[at]
            count += 1
    qsort(by_id, <size_t>count, sizeof(producer_t *), compare_ids)


cdef int compare_ids(const void *left, const void *right) noexcept nogil:
    cdef int64_t a = (<const producer_t **>left)[0].producer_id
    cdef int64_t b = (<const producer_t **>right)[0].producer_id
    return (a > b) - (a < b)


cdef int fill(batch_info_t *info, object producer_id, object epoch, object base_sequence, object record_count,
              bint transactional) except -1:
    memset(info, 0, sizeof(batch_info_t))
    info.producer_id = producer_id
    info.producer_epoch = epoch
    info.base_sequence = base_sequence
    info.record_count = record_count
    info.last_offset_delta = record_count - 1
    info.attributes = ATTRIBUTE_TRANSACTIONAL if transactional else 0
    return 0
