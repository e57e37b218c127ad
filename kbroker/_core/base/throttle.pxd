"""A limit on bytes per second, as Kafka keeps it for replication (KIP-73).

What was recorded is counted in windows: the rate is what the last ones hold, by the time since the oldest began. A work
that is over the limit is not done in part: whoever asks does it whole or not at all, and asks again later.
"""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.base.sync cimport mutex_t

ctypedef struct window_t:
    int64_t since_ms             # monotonic; when it began
    int64_t bytes

ctypedef struct throttle_t:
    mutex_t lock                 # guards the windows
    int64_t rate                 # atomic; bytes per second; INT64_MAX: there is no limit
    window_t *windows            # owned; a ring
    int32_t window_count
    int32_t newest               # index of the window that is counted in
    int64_t window_ms

# Count bytes that were sent or received. No-op without a limit.
cdef void throttle_record(throttle_t *t, int64_t size, int64_t now_ms) noexcept nogil
# For how many milliseconds nothing more may be sent or received; 0: it may now. It may be asked for again sooner.
cdef int64_t throttle_wait_ms(throttle_t *t, int64_t now_ms) noexcept nogil

cdef class Throttle:
    """A limit that several threads share."""
    cdef throttle_t t
