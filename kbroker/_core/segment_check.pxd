"""Kinds of findings of segment_check.pyx."""

cdef enum:
    # What may be wrong with a segment and its indexes, besides what record_batch.pxd finds in one batch.
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
    CHECK_INSIDE = 200           # and a finding of record_batch.pxd: of what a batch holds
    CHECK_TIME_BEYOND = 126      # timeindex: a: offset, b: end of the segment
