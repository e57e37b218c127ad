"""Shared by segment_check.pyx and index_check.pyx: kinds of findings, the state of the walk, the batch at hand."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker._core.log.scan.file_window cimport file_window_t
from kbroker._core.wire.cursor cimport write_i32, write_i64, writer_t

cdef enum:
    # What may be wrong with a segment and its indexes, besides what wire/record_batch.pxd finds in one batch. `a` and
    # `b` are the two numbers of a finding, which its text shows.
    CHECK_OFFSET_BACK = 100      # a: the offset, b: the lowest offset that may follow
    CHECK_GAP = 101              # a: the offset, b: the offset that has to follow
    CHECK_OFFSET_RANGE = 102     # a: the last offset
    CHECK_DELTAS = 103           # offsets of the records do not ascend, or are not among the batch's
    CHECK_MISSING = 104          # a: number of records, b: number of offsets
    CHECK_TIMESTAMP = 105        # a: max timestamp of the header, b: of the records
    CHECK_CONTROL = 106          # a control batch without exactly one control record
    CHECK_COMPRESSED = 107       # the records do not inflate
    CHECK_LARGE = 108            # a: size of the batch, b: bytes that are not read
    CHECK_CUT = 109              # a: bytes that are there of the last batch
    CHECK_UNREAD = 110           # wrong CRC and no batch behind; a: bytes that are not read
    CHECK_ZEROS = 111            # a: bytes, all zero, up to the end
    CHECK_INNER_OFFSETS = 112    # a message's offset inside a set does not come after the one before
    CHECK_OVER_NEXT = 113        # a: the last offset, b: base offset of the next segment
    CHECK_EPOCH = 114            # a: the leader epoch
    CHECK_NOT_BATCH = 120        # index: a: position, where no batch begins
    CHECK_NOT_LAST = 121         # index: a: offset of the entry, b: last offset of the batch
    CHECK_ENTRY_ORDER = 122      # both indexes: a: number of the entry
    CHECK_BEYOND = 123           # index: a: position, b: size of the log
    CHECK_NO_TIME = 124          # timeindex: a: offset, b: timestamp
    CHECK_LATE_TIME = 125        # timeindex: a: largest timestamp before that offset, b: timestamp of the entry
    CHECK_TIME_BEYOND = 126      # timeindex: a: offset, b: end of the segment
    CHECK_INSIDE = 200           # added to a finding of wire/record_batch.pxd about the content of a batch

cdef enum:
    IN_LOG = 0                   # the file that a finding is in
    IN_INDEX = 1
    IN_TIME_INDEX = 2
    MOST_FINDINGS = 1000         # findings that are kept; more are only counted
    KNOWN_OPEN = 256             # slots for producers whose open transaction was reported already; a power of two

ctypedef struct check_t:
    # The state of a walk over a segment.
    file_window_t window
    int64_t position             # of the next batch
    int64_t base_offset          # of the segment
    int64_t end_offset           # base offset of the next segment, or INT64_MAX
    int64_t next_offset          # the next batch must not begin below
    int64_t previous_last        # last offset of the batch before
    int64_t max_timestamp
    int64_t max_timestamp_offset
    int64_t batches
    int64_t records
    bint gaps                    # offsets may be missing, because the log was compacted
    bint unsure                  # a batch was passed over: the next one may begin at any higher offset
    bint zeros_allowed           # the file is preallocated, so it may end in zeros
    bint over                    # the walk has ended
    # The run of batches with one leader epoch that the walk is in; -1: none.
    int32_t epoch
    int64_t run_position         # of its first batch
    int64_t run_first            # first offset
    int64_t run_last             # last offset
    writer_t epochs              # the runs: int32 epoch, int64 position, first and last offset
    writer_t findings            # int32 file and kind, int64 position, a, b
    int64_t finding_count        # those that were not kept included
    writer_t events              # of transactions: int32 kind, int64 position, first and last offset, producer id
    int64_t[KNOWN_OPEN] known_open # producer ids, -1: none
    # The indexes: whole entries, borrowed.
    const uint8_t *index
    int64_t index_count
    int64_t index_at             # the next entry to check
    int64_t awaited              # offset of a checked entry that has to be the last offset of a later batch, or -1
    int64_t awaited_entry        # number of that entry
    int64_t awaited_last         # last offset of the batch at its position
    const uint8_t *time_index
    int64_t time_count
    int64_t time_at              # the next entry to check

ctypedef struct seen_t:
    # One batch or message, as far as the order of the log and the indexes are concerned.
    int64_t first_offset
    int64_t last_offset
    int64_t last_record_offset
    int64_t max_timestamp
    int64_t records
    int32_t epoch
    bint old                     # magic 0 or 1

cdef inline void found(check_t *check, int file, int kind, int64_t position, int64_t a, int64_t b) noexcept nogil:
    check.finding_count += 1
    if check.finding_count > MOST_FINDINGS:
        return
    write_i32(&check.findings, file)
    write_i32(&check.findings, kind)
    write_i64(&check.findings, position)
    write_i64(&check.findings, a)
    write_i64(&check.findings, b)
