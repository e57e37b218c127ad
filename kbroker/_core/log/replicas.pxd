"""The leader's view of its followers, and the high watermark that follows from it.

The high watermark of a leader is the smallest log end of the leader, of the maximal ISR, and of the live replicas
outside it that are caught up and so about to be let in. With fsync before ack (flush.messages=1) the leader's part is
what it has flushed, as each follower's is: what is committed survives even if all of them lose power. The high
watermark does not move while the committed ISR is smaller than `replicas_needed`, and never back.
"""

from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker._core.base.sync cimport atomic_load_i32
from kbroker._core.log.partition cimport (
    ROLE_FOLLOWER, ROLE_LEADER, ROLE_STOPPED, ack_waiter_t, follower_t, note_refusal, partition_t,
)
from kbroker._core.wire.error_codes cimport NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER

# The smallest ISR with which records may be committed: min.insync.replicas, or all replicas if those are fewer.
cdef inline int32_t replicas_needed(partition_t *p) noexcept nogil:
    cdef int32_t all_of_them = atomic_load_i32(&p.follower_count) + 1
    return p.options.min_in_sync if p.options.min_in_sync < all_of_them else all_of_them

# Whether a batch may be appended by this broker: 0, NOT_LEADER_OR_FOLLOWER, or with `acks` -1 NOT_ENOUGH_REPLICAS,
# which is noted.
cdef inline int replicas_refuse(partition_t *p, int16_t acks) noexcept nogil:
    cdef int32_t role = atomic_load_i32(&p.role)
    if role == ROLE_FOLLOWER or role == ROLE_STOPPED:
        return NOT_LEADER_OR_FOLLOWER
    if acks == -1 and role == ROLE_LEADER and atomic_load_i32(&p.in_sync_count) < replicas_needed(p):
        note_refusal(p, NOT_ENOUGH_REPLICAS)
        return NOT_ENOUGH_REPLICAS
    return 0

# What is known of a replica of a leader (`lock` held); NULL: the node is none.
cdef follower_t *find_follower(partition_t *p, int32_t node_id) noexcept nogil
# What a Fetch with a last fetched epoch (KIP-595) is about.
ctypedef struct fetch_position_t:
    int64_t offset
    int32_t last_fetched_epoch # of the record before `offset`; -1: not given
    int32_t diverging_epoch    # out: -1, or the newest epoch of this log that is not newer than last_fetched_epoch, ...
    int64_t diverging_end      # ... and where that epoch ends here: the fetcher has other records than this log
    bint in_sync               # out, of `replicas_serve`: the follower is in the committed ISR

# Check a position of a fetch against the leader epochs of the log, and set `diverging_epoch`. Returns 0, or
# OFFSET_OUT_OF_RANGE if the epoch is not known here. The log is open.
cdef int replicas_check_position(partition_t *p, fetch_position_t *at) noexcept nogil
# The same for the fetch of a follower, which is noted if `is_noted`, nothing diverges, and the offset is in the log:
# the follower has everything below the offset, and its log begins at `log_start_offset`. It is not noted while the
# follower may have other records than those that were deleted here. The high watermark moves if it
# can, and fetches and acks that waited for it are told. `now_ms` is monotonic. Returns 0, or the error code to answer:
# NOT_LEADER_OR_FOLLOWER, UNKNOWN_LEADER_EPOCH if the node is none of the replicas, OFFSET_OUT_OF_RANGE.
cdef int replicas_serve(partition_t *p, int32_t node_id, int64_t broker_epoch, fetch_position_t *at,
                        int64_t log_start_offset, int64_t now_ms, bint is_noted) noexcept nogil
# The error code for a client that knows of records beyond this leader's log end: another leader may have been elected
# meanwhile and have them. It is OFFSET_OUT_OF_RANGE if the lead was checked lately or there is no other replica, else
# NOT_LEADER_OR_FOLLOWER; then ReplicaNews tells that the lead is to be checked. `now_ms` is monotonic.
cdef int replicas_know_no_more(partition_t *p, int64_t now_ms) noexcept nogil
# Move the high watermark of a leader as far as it can (`lock` held). Returns whether it has moved.
cdef bint replicas_advance(partition_t *p, int64_t now_ms) noexcept nogil
# Note that a transaction which began at `first_offset` has ended with a marker at `offset`: until the high watermark is
# beyond the marker, the last stable offset does not pass the transaction (`lock` held). False: memory is out.
cdef bint note_ended(partition_t *p, int64_t first_offset, int64_t offset) noexcept nogil
# Move the high watermark to `offset`, which is beyond it, and tell fetches and acks that waited (`lock` held).
cdef void move_high_watermark(partition_t *p, int64_t offset) noexcept nogil
# The smallest log start offset of the live replicas (`lock` held): records below it are gone everywhere.
cdef int64_t low_watermark(partition_t *p) noexcept nogil
# Link a waiter for the low watermark, with a reference (acks_forget drops it). Returns false and leaves `pending` alone
# when there is nothing to wait for; waiter.error may have an error code then.
cdef bint low_await(partition_t *p, ack_waiter_t *waiter) noexcept nogil
# End such a wait with an error code; a no-op when it is over.
cdef void low_give_up(ack_waiter_t *waiter, int16_t code) noexcept nogil
# Release the waiters for the low watermark that it has reached, or all of them with an error code (`lock` held).
cdef void low_watermark_moved(partition_t *p) noexcept nogil
cdef void low_waiters_fail(partition_t *p, int16_t code) noexcept nogil
