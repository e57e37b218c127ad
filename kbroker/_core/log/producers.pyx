"""State of the producers of a partition; see producers.pxd. It refuses what Kafka 4.3 refuses (ProducerAppendInfo)."""

from libc.math cimport floor
from libc.stdint cimport INT64_MIN, int8_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.seeded_hash cimport seeded_hash_of_number
from kbroker._core.base.sync cimport atomic_add_i64, atomic_load_i64, atomic_store_i64
from kbroker._core.wire.error_codes cimport (
    UNKNOWN_SERVER_ERROR, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
    TRANSACTION_COORDINATOR_FENCED, UNKNOWN_PRODUCER_ID,
)
from kbroker._core.wire.layout cimport ATTRIBUTE_TRANSACTIONAL
from kbroker._core.wire.record_batch cimport batch_info_t
from kbroker._core.wire.transaction_marker cimport marker_t

cdef enum:
    MAX_SEQUENCE = 0x7fffffff
    MAX_EPOCH = 0x7fff
    FIRST_CAPACITY = 4
    SMALL_CAPACITY = 64          # a table grows to this size whatever the other tables take

cdef int64_t all_bytes = 0       # atomic; bytes of the slots of all tables in this process
cdef int64_t most_bytes = DEFAULT_MAX_BYTES

def limit_memory(long long most):
    """Set how many bytes the producers of all partitions of this process may take, approximately."""
    atomic_store_i64(&most_bytes, most)

def memory():
    """Return how many bytes the producers of all partitions of this process take."""
    return atomic_load_i64(&all_bytes)

cdef inline void count_slots(int64_t more) noexcept nogil:
    atomic_add_i64(&all_bytes, more * <int64_t>sizeof(producer_t))


cdef producers_t *producers_new() noexcept nogil:
    cdef producers_t *table = <producers_t *>calloc(1, sizeof(producers_t))
    if table != NULL:
        table.maximum = DEFAULT_MAX_PRODUCERS
    return table


cdef void producers_free(producers_t *table) noexcept nogil:
    if table != NULL:
        count_slots(-table.capacity)
        free(table.slots)
        free(table.open)
        free(table)


cdef inline int32_t home_of(const producers_t *table, int64_t producer_id) noexcept nogil:
    return <int32_t>seeded_hash_of_number(<uint64_t>producer_id) & (table.capacity - 1)


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
    """Put a producer into a free slot. The caller has made room and knows that the producer is not in the table."""
    cdef int32_t at = home_of(table, producer.producer_id)
    while table.slots[at].producer_id != -1:
        at = (at + 1) & (table.capacity - 1)
    table.slots[at] = producer[0]
    table.count += 1


cdef inline int64_t last_offset_of(const producer_t *producer) noexcept nogil:
    """Return the last offset of the producer's newest batch; -1 when it has appended only markers."""
    return producer.batches[producer.batch_count - 1].last_offset if producer.batch_count else -1


cdef inline bint stays(const producer_t *producer, int64_t oldest_timestamp, int64_t oldest_offset) noexcept nogil:
    return producer.producer_id != -1 and (
        producer.transaction_first_offset != -1
        or (producer.last_timestamp >= oldest_timestamp and last_offset_of(producer) >= oldest_offset)
    )


cdef int rebuild(producers_t *table, int32_t capacity, int64_t oldest_timestamp, int64_t oldest_offset) noexcept nogil:
    """Move the producers to a new table of `capacity` slots, but drop those silent since a time (ms) or an offset.

    A producer with an open transaction always stays. Returns 0, or -1 when memory is out.
    """
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
    count_slots(capacity - old_capacity)
    for at in range(old_capacity):
        if stays(&old[at], oldest_timestamp, oldest_offset):
            place(table, &old[at])
    free(old)
    return 0


cdef inline bint is_full(const producers_t *table) noexcept nogil:
    return (table.count + 1) * 4 > table.capacity * 3


cdef inline bint may_grow(const producers_t *table) noexcept nogil:
    """Return whether the limit for all partitions lets this table become twice as large."""
    return table.capacity < SMALL_CAPACITY or (
        atomic_load_i64(&all_bytes) + table.capacity * <int64_t>sizeof(producer_t) <= atomic_load_i64(&most_bytes)
    )


