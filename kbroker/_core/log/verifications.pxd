"""Transactions that a coordinator is being asked about before their first batch is appended (KIP-890).

An entry's guard, a number, ties the question to the append that follows it. A marker of the producer, or a batch of the
transaction, removes the entry; the guard of a removed entry does not count any more. One marker does not remove the
entry: one with the same epoch as an entry that adds the partition, because it ends the transaction before. An entry
stays when its batch is never appended, so that a later batch of the producer cannot be appended before that one.
"""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t

cdef enum:
    NO_GUARD = 0

    MOST_VERIFICATIONS = 4096    # of one partition; one more drops the oldest

ctypedef struct verification_t:
    int64_t producer_id
    int64_t guard
    int32_t lowest_sequence      # the lowest base sequence of the batches that wait for the answer
    int16_t producer_epoch
    bint adds                    # the coordinator is asked to add the partition (KIP-890, part 2), else if it knows it

ctypedef struct verifications_t:
    # Guarded by the partition's append_lock.
    verification_t *entries      # owned; ascending by producer id
    int32_t count
    int32_t capacity
    int64_t last_guard           # the newest one given out

# Enter a transaction that the coordinator is to be asked about. Returns its guard, or NO_GUARD when memory is out.
cdef int64_t verifications_begin(verifications_t *v, int64_t producer_id, int16_t producer_epoch,
                                 int32_t sequence, bint adds) noexcept nogil
# The entry of the producer, valid until the next call; NULL when there is none.
cdef verification_t *verifications_find(verifications_t *v, int64_t producer_id) noexcept nogil
# Remove the entry of the producer after a batch of the transaction; no-op without one.
cdef void verifications_end(verifications_t *v, int64_t producer_id) noexcept nogil
# The same after a marker of the producer with this epoch.
cdef void verifications_end_by_marker(verifications_t *v, int64_t producer_id, int16_t producer_epoch) noexcept nogil
