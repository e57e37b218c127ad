"""The first record at or after a timestamp: largest timestamps of segments, time index, batch headers, records (KIP-33)."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.log.partition cimport partition_t

ctypedef struct time_result_t:
    int64_t timestamp
    int64_t offset             # of the record; -1: there is none, or see `size`
    int32_t leader_epoch
    int64_t base_offset        # of the segment and,
    int64_t position           # in it, of the batch that has the record;
    int64_t size               # with offset -1 and size > 0 the batch is compressed: whoever called looks into it
    uint8_t *batch             # then its bytes, owned by the caller, freed by free(); else NULL

# Not below the log's start. `base_offset` and `position` of the result, the latter behind the batch, go on from there;
# `base_offset` -1 begins; they hold until segments go (partition_t.removals). 0 or a Kafka error code. May block, for what is not open yet and for what is not in memory.
cdef int partition_find_time(partition_t *p, int64_t timestamp, time_result_t *result) noexcept nogil
