"""Record batches of magic 2: checking and stamping them in place, and walking over their records."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

cdef enum:
    # Findings: what is wrong with a batch. `batch_error_code` returns the protocol's error code of each.
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
    # Findings in messages of magic 0 and 1, and in conversions.
    BATCH_NESTED = 15            # a compressed message inside a compressed one
    BATCH_MIXED_MAGIC = 16       # messages of two formats in one set
    BATCH_BAD_WRAPPER = 17       # a compressed message's offset is below that of its last inner one
    BATCH_EMPTY = 18             # a set without messages where there must be one
    BATCH_OLD_ZSTD = 19          # zstd in a message of magic 0 or 1: it came after magic 2
    BATCH_TOO_LARGE = 20         # a conversion makes more than its caller allows
    BATCH_FINDINGS = 21

    OUT_OF_MEMORY = -1           # returned besides the findings

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
    # Filled by batch_walk. These are the timestamps as Kafka counts them: under ATTRIBUTE_LOG_APPEND_TIME every record
    # has the batch's max_timestamp.
    int64_t walked_max_timestamp         # largest timestamp of a record; -1 if none is larger
    int64_t walked_min_timestamp         # smallest timestamp that is not -1; INT64_MAX if no record has one

# Each of the following functions returns BATCH_OK or a finding.

# Reads and checks the header: lengths and magic. This is enough to scan a trusted file. The `size` bytes may go beyond
# the batch.
cdef int batch_header(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil

# Checks what batch_header does, and the CRC. For recovery, and for batches that a leader sent.
cdef int batch_verify(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil

# Checks what batch_verify does, and that the header has nothing that a client may not put there. For Produce, before
# batch_walk.
cdef int batch_check(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil

# Checks the bytes behind a produced batch. As in Kafka, part of another batch is no error (and is not kept); a whole
# one is BATCH_TRAILING.
cdef int batch_check_trailing(const uint8_t *data, int64_t size, const batch_info_t *info) noexcept nogil

# Walks over `records` (what stands behind the header, decompressed), and checks the record count, offset deltas 0..n-1,
# sizes and headers, and with `key_required` that each record has a key.
cdef int batch_walk(const uint8_t *records, int64_t size, batch_info_t *info, bint key_required) noexcept nogil

# After batch_walk: checks timestamps against message.timestamp.type and message.timestamp.{before,after}.max.ms.
cdef int batch_check_timestamps(const batch_info_t *info, bint log_append_time, int64_t now_ms, int64_t before_max_ms,
                                int64_t after_max_ms) noexcept nogil

# The protocol's error code of a finding (errors.ErrorCode).
cdef int batch_error_code(int finding) noexcept nogil

# Stamp a batch in place. batch_stamp writes base offset and leader epoch, which the CRC does not cover.
# batch_stamp_timestamp writes the timestamp type, the max timestamp and a new CRC, unless both are the same already.
cdef void batch_stamp(uint8_t *data, int64_t base_offset, int32_t leader_epoch) noexcept nogil
cdef void batch_stamp_timestamp(uint8_t *data, int32_t size, bint log_append_time, int64_t max_timestamp) noexcept nogil

cdef class BatchInfo:
    """The header of one batch, for Python."""
    cdef batch_info_t info
    cdef readonly int64_t position

cdef BatchInfo new_batch_info(const batch_info_t *info, int64_t position)
