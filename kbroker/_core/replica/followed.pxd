"""The partitions that a fetcher follows; all of them have one leader.

A partition is fetched from its log's end on. When an answer brings trouble (an error, a diverging epoch, a bad batch),
only this partition stops, and Python is told (`take_news`); it goes on after `resume`, or in another epoch after
`follow`.

The lock guards the list and all fields; it is never held while an answer is parsed, appended or a socket used. While an
answer is appended, `appending` is true, and `forget` waits for its end. The GIL is never acquired under the lock, and
the lock never while the GIL is held.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t

from kbroker._core.base.sync cimport condition_t, mutex_t
from kbroker._core.client.pump cimport Engine
from kbroker._core.log.partition cimport partition_t

ctypedef struct followed_partition_t:
    int32_t refs                 # of the list, of requests under way and of `news`
    partition_t *log             # a reference
    uint8_t topic_id[16]
    bint has_id
    bint wanted                  # False: it is taken out of the list once it is in no fetch session
    bint stopped                 # it waits for Python: `resume` or `follow`
    bint appending               # an answer is being appended, on the pump's thread
    int32_t leader_epoch
    int64_t generation           # changes with `follow`, `forget` and `resume`: answers to earlier requests are dropped
    int64_t not_before_ms        # monotonic; no request before this time
    int64_t held_until_ms        # monotonic; nor before this one: it is over the follower's throttle
    # What the next request says: the log's end, and the leader epoch of the record before it (-1: none).
    int64_t offset
    int32_t last_epoch
    int64_t log_start_offset
    int64_t leader_high_watermark # -1: not known
    # Whether the leader's fetch session has the partition, and what the leader was last told there.
    bint in_session
    int32_t session_leader_epoch
    int32_t session_last_epoch
    int64_t session_offset
    int64_t session_log_start_offset

ctypedef struct trouble_t:
    trouble_t *next
    followed_partition_t *partition  # a reference
    int64_t generation
    int32_t leader_epoch
    int32_t diverging_epoch      # -1: none
    int64_t diverging_end
    int64_t log_start_offset     # TROUBLE_START only: where the leader's log starts
    int64_t offset               # that was asked for
    int16_t error
    int8_t kind

cdef enum:
    # trouble_t.kind
    TROUBLE_ERROR = 0            # the leader has answered `error`
    TROUBLE_DIVERGING = 1        # the leader's log differs before the offset
    TROUBLE_APPEND = 2           # the records cannot be appended: `error`
    TROUBLE_START = 3            # no trouble, and the partition goes on: the leader's log starts later

# Gives up one reference. The caller holds the lock.
cdef void followed_release(followed_partition_t *p) noexcept nogil

cdef class FollowedPartitions(Engine):
    cdef mutex_t lock
    cdef condition_t appended    # `appending` of some partition has become false
    cdef followed_partition_t **partitions
    cdef int32_t partition_count
    cdef int32_t partition_capacity
    cdef int64_t generations     # the last generation that was given
    cdef trouble_t *news         # newest first

    cdef followed_partition_t *find(self, const partition_t *log) noexcept nogil
    cdef followed_partition_t *add(self, partition_t *log) noexcept nogil
    cdef void set_going(self, followed_partition_t *p, int64_t not_before_ms) noexcept nogil
    cdef void await_append(self, followed_partition_t *p) noexcept nogil
    cdef void purge(self) noexcept nogil
    cdef void say(self, followed_partition_t *p, const trouble_t *trouble) noexcept nogil
