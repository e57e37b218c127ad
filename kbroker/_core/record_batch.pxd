"""Record batches, magic 2: check in place, stamp in place, walk the records."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

cdef enum:
    # What batch_check and batch_walk find wrong; each maps to one Kafka error code in BATCH_ERROR_CODES.
    BATCH_OK = 0
    BATCH_TOO_SHORT = 1          # fewer bytes than a header or than BATCH_LENGTH says
    BATCH_BAD_LENGTH = 2         # BATCH_LENGTH negative or below the header's size
    BATCH_BAD_MAGIC = 3
    BATCH_BAD_CRC = 4
    BATCH_BAD_CODEC = 5          # unknown codec bits
    BATCH_BAD_ATTRIBUTES = 6     # control bit from a client, unknown bits that Kafka refuses
    BATCH_BAD_COUNT = 7          # record count, last offset delta or offset deltas disagree
    BATCH_BAD_RECORD = 8         # a record's sizes do not add up
    BATCH_BAD_PRODUCER = 9       # producer id, epoch and sequence do not go together
    BATCH_NO_KEY = 10            # a record without key in a compacted topic
    BATCH_BAD_TIMESTAMP = 11
    BATCH_TRAILING = 12          # bytes behind the batch (a produce request carries exactly one)

ctypedef struct batch_info_t:
    # Filled by batch_check from the header; all values in host order.
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
    # Filled by batch_walk.
    int64_t walked_max_timestamp
    int32_t walked_max_timestamp_delta   # offset delta of the first record with that timestamp

# Header, lengths, magic, attributes, producer fields and CRC of the batch at `data`; `size` is what is there.
cdef int batch_check(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil

# The header alone, without the CRC (for scans of trusted files).
cdef int batch_header(const uint8_t *data, int64_t size, batch_info_t *info) noexcept nogil

# The walk over `records` (what stands behind the header, inflated): count, offset deltas 0..n-1, sizes, headers, keys.
cdef int batch_walk(const uint8_t *records, int64_t size, batch_info_t *info, bint key_required) noexcept nogil

# Stamp in place. Offsets and epoch are outside the CRC; a timestamp (type or maximum) changes it.
cdef void batch_stamp(uint8_t *data, int64_t base_offset, int32_t leader_epoch) noexcept nogil
cdef void batch_stamp_timestamp(uint8_t *data, int32_t size, bint log_append_time, int64_t max_timestamp) noexcept nogil
