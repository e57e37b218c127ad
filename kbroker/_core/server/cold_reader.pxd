"""Brings file bytes into memory on a thread of its own, so that sendfile on a processor never waits for a disk."""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.base.mailbox cimport mail_t
from kbroker._core.base.sync cimport condition_t, mutex_t
from kbroker._core.log.partition cimport segment_t

cdef enum:
    RESIDENT_STEP = 128 << 10    # one byte in so many is tested: a readahead window comes and goes as a whole

ctypedef struct warm_t:
    # A file region on its way into memory. Between warm_ask and its mail only the reader touches it, except `conn`.
    mail_t mail                  # first; MAIL_WARM
    warm_t *next
    void *conn                   # processor's thread only; the conn_t that waits, NULL once it is closed
    segment_t *segment           # a reference
    int64_t position             # byte in the file
    int64_t size                 # bytes

ctypedef struct cold_reader_t:
    mutex_t lock                 # guards the queue and `stopping`; taken alone
    condition_t wanted
    warm_t *head
    warm_t *tail
    int32_t stopping
    int64_t regions              # atomic counters: regions read,
    int64_t bytes                # and their bytes

# How many of the `size` bytes from `position` on are in the page cache; `size` where the file system cannot tell.
cdef int64_t resident_prefix(int fd, int64_t position, int64_t size) noexcept nogil
# Queue a region, from any thread; its mail is posted once it was read. After stop the mail is posted at once, unread.
cdef void warm_ask(cold_reader_t *reader, warm_t *warm) noexcept nogil

cdef class ColdReader:
    """The queue of file regions to be read, and the loop of the threads that read them."""
    cdef cold_reader_t reader

    cdef void loop(self) noexcept nogil
