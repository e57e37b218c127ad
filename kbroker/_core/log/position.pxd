"""Finds the position of an offset in a log's files, so that a fetch can send regions of them.

No copy, no interpreter.
"""

from libc.stdint cimport INT32_MAX, int8_t, int32_t, int64_t

from kbroker._core.log.partition cimport need_t, partition_t, read_result_t, segment_t

# Find the file region that a fetch from `offset` gets. Returns 0, OFFSET_OUT_OF_RANGE or another error code, or
# NEEDS_HANDLER: a closed segment must be opened, or bytes between the index entry and the offset are not in memory.
# With 0, result.segment is NULL when there is nothing to send: `offset` is at the end of what may be read, or the first
# batch is larger than `max_bytes`.
# `max_bytes` limits result.size, so the last batch may be cut; with `at_least_one` the first batch is whole however
# large it is (KIP-74). With `max_bytes` 0 and without `at_least_one` nothing is looked for.
# `until`: TO_*, where the read ends. A read of committed records that overlaps with very many aborted transactions is
# one batch long.
# The three offsets of the result are set with every code; they are -1 when the partition is closed or deleted.
cdef int partition_read(partition_t *p, int64_t offset, int64_t max_bytes, bint at_least_one, int8_t until,
                        patience_t *patience, read_result_t *result) noexcept nogil

ctypedef struct patience_t:
    # How much work a search for an offset may do.
    bint may_block               # as in partition_append
    int32_t pieces               # how many more reads of a log, or looks at a stretch of a .txnindex, are allowed. At 0
                                 # the call returns NEEDS_HANDLER; with `may_block` it goes on and the number falls
                                 # below 0

# For callers that may block and have no limit.
cdef inline patience_t endless() noexcept nogil:
    cdef patience_t patience
    patience.may_block = True
    patience.pieces = INT32_MAX
    return patience

# --- for time_position.pyx --------------------------------------------------------------------------------
ctypedef struct found_t:
    int64_t position             # of the first batch that the search matches; the end of the segment when none does
    int64_t size                 # of that batch; 0 when there is none
    int64_t end                  # the offset after that batch, or a later one below which no other batch begins

# Find the first batch of an open segment with records at or above `offset`. NEEDS_HANDLER: bytes are not in memory, or
# `need` tells what has to be opened.
cdef int locate(partition_t *p, segment_t *s, int64_t offset, patience_t *patience, found_t *found,
                need_t *need) noexcept nogil
# Walk the headers from `position` to `end` and find the first batch or message whose last offset is at least `offset`
# and whose largest timestamp is at least `timestamp`. `first_offset`: the largest offset with which a batch at
# `position` may begin; NO_BATCH is returned when no such batch stands there. INT64_MAX: the position is known to be
# right.
cdef int scan(partition_t *p, int32_t fd, int64_t position, int64_t end, int64_t offset, int64_t timestamp,
              int64_t first_offset, patience_t *patience, found_t *found) noexcept nogil
# The code for a log that was deleted or closed under the reader: the error code, or NEEDS_HANDLER to try again.
cdef int let_go(partition_t *p) noexcept nogil
