"""The producers and transactions of a log, as the passes of compaction need them."""

from libc.stdint cimport int16_t, int64_t

from kbroker._core.wire.record_batch cimport batch_info_t

ctypedef struct last_batch_t:
    int64_t producer_id
    int64_t data_offset          # last offset of its last batch of records, -1 when only markers are known
    int16_t epoch                # its newest

cdef class LastBatches:
    cdef last_batch_t *entries
    cdef int64_t count

cdef class Transactions:
    cdef object waiting          # deque of .txnindex entries whose first offset the pass has not reached
    cdef dict aborted            # `number_key` of a producer id -> [entry, whether records of it were met]
    cdef set committed           # keys of producer ids that have records of a transaction without a marker yet
    cdef readonly list kept      # entries of aborted transactions whose records were met: the copy's .txnindex
    # Move the aborted transactions that begin at or below `offset` from `waiting` to `aborted`.
    cdef int begin_to(self, int64_t offset) except -1

# Whether a batch holds the last sequence of a living producer or, when only markers of that producer are known, a
# marker of its epoch.
cdef bint is_last_of_producer(LastBatches producers, const batch_info_t *info) noexcept nogil

# Whether a batch of records belongs to an aborted transaction. To be called in order of offsets.
cdef int data_is_aborted(Transactions transactions, const batch_info_t *info) except -1 with gil

# Whether a marker (`marker`: its type) ends a transaction of which no records were met. To be called in order of
# offsets.
cdef int marker_is_spent(Transactions transactions, const batch_info_t *info, int marker) except -1 with gil
