"""Bytes of files that are not in memory are brought there by a thread of its own, so that sendfile never waits for a disk
on a processor."""

from libc.stdint cimport int32_t, int64_t

from kbroker._core.base.mailbox cimport mail_t
from kbroker._core.base.sync cimport condition_t, mutex_t
from kbroker._core.log.partition cimport segment_t

cdef enum:
    RESIDENT_STEP = 128 << 10    # one byte per so many is asked for: a readahead window comes and goes as a whole

ctypedef struct warm_t:
    # A file region on its way into memory. The reader's until its mail has come.
    mail_t mail                  # first; MAIL_WARM
    warm_t *next
    void *conn                   # the conn_t that waits; NULL once it is closed. The processor's thread only.
    segment_t *segment           # a reference
    int64_t position
    int64_t size

ctypedef struct cold_reader_t:
    mutex_t lock                 # guards the queue; taken alone
    condition_t wanted
    warm_t *head
    warm_t *tail
    int32_t stopping
    int64_t regions              # atomic counters
    int64_t bytes

# How many bytes from `position` on are in the page cache; all of them where the file system cannot tell.
cdef int64_t resident_prefix(int fd, int64_t position, int64_t size) noexcept nogil
# Any thread: read it, then post its mail. After stop the mail comes at once.
cdef void warm_ask(cold_reader_t *reader, warm_t *warm) noexcept nogil

cdef class ColdReader:
    """The thread's loop and its queue."""
    cdef cold_reader_t reader

    cdef void loop(self) noexcept nogil
