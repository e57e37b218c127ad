"""Where in a log's files an offset stands: what a fetch sends is found here, without a copy and without the interpreter."""

from libc.stdint cimport INT32_MAX, int32_t, int64_t

from kbroker._core.log.partition cimport need_t, partition_t, read_result_t, segment_t

# Where to read. Returns 0, OFFSET_OUT_OF_RANGE, ..., or NEEDS_HANDLER (a closed segment must be opened, or what stands
# between index and offset is not in memory). With 0, result.segment is NULL when there is nothing to send: `offset` is at
# the end of what may be read, or the first batch is larger than `max_bytes`. `max_bytes` limits size, the last batch may
# be cut, but with `at_least_one` the first batch is whole however large (KIP-74). `committed`: stop at the last stable
# offset, else at the high watermark. The three offsets of the result are always set but for UNKNOWN_TOPIC_OR_PARTITION.
# Where nothing may be sent (`max_bytes` 0 without `at_least_one`) nothing is looked for. A read of committed records that
# overlaps with very many aborted transactions is one batch long.
cdef int partition_read(partition_t *p, int64_t offset, int64_t max_bytes, bint at_least_one, bint committed,
                        patience_t *patience, read_result_t *result) noexcept nogil

ctypedef struct patience_t:
    # What finding offsets may cost its caller.
    bint may_block               # as of partition_append
    int32_t pieces               # that may still be read of logs, and of lists of aborted transactions. Without may_block it is
                                 # NEEDS_HANDLER when there are none left; with it the number goes on below 0

cdef inline patience_t endless() noexcept nogil:
    cdef patience_t patience
    patience.may_block = True
    patience.pieces = INT32_MAX
    return patience

# --- for time_position.pyx --------------------------------------------------------------------------------
ctypedef struct found_t:
    int64_t position             # of the first batch that is not below what was looked for; the segment's end without one
    int64_t size                 # of that batch, 0 without one
    int64_t end                  # the offset behind it, or a later one that no other batch begins below

# The first batch of an open segment with records at or above `offset`; NEEDS_HANDLER: not in memory, or see `need`.
cdef int locate(partition_t *p, segment_t *s, int64_t offset, patience_t *patience, found_t *found, need_t *need) noexcept nogil
# The first batch or message from `position` on whose last offset is not below `offset` and whose timestamp is not below
# `timestamp`, by walking headers. NO_BATCH: at `position` stands none that begins at or below `first_offset` (INT64_MAX: not
# asked, the position is right).
cdef int scan(partition_t *p, int32_t fd, int64_t position, int64_t end, int64_t offset, int64_t timestamp, int64_t first_offset,
              patience_t *patience, found_t *found) noexcept nogil
# A log that was deleted or closed under the reader: refuse, or come again.
cdef int let_go(partition_t *p) noexcept nogil
