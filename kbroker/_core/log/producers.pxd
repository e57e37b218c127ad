"""State of the producers of a partition: epoch, last five batches and open transaction of each (KIP-98, KIP-360).

producer_table.pxd has the class that Python fills and reads.
"""

from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t

from kbroker._core.wire.record_batch cimport batch_info_t
from kbroker._core.wire.transaction_marker cimport marker_t

cdef enum:
    # Who appends, which decides what is checked of the producer (Kafka: AppendOrigin).
    FROM_CLIENT = 0              # epoch, sequence, duplicates and transaction are checked
    FROM_COORDINATOR = 1         # a group coordinator, for a transaction: its batches have no sequences to check

    REMEMBERED_BATCHES = 5
    DEFAULT_MAX_PRODUCERS = 32768    # per partition, about 200 bytes each; those silent for longest are forgotten first
    DEFAULT_MAX_BYTES = 256 << 20    # of all partitions of the process together; small tables may exceed it

ctypedef struct remembered_batch_t:
    int32_t first_sequence
    int32_t last_sequence
    int64_t last_offset
    int32_t offset_delta                # last_offset - base offset of the batch
    int64_t timestamp                   # ms; the batch's largest timestamp, or the time of the append

ctypedef struct producer_t:
    int64_t producer_id                 # -1: the slot is free
    int16_t epoch                       # -1: nothing appended yet, so any sequence is accepted
    int16_t batch_count
    int32_t coordinator_epoch
    int64_t last_timestamp              # ms; of the last batch or marker
    int64_t transaction_first_offset    # -1: no transaction is open
    remembered_batch_t batches[5]       # oldest first

ctypedef struct open_transaction_t:
    int64_t producer_id                 # -1: the transaction is over
    int64_t first_offset

ctypedef struct producers_t:
    # A hash table with open addressing by producer_id. Guarded by the partition's append_lock.
    producer_t *slots
    int32_t capacity                    # slots, a power of two; 0 until the first producer comes
    int32_t count                       # producers in the table
    int32_t maximum                     # of `count`; producers with an open transaction may exceed it
    open_transaction_t *open            # ascending by first offset; used from open_at, which is not over, to open_end
    int32_t open_at
    int32_t open_end
    int32_t open_capacity
    int32_t open_count                  # transactions that are not over

ctypedef struct ended_t:
    # What a marker has ended.
    int64_t first_offset                # of the transaction that the marker ends; -1: it ends none
    int64_t last_stable_offset          # after the marker

cdef producers_t *producers_new() noexcept nogil
cdef void producers_free(producers_t *table) noexcept nogil

# Whether a batch may be appended. Returns 0: append it; 1: it is a duplicate, and `duplicate` is the batch of the first
# append; else a Kafka error code. Always 0 for a batch without a producer id. `verified`: the coordinator has confirmed
# the transaction that begins with this batch. `lowest_sequence`: the lowest sequence among the batches that were sent
# and not appended yet, INT32_MAX when there is none. `begins_later`: records at the log's beginning are gone. After 0
# there is room in the table: producers_remember cannot fail.
cdef int producers_check(producers_t *table, batch_info_t *info, int8_t origin, bint verified, int32_t lowest_sequence,
                         bint begins_later, remembered_batch_t *duplicate) noexcept nogil
# Whether a marker may be appended: 0, or a Kafka error code. After 0 there is room: producers_end cannot fail.
cdef int producers_check_marker(producers_t *table, batch_info_t *info, const marker_t *marker) noexcept nogil
# Whether the producer has an open transaction of exactly this epoch in the partition.
cdef bint producers_in_transaction(producers_t *table, int64_t producer_id, int16_t epoch) noexcept nogil
# Whether a batch or marker of the producer with an epoch above `epoch` was appended here.
cdef bint producers_is_fenced(producers_t *table, int64_t producer_id, int16_t epoch) noexcept nogil
# Whether a batch of the producer is remembered.
cdef bint producers_has_batches(producers_t *table, int64_t producer_id) noexcept nogil
# Remember an appended batch that is not a control batch. Returns 0, or -1 when memory is out.
cdef int producers_remember(producers_t *table, batch_info_t *info, int64_t base_offset,
                            int64_t timestamp) noexcept nogil
# Remember an appended marker at `offset` and set `ended`. Returns 0, or -1 when memory is out.
cdef int producers_end(producers_t *table, batch_info_t *info, const marker_t *marker, int64_t offset,
                       int64_t timestamp, ended_t *ended) noexcept nogil
# Set `ended` to what producers_end will set it to, without changing the table.
cdef void producers_foresee_end(producers_t *table, int64_t producer_id, int64_t offset, ended_t *ended) noexcept nogil
# Forget producers without an open transaction whose last batch is older than `oldest_timestamp` (ms). Returns 0, or -1
# when memory is out.
cdef int producers_expire(producers_t *table, int64_t oldest_timestamp) noexcept nogil
# First offset of the oldest open transaction, INT64_MAX when there is none.
cdef inline int64_t producers_first_undecided(const producers_t *table) noexcept nogil:
    return table.open[table.open_at].first_offset if table.open_count else INT64_MAX
# Whether a marker of one of the producers was appended here.
cdef bint producers_had_markers(const producers_t *table) noexcept nogil
# Enter a producer from a snapshot, in place of what was known of it. Returns 0, or -1 when memory is out.
cdef int producers_restore(producers_t *table, producer_t *producer) noexcept nogil
# The most slots that a search looks at: for the producer that is farthest from the slot where its search begins.
cdef int32_t producers_longest_search(const producers_t *table) noexcept nogil
# Copy `source` into the empty table `target`. Returns 0, or -1 when memory is out.
cdef int producers_copy(producers_t *source, producers_t *target) noexcept nogil
