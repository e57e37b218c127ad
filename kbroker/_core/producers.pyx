"""State of idempotent producers in one partition; see producers.pxd."""

from libc.math cimport floor
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset

from kbroker._core.layout cimport ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL
from kbroker._core.record_batch cimport batch_info_t

cdef enum:
    UNKNOWN_SERVER_ERROR = -1
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    MAX_SEQUENCE = 0x7fffffff
    FIRST_CAPACITY = 4


cdef producers_t *producers_new() noexcept nogil:
    cdef producers_t *table = <producers_t *>calloc(1, sizeof(producers_t))
    if table != NULL:
        table.maximum = DEFAULT_MAX_PRODUCERS
    return table


cdef void producers_free(producers_t *table) noexcept nogil:
    if table != NULL:
        free(table.slots)
        free(table)


cdef inline int32_t home_of(producers_t *table, int64_t producer_id) noexcept nogil:
    return <int32_t>((<uint64_t>producer_id * <uint64_t>0x9E3779B97F4A7C15) >> 32) & (table.capacity - 1)


cdef producer_t *find(producers_t *table, int64_t producer_id) noexcept nogil:
    cdef int32_t at
    if table.capacity == 0:
        return NULL
    at = home_of(table, producer_id)
    while table.slots[at].producer_id != -1:
        if table.slots[at].producer_id == producer_id:
            return &table.slots[at]
        at = (at + 1) & (table.capacity - 1)
    return NULL


cdef void place(producers_t *table, producer_t *producer) noexcept nogil:
    """Into a free slot; the caller has seen to room and to its not being there."""
    cdef int32_t at = home_of(table, producer.producer_id)
    while table.slots[at].producer_id != -1:
        at = (at + 1) & (table.capacity - 1)
    table.slots[at] = producer[0]
    table.count += 1


cdef inline int64_t last_offset_of(const producer_t *producer) noexcept nogil:
    """-1: there was a marker only."""
    return producer.batches[producer.batch_count - 1].last_offset if producer.batch_count else -1


cdef inline bint stays(const producer_t *producer, int64_t oldest_timestamp, int64_t oldest_offset) noexcept nogil:
    return producer.producer_id != -1 and (
        producer.transaction_first_offset != -1
        or (producer.last_timestamp >= oldest_timestamp and last_offset_of(producer) >= oldest_offset)
    )


cdef int rebuild(producers_t *table, int32_t capacity, int64_t oldest_timestamp, int64_t oldest_offset) noexcept nogil:
    """Everybody but those silent since before a time or an offset into a table of `capacity` slots. -1: memory is out."""
    cdef producer_t *slots = <producer_t *>malloc(<size_t>capacity * sizeof(producer_t))
    cdef producer_t *old = table.slots
    cdef int32_t old_capacity = table.capacity
    cdef int32_t at
    if slots == NULL:
        return -1
    for at in range(capacity):
        slots[at].producer_id = -1
    table.slots = slots
    table.capacity = capacity
    table.count = 0
    for at in range(old_capacity):
        if stays(&old[at], oldest_timestamp, oldest_offset):
            place(table, &old[at])
    free(old)
    return 0


cdef int make_room(producers_t *table) noexcept nogil:
    """One more producer fits after this. At the maximum the silent half goes, by the mean offset of the last batch: times are
    the producers' own."""
    cdef double sum_of_offsets = 0
    cdef int32_t at
    if table.count >= table.maximum:
        for at in range(table.capacity):
            if table.slots[at].producer_id != -1:
                sum_of_offsets += <double>last_offset_of(&table.slots[at])
        if rebuild(table, table.capacity, INT64_MIN, <int64_t>floor(sum_of_offsets / table.count) + 1) < 0:
            return -1
    if (table.count + 1) * 4 > table.capacity * 3:
        return rebuild(table, table.capacity * 2 if table.capacity else FIRST_CAPACITY, INT64_MIN, INT64_MIN)
    return 0


cdef inline int32_t last_sequence_of(batch_info_t *info) noexcept nogil:
    """Sequences wrap from 2^31-1 to 0."""
    return <int32_t>((<int64_t>info.base_sequence + info.last_offset_delta) & MAX_SEQUENCE)


