"""State of idempotent producers in one partition: epoch and the last five batches of each (KIP-98, KIP-360)."""

from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._core.record_batch cimport batch_info_t

cdef enum:
    REMEMBERED_BATCHES = 5

ctypedef struct remembered_batch_t:
    int32_t first_sequence
    int32_t last_sequence
    int64_t last_offset
    int32_t offset_delta
    int64_t timestamp

ctypedef struct producer_t:
    int64_t producer_id
    int16_t epoch
    int16_t batch_count
    int32_t coordinator_epoch
    int64_t last_timestamp
    int64_t transaction_first_offset    # -1: none open
    remembered_batch_t batches[5]       # oldest first

ctypedef struct producers_t:
    # Open addressing by producer_id. Guarded by the partition's lock.
    producer_t *slots
    int32_t capacity
    int32_t count

cdef producers_t *producers_new() noexcept nogil
cdef void producers_free(producers_t *table) noexcept nogil

# 0 = append it; 1 = duplicate, `duplicate` tells the first append's offsets; else a Kafka error code.
cdef int producers_check(producers_t *table, batch_info_t *info, remembered_batch_t *duplicate) noexcept nogil
# Remember an appended batch. -1 when memory is out.
cdef int producers_remember(producers_t *table, batch_info_t *info, int64_t base_offset, int64_t timestamp) noexcept nogil
