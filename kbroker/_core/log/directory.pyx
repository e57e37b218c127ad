"""The flush queue and health of a log directory, for Python."""

from libc.stdint cimport int64_t

from kbroker._core.base.clock cimport monotonic_ns
from kbroker._core.base.sync cimport *
from kbroker._core.log.flush cimport flusher_loop
from kbroker._core.log.partition cimport FULL_TOLD_EVERY_S, log_dir_t

import logging

logger = logging.getLogger("kbroker.storage")


cdef class LogDirectory:
    """One log directory: its flush queue and whether it still works."""

    def __cinit__(self, str path):
        self.path = path
        self.on_offline = None
        self.dir.set_ms = -1
        mutex_init(&self.dir.lock, NULL)
        condition_init(&self.dir.wanted, NULL)

    def __dealloc__(self):
        mutex_destroy(&self.dir.lock)
        condition_destroy(&self.dir.wanted)

    def set_on_offline(self, callback):
        """Set the callback; `callback(reason)` is called once, on the thread that saw the directory fail."""
        self.on_offline = callback

    def set_clock_ms(self, int64_t now_ms):
        """Set the clock of followers' fetches and refusals to a fixed time, monotonic in ms, for simulated brokers."""
        atomic_store_i64(&self.dir.set_ms, now_ms)

    def run_flusher(self):
        """Flush partitions as they ask for it, until `stop_flushers`. The body of a flusher thread; several may run."""
        cdef log_dir_t *d = &self.dir
        with nogil:
            flusher_loop(d)

    def stop_flushers(self):
        """Let the flushers flush what is queued and return. Does not wait for them."""
        cdef log_dir_t *d = &self.dir
        with nogil:
            mutex_lock(&d.lock)
            d.stopping = True
            condition_broadcast(&d.wanted)
            mutex_unlock(&d.lock)

    def fail(self, str reason):
        """Take the directory offline. Does nothing if it is; only a restart brings it back."""
        if atomic_claim_i32(&self.dir.offline, 0, 1):
            self.tell_offline(reason)

    def tell_offline(self, str reason):
        logger.error("log directory %s is offline: %s", self.path, reason)
        if self.on_offline is not None:
            self.on_offline(reason)

    def tell_full(self, str log):
        """Note that `log` was refused something for lack of space. Logs a line, at most every 30 seconds."""
        cdef int64_t now_ns = monotonic_ns()
        atomic_store_i64(&self.dir.full_told_ns, now_ns)
        if self.full_logged_ns and now_ns - self.full_logged_ns < FULL_TOLD_EVERY_S * 1000000000LL:
            return
        self.full_logged_ns = now_ns
        logger.error("log directory %s is full: %s cannot be appended to until there is space", self.path, log)

    def find_space(self):
        """Note that the disk has space again."""
        atomic_store_i64(&self.dir.full_told_ns, 0)

    @property
    def is_full(self):
        """Whether something was refused for lack of space, and no space was found since."""
        return atomic_load_i64(&self.dir.full_told_ns) != 0

    @property
    def is_offline(self):
        return atomic_load_i32(&self.dir.offline) != 0

    @property
    def is_stalled(self):
        return atomic_load_i64(&self.dir.stalled_until_ns) > monotonic_ns()

    @property
    def flush_count(self):
        return atomic_load_i64(&self.dir.flush_count)

    @property
    def flush_ns(self):
        return atomic_load_i64(&self.dir.flush_ns)

    @property
    def acks_flushed(self):
        return atomic_load_i64(&self.dir.acks_flushed)
