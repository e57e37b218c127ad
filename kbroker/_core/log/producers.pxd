"""State of producers in one partition: epoch, the last five batches and the open transaction of each (KIP-98, KIP-360)."""

from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t

from kbroker._core.wire.record_batch cimport batch_info_t
from kbroker._core.wire.transaction_marker cimport marker_t

cdef enum:
    # Who appends, and so what is checked of the producer (Kafka: AppendOrigin).
    FROM_CLIENT = 0              # epoch, sequence, duplicates, transaction
    FROM_COORDINATOR = 1         # a coordinator of groups, for a transaction: its batches have no sequences

    REMEMBERED_BATCHES = 5
    DEFAULT_MAX_PRODUCERS = 32768    # per partition; 200 bytes each. The longest silent ones make room.
    DEFAULT_MAX_BYTES = 256 << 20    # of all partitions together, but for small tables

ctypedef struct remembered_batch_t:
    int32_t first_sequence
    int32_t last_sequence
    int64_t last_offset
    int32_t offset_delta
    int64_t timestamp

ctypedef struct producer_t:
    int64_t producer_id                 # -1: the slot is free
    int16_t epoch                       # -1: nothing appended yet, any sequence is accepted
    int16_t batch_count
    int32_t coordinator_epoch
    int64_t last_timestamp
    int64_t transaction_first_offset    # -1: none open
    remembered_batch_t batches[5]       # oldest first

ctypedef struct open_transaction_t:
    int64_t producer_id                 # -1: it is over
    int64_t first_offset

ctypedef struct producers_t:
    # Open addressing by producer_id. Guarded by the partition's append_lock.
    producer_t *slots
    int32_t capacity                    # 0 until the first producer comes
    int32_t count
    int32_t maximum
    open_transaction_t *open            # ascending by first offset; the one at open_at is not over
    int32_t open_at
    int32_t open_end
    int32_t open_capacity
    int32_t open_count                  # that are not over

ctypedef struct ended_t:
    # What a marker has ended.
    int64_t first_offset                # -1: nothing
    int64_t last_stable_offset          # after it

cdef producers_t *producers_new() noexcept nogil
cdef void producers_free(producers_t *table) noexcept nogil

# 0 = append it; 1 = duplicate, `duplicate` tells the first append's offsets; else a Kafka error code. A batch without
# producer id is always 0. `verified`: the coordinator knows that the transaction begins here. `lowest_sequence`: of what
# was sent and is not appended, INT32_MAX when nothing. After 0 there is room: producers_remember cannot fail.
cdef int producers_check(producers_t *table, batch_info_t *info, int8_t origin, bint verified, int32_t lowest_sequence,
                         remembered_batch_t *duplicate) noexcept nogil
# Of the end of a transaction. 0, a Kafka error code. After 0 there is room.
cdef int producers_check_marker(producers_t *table, batch_info_t *info, const marker_t *marker) noexcept nogil
# Whether the producer has a transaction here, of that epoch.
cdef bint producers_in_transaction(producers_t *table, int64_t producer_id, int16_t epoch) noexcept nogil
# Whether a newer epoch of the producer has been here.
cdef bint producers_is_fenced(producers_t *table, int64_t producer_id, int16_t epoch) noexcept nogil
# Whether a batch of the producer is known.
cdef bint producers_has_batches(producers_t *table, int64_t producer_id) noexcept nogil
# Remember an appended batch that is no control batch. -1 when memory is out.
cdef int producers_remember(producers_t *table, batch_info_t *info, int64_t base_offset, int64_t timestamp) noexcept nogil
# Remember an appended marker at `offset`. -1 when memory is out.
cdef int producers_end(producers_t *table, batch_info_t *info, const marker_t *marker, int64_t offset, int64_t timestamp,
                       ended_t *ended) noexcept nogil
# What producers_end will find.
cdef void producers_foresee_end(producers_t *table, int64_t producer_id, int64_t offset, ended_t *ended) noexcept nogil
# Forget producers whose last batch is older than `oldest_timestamp` and that have no open transaction.
cdef int producers_expire(producers_t *table, int64_t oldest_timestamp) noexcept nogil
# First offset of the oldest open transaction, INT64_MAX when there is none.
cdef inline int64_t producers_first_undecided(const producers_t *table) noexcept nogil:
    return table.open[table.open_at].first_offset if table.open_count else INT64_MAX
# Take over a producer as a snapshot tells it. -1 when memory is out.
cdef int producers_put(producers_t *table, producer_t *producer) noexcept nogil
# Fill an empty table with everything of another one. -1 when memory is out.
cdef int producers_copy(producers_t *source, producers_t *target) noexcept nogil

cdef class ProducerTable:
    """The table as Python sees it: recovery and tests fill one, PartitionState takes it over."""
    cdef producers_t *table
