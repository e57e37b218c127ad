"""What the passes of compaction are told of a log's producers and transactions."""

from libc.stdint cimport int16_t, int64_t

from kbroker._core.wire.record_batch cimport batch_info_t

ctypedef struct last_batch_t:
    int64_t producer_id
    int64_t data_offset          # last offset of its last data, -1 when only markers of it are known
    int16_t epoch

cdef class LastBatches:
    cdef last_batch_t *entries
    cdef int64_t count

cdef class Transactions:
    cdef object waiting
    cdef dict aborted            # `number_key` of a producer id -> [entry, data was met]
    cdef set committed           # keys of producer ids, of transactions of which data was met
    cdef readonly list kept
    cdef int begin_to(self, int64_t offset) except -1

# Whether a batch holds the last sequence of a living producer, or its last marker when nothing else is known of it.
cdef bint is_last_of_producer(LastBatches producers, const batch_info_t *info) noexcept nogil

# Whether a batch of a transaction belongs to an aborted one.
cdef int data_is_aborted(Transactions transactions, const batch_info_t *info) except -1 with gil

# Whether a transaction's end is the end of nothing: no data of it was met.
cdef int marker_is_spent(Transactions transactions, const batch_info_t *info, int marker) except -1 with gil