cdef int make_room(producers_t *table) noexcept nogil:
    """Make room for one more producer. Returns 0, or -1 when memory is out.

    At the maximum, or when the table may not grow, the silent half is forgotten: producers whose last batch is at or
    below the mean offset of all last batches. Offsets, not times, because timestamps are set by the producers.
    """
    cdef double sum_of_offsets = 0
    cdef int32_t at
    # Producers in a transaction stay. Where they are the majority, a search among the others at each new one gains
    # nothing.
    if (table.count >= table.maximum and table.count - table.open_count > table.maximum // 2) or (
            is_full(table) and not may_grow(table) and table.count - table.open_count > table.count // 2):
        for at in range(table.capacity):
            if table.slots[at].producer_id != -1:
                sum_of_offsets += <double>last_offset_of(&table.slots[at])
        if rebuild(table, table.capacity, INT64_MIN, <int64_t>floor(sum_of_offsets / table.count) + 1) < 0:
            return -1
    if is_full(table):
        return rebuild(table, table.capacity * 2 if table.capacity else FIRST_CAPACITY, INT64_MIN, INT64_MIN)
    return 0


# --- open transactions ------------------------------------------------------------------------------

cdef int make_open_room(producers_t *table) noexcept nogil:
    """Make room for one more open transaction. Returns 0, or -1 when memory is out."""
    cdef open_transaction_t *grown
    cdef int32_t kept = 0
    cdef int32_t at
    if table.open_end < table.open_capacity:
        return 0
    if table.open_count <= table.open_capacity // 2:
        for at in range(table.open_at, table.open_end):
            if table.open[at].producer_id != -1:
                table.open[kept] = table.open[at]
                kept += 1
        table.open_at = 0
        table.open_end = kept
        if kept < table.open_capacity:
            return 0
    grown = <open_transaction_t *>with_room(table.open, table.open_end, &table.open_capacity,
                                            sizeof(open_transaction_t))
    if grown == NULL:
        return -1
    table.open = grown
    return 0


cdef int32_t first_open_from(const producers_t *table, int64_t first_offset) noexcept nogil:
    """Return the index in `open` of the first transaction, ended or not, that begins at or behind `first_offset`."""
    cdef int32_t low = table.open_at
    cdef int32_t high = table.open_end
    cdef int32_t middle
    while low < high:
        middle = (low + high) >> 1
        if table.open[middle].first_offset < first_offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef int open_transaction(producers_t *table, int64_t producer_id, int64_t first_offset) noexcept nogil:
    """Enter an open transaction. Returns 0, or -1 when memory is out.

    A transaction that begins now goes behind all others; those of a snapshot come in any order.
    """
    cdef int32_t at
    if make_open_room(table) < 0:
        return -1
    at = table.open_end
    if at > table.open_at and table.open[at - 1].first_offset > first_offset:
        at = first_open_from(table, first_offset)
        memmove(&table.open[at + 1], &table.open[at], <size_t>(table.open_end - at) * sizeof(open_transaction_t))
    table.open[at].producer_id = producer_id
    table.open[at].first_offset = first_offset
    table.open_end += 1
    table.open_count += 1
    return 0


cdef void close_transaction(producers_t *table, int64_t producer_id, int64_t first_offset) noexcept nogil:
    cdef int32_t at = first_open_from(table, first_offset)
    while at < table.open_end and table.open[at].first_offset == first_offset:
        if table.open[at].producer_id == producer_id:
            table.open[at].producer_id = -1
            table.open_count -= 1
            break
        at += 1
    if table.open_count == 0:
        table.open_at = table.open_end = 0
    while table.open_at < table.open_end and table.open[table.open_at].producer_id == -1:
        table.open_at += 1


cdef void producers_foresee_end(producers_t *table, int64_t producer_id, int64_t offset, ended_t *ended) noexcept nogil:
    cdef producer_t *producer = find(table, producer_id)
    cdef int32_t at = table.open_at
    ended.first_offset = producer.transaction_first_offset if producer != NULL else -1
    ended.last_stable_offset = offset + 1
    while at < table.open_end and (table.open[at].producer_id == -1 or table.open[at].producer_id == producer_id):
        at += 1
    if at < table.open_end:
        ended.last_stable_offset = table.open[at].first_offset


cdef bint producers_in_transaction(producers_t *table, int64_t producer_id, int16_t epoch) noexcept nogil:
    cdef producer_t *producer = find(table, producer_id)
    return producer != NULL and producer.transaction_first_offset != -1 and producer.epoch == epoch


cdef bint producers_is_fenced(producers_t *table, int64_t producer_id, int16_t epoch) noexcept nogil:
    cdef producer_t *producer = find(table, producer_id)
    return producer != NULL and epoch < producer.epoch


cdef bint producers_has_batches(producers_t *table, int64_t producer_id) noexcept nogil:
    cdef producer_t *producer = find(table, producer_id)
    return producer != NULL and producer.batch_count > 0

# --- what may be appended ---------------------------------------------------------------------------

cdef inline int32_t last_sequence_of(batch_info_t *info) noexcept nogil:
    """Return the sequence of the batch's last record. Sequences wrap from 2^31-1 to 0."""
    return <int32_t>((<int64_t>info.base_sequence + info.last_offset_delta) & MAX_SEQUENCE)


cdef bint find_duplicate(const producer_t *producer, batch_info_t *info, remembered_batch_t *duplicate) noexcept nogil:
    cdef int32_t last_sequence = last_sequence_of(info)
    cdef int32_t at
    if info.producer_epoch != producer.epoch:
        return False
    for at in range(producer.batch_count):
        if producer.batches[at].first_sequence == info.base_sequence \
                and producer.batches[at].last_sequence == last_sequence:
            duplicate[0] = producer.batches[at]
            return True
    return False


cdef bint is_of_ended_transaction(const producer_t *producer, const remembered_batch_t *batch) noexcept nogil:
    """Return whether the transaction that a transactional batch was appended in has its marker."""
    return (producer.transaction_first_offset == -1
            or batch.last_offset - batch.offset_delta < producer.transaction_first_offset)


cdef bint is_next(const producer_t *producer, const batch_info_t *info) noexcept nogil:
    """Return whether the batch's sequence is the one expected next.

    That is the sequence behind the last batch; 0 in a new epoch; any sequence when no epoch is known.
    """
    if producer.epoch == -1:
        return True
    if info.producer_epoch != producer.epoch or producer.batch_count == 0:
        return info.base_sequence == 0
    return info.base_sequence == (
        (<int64_t>producer.batches[producer.batch_count - 1].last_sequence + 1) & MAX_SEQUENCE)


cdef int producers_check(producers_t *table, batch_info_t *info, int8_t origin, bint verified, int32_t lowest_sequence,
                         bint begins_later, remembered_batch_t *duplicate) noexcept nogil:
    cdef producer_t *producer
    cdef bint is_transactional = info.attributes & ATTRIBUTE_TRANSACTIONAL != 0
    if info.producer_id < 0:
        return 0
    producer = find(table, info.producer_id)
    if producer != NULL and origin == FROM_CLIENT and find_duplicate(producer, info, duplicate):
        # No producer repeats a batch of a transaction that it has ended. So these are new records, whose producer uses
        # sequences again: librdkafka does, when it aborts while a batch without an answer waits to be sent again. After
        # this error it aborts, takes a new epoch, and goes on; OUT_OF_ORDER_SEQUENCE_NUMBER would end it.
        if is_transactional and is_of_ended_transaction(producer, duplicate):
            return UNKNOWN_PRODUCER_ID
        return 1
    if producer != NULL and info.producer_epoch < producer.epoch:
        return INVALID_PRODUCER_EPOCH
    if is_transactional and not verified and not producers_in_transaction(table, info.producer_id, info.producer_epoch):
        return INVALID_TXN_STATE
    if origin == FROM_CLIENT and info.base_sequence > lowest_sequence:
        return OUT_OF_ORDER_SEQUENCE_NUMBER
    # KIP-360: an unknown producer may start with any sequence; its state may have expired here.
    if origin == FROM_CLIENT and producer != NULL and not is_next(producer, info):
        # Where a marker alone is left of the epoch, nobody can tell whether a batch is missing. By UNKNOWN_PRODUCER_ID
        # clients count anew, or abort the transaction and go on. librdkafka ends at the other error.
        if begins_later and producer.batch_count == 0 and producer.epoch == info.producer_epoch:
            return UNKNOWN_PRODUCER_ID
        return OUT_OF_ORDER_SEQUENCE_NUMBER
    if producer != NULL and producer.transaction_first_offset != -1 and not is_transactional:
        return INVALID_TXN_STATE
    if (producer == NULL and make_room(table) < 0) or (is_transactional and make_open_room(table) < 0):
        return UNKNOWN_SERVER_ERROR
    return 0


cdef int producers_check_marker(producers_t *table, batch_info_t *info, const marker_t *marker) noexcept nogil:
    cdef producer_t *producer = find(table, info.producer_id)
    if producer == NULL:
        return 0 if make_room(table) == 0 else UNKNOWN_SERVER_ERROR
    if info.producer_epoch < producer.epoch:
        return INVALID_PRODUCER_EPOCH
    # A bumped marker has a newer epoch than the transaction that it ends. With the epoch of the open transaction it
    # would end the one after, so it is refused. Two such markers are accepted: a marker that is sent again when no
    # transaction is open any more, and one with the last epoch, which the coordinator cannot raise.
    if (marker.bumped and info.producer_epoch == producer.epoch and producer.transaction_first_offset != -1
            and info.producer_epoch != MAX_EPOCH):
        return INVALID_PRODUCER_EPOCH
    return TRANSACTION_COORDINATOR_FENCED if marker.coordinator_epoch < producer.coordinator_epoch else 0

# --- what was appended ------------------------------------------------------------------------------

cdef producer_t *take_up(producers_t *table, batch_info_t *info, int64_t timestamp) noexcept nogil:
    """Return the producer of an appended batch, set to the batch's epoch and timestamp. NULL: memory is out."""
    cdef producer_t fresh
    cdef producer_t *producer = find(table, info.producer_id)
    if producer == NULL:
        if make_room(table) < 0:
            return NULL
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
    return producer


cdef int producers_remember(producers_t *table, batch_info_t *info, int64_t base_offset,
                            int64_t timestamp) noexcept nogil:
    cdef producer_t *producer
    cdef remembered_batch_t *batch
    if info.producer_id < 0:
        return 0
    producer = take_up(table, info, timestamp)
    if producer == NULL:
        return -1
    if info.attributes & ATTRIBUTE_TRANSACTIONAL and producer.transaction_first_offset == -1:
        if open_transaction(table, info.producer_id, base_offset) < 0:
            return -1
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


cdef int producers_end(producers_t *table, batch_info_t *info, const marker_t *marker, int64_t offset,
                       int64_t timestamp, ended_t *ended) noexcept nogil:
    cdef producer_t *producer
    producers_foresee_end(table, info.producer_id, offset, ended)
    producer = take_up(table, info, timestamp)
    if producer == NULL:
        return -1
    producer.coordinator_epoch = marker.coordinator_epoch
    if ended.first_offset != -1:
        close_transaction(table, info.producer_id, ended.first_offset)
        producer.transaction_first_offset = -1
    return 0

# --- the table as a whole ---------------------------------------------------------------------------

cdef int producers_expire(producers_t *table, int64_t oldest_timestamp) noexcept nogil:
    """Forget old producers, and build the table anew in the size that the others need, to give back memory."""
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


cdef int producers_restore(producers_t *table, producer_t *producer) noexcept nogil:
    cdef producer_t *known = find(table, producer.producer_id)
    if known == NULL and make_room(table) < 0:
        return -1
    if known != NULL and known.transaction_first_offset != -1:
        close_transaction(table, producer.producer_id, known.transaction_first_offset)
    if producer.transaction_first_offset != -1:
        if open_transaction(table, producer.producer_id, producer.transaction_first_offset) < 0:
            return -1
    if known != NULL:
        known[0] = producer[0]
    else:
        place(table, producer)
    return 0


cdef int32_t producers_longest_search(const producers_t *table) noexcept nogil:
    cdef int32_t at
    cdef int32_t longest = 0
    for at in range(table.capacity):
        if table.slots[at].producer_id != -1:
            longest = max(longest, 1 + ((at - home_of(table, table.slots[at].producer_id)) & (table.capacity - 1)))
    return longest


cdef int producers_copy(producers_t *source, producers_t *target) noexcept nogil:
    if source.capacity:
        target.slots = <producer_t *>malloc(<size_t>source.capacity * sizeof(producer_t))
        if target.slots == NULL:
            return -1
        memcpy(target.slots, source.slots, <size_t>source.capacity * sizeof(producer_t))
        target.capacity = source.capacity
        count_slots(source.capacity)
        target.count = source.count
    if source.open_count:
        target.open = <open_transaction_t *>malloc(<size_t>source.open_end * sizeof(open_transaction_t))
        if target.open == NULL:
            return -1
        memcpy(target.open, source.open, <size_t>source.open_end * sizeof(open_transaction_t))
        target.open_at = source.open_at
        target.open_end = target.open_capacity = source.open_end
        target.open_count = source.open_count
    return 0


cdef bint producers_had_markers(const producers_t *table) noexcept nogil:
    cdef int32_t i
    for i in range(table.capacity):
        if table.slots[i].producer_id >= 0 and table.slots[i].coordinator_epoch >= 0:
            return True
    return False
