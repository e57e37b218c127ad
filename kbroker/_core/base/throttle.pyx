"""A limit on bytes per second; see throttle.pxd."""

from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.stdlib cimport calloc, free

from kbroker._core.base.clock cimport monotonic_ms
from kbroker._core.base.sync cimport (
    atomic_load_i64, atomic_store_i64, mutex_destroy, mutex_init, mutex_lock, mutex_unlock,
)


cdef void throttle_record(throttle_t *t, int64_t size, int64_t now_ms) noexcept nogil:
    cdef window_t *window
    if atomic_load_i64(&t.rate) == INT64_MAX:
        return
    mutex_lock(&t.lock)
    window = &t.windows[t.newest]
    if now_ms - window.since_ms >= t.window_ms:
        t.newest = (t.newest + 1) % t.window_count
        window = &t.windows[t.newest]
        window.since_ms = now_ms
        window.bytes = 0
    window.bytes += size
    mutex_unlock(&t.lock)


cdef int64_t throttle_wait_ms(throttle_t *t, int64_t now_ms) noexcept nogil:
    cdef int64_t rate = atomic_load_i64(&t.rate)
    cdef int64_t span_ms = t.window_ms * t.window_count
    cdef int64_t oldest_ms = now_ms
    cdef int64_t total = 0
    cdef int64_t needed_ms = INT64_MAX
    cdef int32_t i
    if rate == INT64_MAX:
        return 0
    mutex_lock(&t.lock)
    for i in range(t.window_count):
        if now_ms - t.windows[i].since_ms < span_ms:
            total += t.windows[i].bytes
            oldest_ms = min(oldest_ms, t.windows[i].since_ms)
    mutex_unlock(&t.lock)
    if total == 0:
        return 0
    # The rate is within the limit once `total` spreads over enough time, or once the oldest window does not count.
    if rate > 0:
        needed_ms = (total * 1000 - 1) // rate + 1
    if needed_ms <= max(now_ms - oldest_ms, t.window_ms):
        return 0
    return min(needed_ms, span_ms) - (now_ms - oldest_ms)


cdef class Throttle:

    def __cinit__(self, int32_t window_count=11, int64_t window_ms=1000):
        """`window_count`, `window_ms`: replication.quota.window.num, replication.quota.window.size.seconds."""
        cdef int32_t i
        if window_count < 1 or window_ms < 1:
            raise ValueError(f"{window_count} windows of {window_ms} ms")
        mutex_init(&self.t.lock, NULL)
        self.t.rate = INT64_MAX
        self.t.windows = <window_t *>calloc(<size_t>window_count, sizeof(window_t))
        if self.t.windows == NULL:
            raise MemoryError
        self.t.window_count = window_count
        self.t.window_ms = window_ms
        for i in range(window_count):
            self.t.windows[i].since_ms = -(1LL << 60)

    def __dealloc__(self):
        free(self.t.windows)
        mutex_destroy(&self.t.lock)

    @property
    def rate(self):
        """The limit in bytes per second; 2**63 - 1: there is none."""
        return atomic_load_i64(&self.t.rate)

    @rate.setter
    def rate(self, int64_t bytes_per_second):
        atomic_store_i64(&self.t.rate, bytes_per_second)

    def record(self, int64_t size, int64_t now_ms=-1):
        """Count bytes that were moved. `now_ms`: the monotonic time; -1: the clock's."""
        throttle_record(&self.t, size, monotonic_ms() if now_ms < 0 else now_ms)

    def wait_ms(self, int64_t now_ms=-1):
        """For how long nothing more may be moved; 0: it may now. `now_ms` as in `record`."""
        return throttle_wait_ms(&self.t, monotonic_ms() if now_ms < 0 else now_ms)