cdef int producers_check(producers_t *table, batch_info_t *info, remembered_batch_t *duplicate) noexcept nogil:
    cdef producer_t *producer
    cdef int32_t last_sequence
    cdef int32_t at
    if info.producer_id < 0:
        return 0
    producer = find(table, info.producer_id)
    if producer == NULL:
        # KIP-360: an unknown producer may start with any sequence; its state may have expired here.
        return 0 if make_room(table) == 0 else UNKNOWN_SERVER_ERROR
    if info.attributes & ATTRIBUTE_CONTROL:
        return INVALID_PRODUCER_EPOCH if info.producer_epoch < producer.epoch else 0
    if info.producer_epoch == producer.epoch:
        last_sequence = last_sequence_of(info)
        for at in range(producer.batch_count):
            if (
                producer.batches[at].first_sequence == info.base_sequence
                and producer.batches[at].last_sequence == last_sequence
            ):
                duplicate[0] = producer.batches[at]
                return 1
        if producer.batch_count == 0:
            # The epoch is known, from a marker or a bump, but no batch of it: it starts at 0.
            return 0 if info.base_sequence == 0 else OUT_OF_ORDER_SEQUENCE_NUMBER
        last_sequence = producer.batches[producer.batch_count - 1].last_sequence
        if info.base_sequence == ((<int64_t>last_sequence + 1) & MAX_SEQUENCE):
            return 0
        return OUT_OF_ORDER_SEQUENCE_NUMBER
    if info.producer_epoch < producer.epoch:
        return INVALID_PRODUCER_EPOCH
    if info.base_sequence != 0 and producer.epoch != -1:
        return OUT_OF_ORDER_SEQUENCE_NUMBER
    return 0


cdef int producers_remember(producers_t *table, batch_info_t *info, int64_t base_offset, int64_t timestamp) noexcept nogil:
    cdef producer_t fresh
    cdef producer_t *producer
    cdef remembered_batch_t *batch
    if info.producer_id < 0:
        return 0
    producer = find(table, info.producer_id)
    if producer == NULL:
        if make_room(table) < 0:
            return -1
        memset(&fresh, 0, sizeof(fresh))
        fresh.producer_id = info.producer_id
        fresh.epoch = info.producer_epoch
        fresh.coordinator_epoch = -1
        fresh.transaction_first_offset = -1
        place(table, &fresh)
        producer = find(table, info.producer_id)
    if producer.epoch != info.producer_epoch:
        producer.epoch = info.producer_epoch
        producer.batch_count = 0
    producer.last_timestamp = timestamp
    if info.attributes & ATTRIBUTE_CONTROL:
        producer.transaction_first_offset = -1
        return 0
    if info.attributes & ATTRIBUTE_TRANSACTIONAL and producer.transaction_first_offset == -1:
        producer.transaction_first_offset = base_offset
    if producer.batch_count == REMEMBERED_BATCHES:
        memmove(&producer.batches[0], &producer.batches[1], (REMEMBERED_BATCHES - 1) * sizeof(remembered_batch_t))
        producer.batch_count -= 1
    batch = &producer.batches[producer.batch_count]
    producer.batch_count += 1
    batch.first_sequence = info.base_sequence
    batch.last_sequence = last_sequence_of(info)
    batch.last_offset = base_offset + info.last_offset_delta
    batch.offset_delta = info.last_offset_delta
    batch.timestamp = timestamp
    return 0


cdef int producers_expire(producers_t *table, int64_t oldest_timestamp) noexcept nogil:
    """The table is made anew, as large as those who stay need it: memory goes back."""
    cdef int32_t kept = 0
    cdef int32_t capacity = FIRST_CAPACITY
    cdef int32_t at
    for at in range(table.capacity):
        kept += stays(&table.slots[at], oldest_timestamp, INT64_MIN)
    if kept == table.count:
        return 0
    while kept * 4 > capacity * 3:
        capacity *= 2
    return rebuild(table, capacity, oldest_timestamp, INT64_MIN)


