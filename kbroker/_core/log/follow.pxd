"""Appending what a partition's leader has sent: batches as they are, with the leader's offsets and epochs.

The bytes are checked first, without a lock: lengths, CRCs, offsets that ascend, leader epochs that do not fall. Then
all batches that go into one segment are written with one write(2), and get the entries of indexes and producers that
the leader's own append has made. What stands before a bad batch is appended.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.log.partition cimport partition_t

ctypedef struct leader_state_t:
    # What an answer of the leader says about a partition, besides its records.
    int32_t leader_epoch         # of the request: the append is refused if the partition has another one now
    int64_t fetch_offset         # of the request: nothing is appended to a log that ends elsewhere now; -1: not told
    int64_t high_watermark
    int64_t log_start_offset     # -1: not told

ctypedef struct followed_t:
    # What has become of the records.
    int64_t size                 # bytes appended
    int64_t log_end_offset       # after the append
    int64_t high_watermark
    int32_t leader_epoch         # newest one in the log, -1 without one: what the next Fetch names as last fetched
    int32_t finding              # BATCH_*, what is wrong with the first batch that was not appended; BATCH_OK: nothing
    bint must_flush              # a flush is to come before the leader is told of the new log end
    bint starts_later            # the leader's log starts later: partition_follow_start is due

# Append what a leader has sent; `size` may be 0, and the last batch may be cut off. May block and acquire the GIL: it
# opens and rolls through storage.Log. Always sets `followed`: the next fetch is from its log end. Returns 0 or a Kafka
# error code:
# FENCED_LEADER_EPOCH: the partition follows no leader in this epoch any more; nothing was appended.
# CORRUPT_MESSAGE: a batch is damaged. INVALID_RECORD: a batch does not belong at this place of the log. The batches
# before it were appended. KAFKA_STORAGE_ERROR and others: the disk, or what storage.Log said.
cdef int partition_follow(partition_t *p, const uint8_t *records, int64_t size, const leader_state_t *leader,
                          followed_t *followed) noexcept nogil
# Let the log start where the leader's does, but not above the high watermark. Writes files. Returns 0 or an error code.
cdef int partition_follow_start(partition_t *p, int64_t log_start_offset) noexcept nogil
