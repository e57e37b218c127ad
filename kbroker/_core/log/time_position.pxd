"""Finds the first record at or after a timestamp: by segments, time index, batch headers, records (KIP-33)."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.log.partition cimport partition_t

ctypedef struct time_result_t:
    int64_t timestamp          # ms; of the record
    int64_t offset             # of the record; -1: there is none, or see `size`
    int32_t leader_epoch       # of its batch, -1 when it has none
    int64_t base_offset        # of the segment that has the record
    int64_t position           # of the record's batch in that segment
    int64_t size               # of that batch; > 0 with offset -1: it is compressed, and the caller looks into it
    uint8_t *batch             # the bytes of that compressed batch, owned by the caller, freed by free(); else NULL

# Find the first record at or after `timestamp` that is not below the log start offset. The caller sets
# result.base_offset to -1 to begin, or, to go on after a compressed batch, keeps base_offset and adds the batch's size
# to position. Both are valid until segments leave the list (partition_t.removals). Returns 0 or a Kafka error code. May
# block: it opens segments and reads what is not in memory.
cdef int partition_find_time(partition_t *p, int64_t timestamp, time_result_t *result) noexcept nogil
