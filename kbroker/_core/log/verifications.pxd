"""Transactions that a coordinator is being asked about before their first batch is appended (KIP-890).

What is asked and appended belongs together by a guard: an entry's number. A marker of the producer, or a batch of the
transaction, takes the entry away; whoever comes with its guard then comes too late. Not so a marker with the epoch of
what is to be added: it ends the transaction before that. What was asked for and not appended stays, so that a later batch
does not go before it.
"""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t

cdef enum:
    NO_GUARD = 0

    MOST_VERIFICATIONS = 4096    # of one partition; when there are more, the oldest goes

ctypedef struct verification_t:
    int64_t producer_id
    int64_t guard
    int32_t lowest_sequence      # of the batches that wait for the answer
    int16_t producer_epoch
    bint adds                    # the coordinator adds the partition to the transaction, instead of knowing it there (part 2)

ctypedef struct verifications_t:
    # Ascending by producer id. Guarded by the partition's append_lock.
    verification_t *entries
    int32_t count
    int32_t capacity
    int64_t last_guard

# The guard of a transaction that is to be asked about; NO_GUARD when memory is out.
cdef int64_t verifications_begin(verifications_t *v, int64_t producer_id, int16_t producer_epoch,
                                 int32_t sequence, bint adds) noexcept nogil
# NULL: nothing of this producer is asked about.
cdef verification_t *verifications_find(verifications_t *v, int64_t producer_id) noexcept nogil
cdef void verifications_end(verifications_t *v, int64_t producer_id) noexcept nogil
# The same for a marker of the producer.
cdef void verifications_end_by_marker(verifications_t *v, int64_t producer_id, int16_t producer_epoch) noexcept nogil
