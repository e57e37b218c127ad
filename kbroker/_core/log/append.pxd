"""Appending to a partition's log: one batch, or the marker that ends a transaction.

`may_block` true: the caller is a request handler thread without the GIL. The call then opens, rolls and waits for a
stalled directory itself, through storage.Log where needed, and never returns NEEDS_HANDLER. `may_block` false:
NEEDS_HANDLER means that nothing was changed and that the same call has to be made again from a handler thread.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.log.partition cimport partition_t, segment_t
from kbroker._core.log.producers cimport ended_t
from kbroker._core.wire.record_batch cimport batch_info_t
from kbroker._core.wire.transaction_marker cimport marker_t

ctypedef struct appender_t:
    # Who appends a batch, and what is known of its transaction.
    int8_t origin              # FROM_CLIENT, FROM_COORDINATOR
    int16_t acks               # as in Produce; -1: the batch has to be replicated
    int32_t leader_epoch       # refuse the batch unless this broker leads since this epoch or an earlier one; -1: any
    int64_t guard              # as partition_verify gave it; NO_GUARD: no coordinator was asked
    bint adds                  # a batch that begins a transaction also adds the partition to it (KIP-890, part 2)
    const marker_t *marker     # NULL: a batch of records; else the batch is this marker, the end of a transaction

ctypedef struct append_result_t:
    int64_t base_offset
    int64_t last_offset
    int64_t log_append_time    # ms; -1 unless the topic has LogAppendTime
    int64_t log_start_offset
    int32_t led_since          # partition_t.led_since at the append
    bint must_flush            # the ack has to wait until flushed_offset > last_offset, ...
    bint must_replicate        # ... or until high_watermark > last_offset

# Append one validated batch (batch_check and batch_walk have passed): stamp offsets, epoch and timestamps in place,
# then one write(2). `now_ms` is the wall clock. Returns:
# 0: appended, `result` is set. For a duplicate of an idempotent batch `result` has the first append's offsets. When
#    result.must_flush is set, the flush has been requested already.
# NEEDS_HANDLER: the log is closed, a roll is due, or the directory is stalled.
# NEEDS_VERIFICATION: nothing was changed. Call partition_verify, ask the coordinator, repeat the call with the guard.
# Else a Kafka error code: NOT_LEADER_OR_FOLLOWER if this broker does not lead the partition, NOT_ENOUGH_REPLICAS if the
#    batch has to be replicated and the ISR is too small.
cdef int partition_append(partition_t *p, uint8_t *batch, batch_info_t *info, const appender_t *appender,
                          int64_t now_ms, bint may_block, append_result_t *result) noexcept nogil
# Get the guard for a transaction, before its coordinator is asked whether the partition belongs to it or, with `adds`,
# is asked to add the partition. May block. Returns 0 and sets `guard` (NO_GUARD: nobody has to be asked), or returns an
# error code. A later marker of the producer makes the guard invalid (verifications.pxd has the exception).
cdef int partition_verify(partition_t *p, const batch_info_t *info, bint adds, int64_t *guard) noexcept nogil

# --- for follow.pyx, which appends what a leader has sent --------------------------------------------

ctypedef struct placed_t:
    # The place where a batch that may be appended will stand.
    segment_t *segment
    int64_t base_offset
    int64_t last_offset
    int64_t max_timestamp        # ms; of its records, or the time of the append
    int64_t position             # byte in the segment
    int64_t written_ns           # monotonic; when its write began
    ended_t aborted              # the transaction that it aborts, for the .txnindex; first_offset -1: none
    int64_t ended_first_offset   # first offset of the transaction that it ends; -1: none

# Whether Kafka's conditions for a roll before this batch hold: size, age by record time, full index, 31 bits of
# offset.
cdef bint roll_due(partition_t *p, segment_t *s, int64_t size, int64_t last_offset,
                   int64_t max_timestamp) noexcept nogil
# Add a written batch to the tail ring and to its segment, as count_in_segment does (both locks held).
cdef void add_to_segment(partition_t *p, const batch_info_t *info, const placed_t *placed) noexcept nogil
# Add a batch to the size, the timestamps and the indexes of a segment (both locks held).
cdef void count_in_segment(segment_t *s, const batch_info_t *info, const placed_t *placed,
                           int32_t index_interval_bytes) noexcept nogil
# Note that a write has succeeded: the disk has space. Its duration says whether the directory is stalled.
cdef void note_write_time(partition_t *p, int64_t started_ns) noexcept nogil
# Append an entry to the .txnindex of the active segment (append_lock held). Returns 0; after an error the file is cut
# back to what it was, and -errno is returned.
cdef int write_aborted_entry(partition_t *p, segment_t *s, int64_t producer_id, const ended_t *ended,
                             int64_t offset) noexcept nogil
