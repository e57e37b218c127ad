"""What segment_check.pyx and index_check.pyx share: kinds of findings, the walk, the batch at hand."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.log.scan.file_window cimport file_window_t
from kbroker._core.wire.cursor cimport write_i32, write_i64, writer_t

cdef enum:
    # What may be wrong with a segment and its indexes, besides what wire/record_batch.pxd finds in one batch.
    CHECK_OFFSET_BACK = 100      # a: the offset, b: what is due
    CHECK_GAP = 101              # a: the offset, b: what is due
    CHECK_OFFSET_RANGE = 102     # a: the last offset
    CHECK_DELTAS = 103           # record offsets do not ascend within the batch's
    CHECK_MISSING = 104          # a: records, b: offsets
    CHECK_TIMESTAMP = 105        # a: of the header, b: of the records
    CHECK_CONTROL = 106          # a control batch without a control record
    CHECK_COMPRESSED = 107       # does not inflate
    CHECK_LARGE = 108            # a: size
    CHECK_CUT = 109              # a: bytes left
    CHECK_UNREAD = 110           # a: bytes that are not read behind a batch that is wrong
    CHECK_ZEROS = 111            # a: bytes
    CHECK_INNER_OFFSETS = 112    # a message's offset inside a set does not come after the one before
    CHECK_OVER_NEXT = 113        # a: the last offset, b: base offset of the next segment
    CHECK_EPOCH = 114            # a: the leader epoch
    CHECK_NOT_BATCH = 120        # index: a: position
    CHECK_NOT_LAST = 121         # index: a: offset, b: last offset of the batch
    CHECK_ENTRY_ORDER = 122      # both indexes: a: entry number
    CHECK_BEYOND = 123           # index: a: position, b: size of the log
    CHECK_NO_TIME = 124          # timeindex: a: offset, b: timestamp
    CHECK_LATE_TIME = 125        # timeindex: a: largest timestamp up to there, b: of the entry
    CHECK_TIME_BEYOND = 126      # timeindex: a: offset, b: end of the segment
    CHECK_INSIDE = 200           # and a finding of wire/record_batch.pxd: of what a batch holds

cdef enum:
    IN_LOG = 0                   # where a finding is
    IN_INDEX = 1
    IN_TIME_INDEX = 2
    MOST_FINDINGS = 1000         # that are told; the others are counted
    KNOWN_OPEN = 256             # producers whose transactions are known to be open; a power of two

ctypedef struct check_t:
    # A walk over a segment.
    file_window_t window
    int64_t position             # of the next batch
    int64_t base_offset          # of the segment
    int64_t end_offset           # base offset of the next segment, or INT64_MAX
    int64_t next_offset          # what the next batch's offset must not be below
    int64_t previous_last        # last offset of the batch before
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t batches
    int64_t records
    bint gaps                    # offsets may be missing
    bint unsure                  # a batch was passed over: what follows may begin anywhere behind
    bint zeros_allowed           # a preallocated file
    bint over
    # the epoch run at hand
    int32_t epoch
    int64_t run_position
    int64_t run_first
    int64_t run_last
    writer_t epochs              # int32 epoch, int64 position, first and last offset
    writer_t findings            # int32 file and kind, int64 position, a, b
    int64_t finding_count
    writer_t events              # int32 kind, int64 position, first offset, last offset, producer id
    int64_t[KNOWN_OPEN] known_open
    # indexes
    const uint8_t *index
    int64_t index_count
    int64_t index_at
    int64_t awaited              # an entry whose offset must still be the last of a batch, or -1
    int64_t awaited_entry
    int64_t awaited_last
    const uint8_t *time_index
    int64_t time_count
    int64_t time_at

ctypedef struct seen_t:
    # One batch, or message, as far as the rest of the log is concerned.
    int64_t first_offset
    int64_t last_offset
    int64_t last_record_offset
    int64_t max_timestamp
    int64_t records
    int32_t epoch
    bint old

cdef inline void found(check_t *check, int file, int kind, int64_t position, int64_t a, int64_t b) noexcept nogil:
    check.finding_count += 1
    if check.finding_count > MOST_FINDINGS:
        return
    write_i32(&check.findings, file)
    write_i32(&check.findings, kind)
    write_i64(&check.findings, position)
    write_i64(&check.findings, a)
    write_i64(&check.findings, b)