cdef int64_t producers_first_undecided(const producers_t *table) noexcept nogil:
    cdef int64_t first = INT64_MAX
    cdef int64_t offset
    cdef int32_t at
    for at in range(table.capacity):
        offset = table.slots[at].transaction_first_offset
        if table.slots[at].producer_id != -1 and 0 <= offset < first:
            first = offset
    return first


cdef int producers_put(producers_t *table, producer_t *producer) noexcept nogil:
    cdef producer_t *known = find(table, producer.producer_id)
    if known != NULL:
        known[0] = producer[0]
        return 0
    if make_room(table) < 0:
        return -1
    place(table, producer)
    return 0


cdef int producers_copy(producers_t *source, producers_t *target) noexcept nogil:
    if source.capacity:
        target.slots = <producer_t *>malloc(<size_t>source.capacity * sizeof(producer_t))
        if target.slots == NULL:
            return -1
        memcpy(target.slots, source.slots, <size_t>source.capacity * sizeof(producer_t))
    target.capacity = source.capacity
    target.count = source.count
    return 0


cdef class ProducerTable:
    """Producers of one partition: `(producer_id, epoch, coordinator_epoch, last_timestamp, transaction_first_offset, batches)`,
    each batch `(first_sequence, last_sequence, last_offset, offset_delta, timestamp)`, oldest first. Not thread-safe."""

    def __cinit__(self, int maximum=DEFAULT_MAX_PRODUCERS):
        self.table = producers_new()
        if self.table == NULL:
            raise MemoryError
        self.table.maximum = maximum

    def __dealloc__(self):
        producers_free(self.table)

    def __len__(self):
        return self.table.count

    def check(self, producer_id, epoch, base_sequence, record_count, *, control=False):
        """`(0, None)`: append it; `(0, (base_offset, last_offset, timestamp))`: a duplicate; `(error code, None)`."""
        cdef batch_info_t info
        cdef remembered_batch_t known
        fill(&info, producer_id, epoch, base_sequence, record_count, control)
        cdef int code = producers_check(self.table, &info, &known)
        if code == 1:
            return 0, (known.last_offset - known.offset_delta, known.last_offset, known.timestamp)
        return code, None

    def remember(self, producer_id, epoch, base_sequence, record_count, base_offset, timestamp, *, control=False):
        """An appended batch."""
        cdef batch_info_t info
        fill(&info, producer_id, epoch, base_sequence, record_count, control)
        if producers_remember(self.table, &info, base_offset, timestamp) < 0:
            raise MemoryError

    def expire(self, oldest_timestamp):
        """Forget producers whose last batch is older."""
        if producers_expire(self.table, oldest_timestamp) < 0:
            raise MemoryError

    def put(self, producer_id, epoch, coordinator_epoch, last_timestamp, transaction_first_offset, batches):
        """Take over a producer with at most five batches."""
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
        if producers_put(self.table, &producer) < 0:
            raise MemoryError

    def export(self):
        """All producers, by id."""
        cdef producer_t *producer
        exported = []
        for at in range(self.table.capacity):
            producer = &self.table.slots[at]
            if producer.producer_id != -1:
                exported.append((
                    producer.producer_id, producer.epoch, producer.coordinator_epoch, producer.last_timestamp,
                    producer.transaction_first_offset,
                    [
                        (
                            producer.batches[i].first_sequence, producer.batches[i].last_sequence,
                            producer.batches[i].last_offset, producer.batches[i].offset_delta,
                            producer.batches[i].timestamp,
                        )
                        for i in range(producer.batch_count)
                    ],
                ))
        exported.sort()
        return exported

    def copy(self):
        """Another table with the same producers."""
        cdef ProducerTable other = ProducerTable(self.table.maximum)
        if producers_copy(self.table, other.table) < 0:
            raise MemoryError
        return other


cdef int fill(batch_info_t *info, object producer_id, object epoch, object base_sequence, object record_count,
              bint control) except -1:
    memset(info, 0, sizeof(batch_info_t))
    info.producer_id = producer_id
    info.producer_epoch = epoch
    info.base_sequence = base_sequence
    info.record_count = record_count
    info.last_offset_delta = record_count - 1
    info.attributes = ATTRIBUTE_CONTROL if control else 0
    return 0
