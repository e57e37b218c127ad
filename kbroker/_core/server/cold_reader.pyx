"""The reader of cold data; see cold_reader.pxd."""

from libc.errno cimport EAGAIN, errno

from kbroker._core.base.links cimport queue_push
from kbroker._core.base.mailbox cimport post
from kbroker._core.base.sync cimport (
    atomic_add_i64,
    condition_broadcast,
    condition_destroy,
    condition_init,
    condition_signal,
    condition_wait,
    mutex_destroy,
    mutex_init,
    mutex_lock,
    mutex_unlock,
)

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE 1
    #endif
    #include <fcntl.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <sys/uio.h>
    #include <unistd.h>
    #ifndef SYS_cachestat
    #define SYS_cachestat 451    /* Linux 6.5; the same number on every architecture */
    #endif
    #ifndef RWF_NOWAIT
    #define RWF_NOWAIT 0x00000008
    #endif
    static inline ssize_t read_if_resident(int fd, void *data, size_t size, int64_t position) {
        struct iovec vector = {data, size};
        return preadv2(fd, &vector, 1, position, RWF_NOWAIT);
    }
    /* One call for a region of many pages. 0 also where the kernel or the file system cannot say. */
    static inline int all_pages_cached(int fd, int64_t position, int64_t size) {
        struct { uint64_t position, size; } range = {position, size};
        struct { uint64_t cached, dirty, written_back, evicted, lately_evicted; } pages;
        int64_t page = sysconf(_SC_PAGESIZE);
        if (syscall(SYS_cachestat, fd, &range, &pages, 0) != 0)
            return 0;
        return (int64_t)pages.cached == (position + size - 1) / page - position / page + 1;
    }
    static inline void read_through(int fd, int64_t position, int64_t size) {
        char buffer[64 * 1024];
        int64_t end = position + size;
        posix_fadvise(fd, position, 2 * size, POSIX_FADV_WILLNEED);
        while (position < end) {
            int64_t want = end - position < (int64_t)sizeof buffer ? end - position : (int64_t)sizeof buffer;
            ssize_t got = pread(fd, buffer, want, position);
            if (got <= 0)
                return;
            position += got;
        }
    }
    """
    ssize_t read_if_resident(int fd, void *data, size_t size, int64_t position)
    bint all_pages_cached(int fd, int64_t position, int64_t size)
    void read_through(int fd, int64_t position, int64_t size)


cdef bint is_resident(int fd, int64_t position) noexcept nogil:
    cdef char byte = 0
    return read_if_resident(fd, &byte, 1, position) >= 0 or errno != EAGAIN


cdef int64_t resident_prefix(int fd, int64_t position, int64_t size) noexcept nogil:
    cdef int64_t at = position
    cdef int64_t last = position + size - 1
    # A page that is still being read counts as cached, too. When the last byte is readable, all have been read.
    if all_pages_cached(fd, position, size) and is_resident(fd, last):
        return size
    while is_resident(fd, at):
        if at == last:
            return size
        at = min(at + RESIDENT_STEP, last)
    return at - position


cdef void warm_ask(cold_reader_t *reader, warm_t *warm) noexcept nogil:
    cdef bint stopping
    mutex_lock(&reader.lock)
    stopping = reader.stopping
    if not stopping:
        queue_push(reader.head, reader.tail, warm, warm.next)
        condition_signal(&reader.wanted)
    mutex_unlock(&reader.lock)
    if stopping:
        post(&warm.mail)


cdef class ColdReader:
    """Brings file regions into memory, one after the other, in the order in which connections ask for them."""

    def __cinit__(self):
        mutex_init(&self.reader.lock, NULL)
        condition_init(&self.reader.wanted, NULL)

    def __dealloc__(self):
        condition_destroy(&self.reader.wanted)
        mutex_destroy(&self.reader.lock)

    cdef void loop(self) noexcept nogil:
        cdef cold_reader_t *reader = &self.reader
        cdef warm_t *warm
        while True:
            mutex_lock(&reader.lock)
            while reader.head == NULL and not reader.stopping:
                condition_wait(&reader.wanted, &reader.lock)
            warm = reader.head
            if warm != NULL:
                reader.head = warm.next
            mutex_unlock(&reader.lock)
            if warm == NULL:
                return
            read_through(warm.segment.fd, warm.position, warm.size)
            atomic_add_i64(&reader.regions, 1)
            atomic_add_i64(&reader.bytes, warm.size)
            post(&warm.mail)

    def run(self) -> None:
        """Read regions until `stop`. The body of a thread; any number of threads may run it."""
        with nogil:
            self.loop()

    def stop(self) -> None:
        """Let `run` return once all queued regions are read. Does not wait."""
        mutex_lock(&self.reader.lock)
        self.reader.stopping = True
        condition_broadcast(&self.reader.wanted)
        mutex_unlock(&self.reader.lock)

    @property
    def regions(self) -> int:
        return self.reader.regions

    @property
    def bytes_read(self) -> int:
        return self.reader.bytes
