"""Record batches, magic 2: check in place, stamp in place, walk the records."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

cdef enum:
    # What is wrong with a batch; `batch_error_code` tells the protocol's code of each.
    BATCH_OK = 0
    BATCH_TOO_SHORT = 1          # fewer bytes than a header or than BATCH_LENGTH says
    BATCH_BAD_LENGTH = 2         # BATCH_LENGTH negative or below the header's size
    BATCH_BAD_MAGIC = 3          # neither 0, 1 nor 2
    BATCH_BAD_CRC = 4
    BATCH_BAD_CODEC = 5          # unknown codec bits
    BATCH_BAD_ATTRIBUTES = 6     # control bit from a client
    BATCH_BAD_COUNT = 7          # record count, last offset delta or offset deltas disagree
    BATCH_BAD_RECORD = 8         # a record's sizes do not add up
    BATCH_BAD_PRODUCER = 9       # a producer id without a sequence
    BATCH_NO_KEY = 10            # a record without key in a compacted topic
    BATCH_BAD_TIMESTAMP = 11     # out of the topic's bounds, or LogAppendTime set by a client
    BATCH_TRAILING = 12          # another batch behind this one (a produce request carries exactly one)
    BATCH_OLD_MAGIC = 13         # magic 0 or 1 where only 2 is allowed
    BATCH_BAD_BASE_OFFSET = 14   # a client's batch starts at 0
    # Of messages of magic 0 and 1, and of conversions.
    BATCH_NESTED = 15            # a compressed message inside a compressed one
    BATCH_MIXED_MAGIC = 16       # messages of two formats in one set
    BATCH_BAD_WRAPPER = 17       # a compressed message's offset is below that of its last inner one
    BATCH_EMPTY = 18             # no messages where there must be one
    BATCH_OLD_ZSTD = 19          # zstd, which came after magic 2
    BATCH_TOO_LARGE = 20         # a conversion makes more than its caller allows
    BATCH_FINDINGS = 21

ctypedef struct batch_info_t:
    # Filled by batch_header; all values in host order.
    int64_t base_offset
    int32_t size                 # whole batch in bytes, LOG_OVERHEAD included
    int32_t leader_epoch
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t record_count
    # Filled by batch_walk. Timestamps are those that Kafka sees: the batch's own under ATTRIBUTE_LOG_APPEND_TIME.
    int64_t walked_max_timestamp         # -1 when no record has a later one
    int64_t walked_min_timestamp         # of the records whose timestamp is not -1; INT64_MAX when there is none

# The header alone: what is there, lengths and magic. Enough for a scan of a trusted file. `size` may go beyond the batch.
cdef int batch_header(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil

# batch_header and the CRC: the batch is what somebody wrote. For recovery and for batches that a leader sent.
cdef int batch_verify(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil

# batch_verify and everything a client may not put into a header. For Produce, before batch_walk.
cdef int batch_check(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil

# What stands behind a produced batch. Like Kafka: part of a batch is not an error and not kept, another whole one is BATCH_TRAILING.
cdef int batch_check_trailing(const uint8_t *data, int64_t size, const batch_info_t *info) noexcept nogil

# The walk over `records` (what stands behind the header, inflated): count, offset deltas 0..n-1, sizes, headers, keys.
cdef int batch_walk(const uint8_t *records, int64_t size, batch_info_t *info, bint key_required) noexcept nogil

# After the walk: message.timestamp.type and message.timestamp.{before,after}.max.ms.
cdef int batch_check_timestamps(const batch_info_t *info, bint log_append_time, int64_t now_ms, int64_t before_max_ms,
                                int64_t after_max_ms) noexcept nogil

# The protocol's error code of a finding (errors.ErrorCode).
cdef int batch_error_code(int finding) noexcept nogil

# Stamp in place. Offsets and epoch are outside the CRC; a timestamp (type or maximum) changes it, and is left alone when equal.
cdef void batch_stamp(uint8_t *data, int64_t base_offset, int32_t leader_epoch) noexcept nogil
cdef void batch_stamp_timestamp(uint8_t *data, int32_t size, bint log_append_time, int64_t max_timestamp) noexcept nogil

cdef class BatchInfo:
    """One batch's header for Python."""
    cdef batch_info_t info
    cdef readonly int64_t position

cdef BatchInfo new_batch_info(const batch_info_t *info, int64_t position)
