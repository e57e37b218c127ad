"""The pool of receive buffers; see receive_buffers.pxd."""

from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from kbroker._core.base.sync cimport mutex_init, mutex_lock, mutex_t, mutex_unlock

cdef extern from * nogil:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE 1
    #endif
    #include <pthread.h>
    #include <sys/mman.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    #else
    static inline int malloc_trim(size_t kept) { return 0; }
    #endif
    static inline void *map_memory(size_t size) {
        void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return at == MAP_FAILED ? NULL : at;
    }
    static inline void *remap_memory(void *old, size_t old_size, size_t size) {
        void *at = mremap(old, old_size, size, MREMAP_MAYMOVE);
        return at == MAP_FAILED ? NULL : at;
    }
    """
    void *map_memory(size_t size)
    void *remap_memory(void *old, size_t old_size, size_t size)
    int munmap(void *at, size_t size)
    int malloc_trim(size_t kept)
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)

cdef enum:
    PAGE = 4096

ctypedef struct larger_t:
    uint8_t *data
    int64_t capacity

cdef mutex_t pool_lock
cdef uint8_t *kept[KEPT_BUFFERS]
cdef int kept_count = 0
cdef larger_t[KEPT_LARGER] larger
cdef int larger_count = 0
cdef int64_t larger_bytes = 0
cdef int64_t larger_limit = 0
mutex_init(&pool_lock, NULL)


cdef void lock_pool() noexcept nogil:
    mutex_lock(&pool_lock)


cdef void unlock_pool() noexcept nogil:
    mutex_unlock(&pool_lock)


# A child process must not inherit a lock that another thread held at the fork: nobody would ever unlock it there.
pthread_atfork(lock_pool, unlock_pool, unlock_pool)


cdef uint8_t *large_take() noexcept nogil:
    global kept_count
    cdef uint8_t *buffer = NULL
    mutex_lock(&pool_lock)
    if kept_count > 0:
        kept_count -= 1
        buffer = kept[kept_count]
    mutex_unlock(&pool_lock)
    if buffer == NULL:
        buffer = <uint8_t *>map_memory(LARGE_BUFFER)
    return buffer


cdef void larger_remove(int place) noexcept nogil:
    """Take a kept buffer out of the pool (`pool_lock` held)."""
    global larger_count, larger_bytes
    larger_bytes -= larger[place].capacity
    larger_count -= 1
    larger[place] = larger[larger_count]


cdef void larger_drop_smallest() noexcept nogil:
    """Unmap the smallest kept buffer (`pool_lock` held)."""
    cdef int smallest = 0
    cdef int i
    for i in range(1, larger_count):
        if larger[i].capacity < larger[smallest].capacity:
            smallest = i
    munmap(larger[smallest].data, larger[smallest].capacity)
    larger_remove(smallest)


cdef uint8_t *larger_take(int64_t size, int64_t *capacity) noexcept nogil:
    """Return the smallest kept buffer that fits, unless it is more than four times too large; else a new mapping."""
    cdef uint8_t *found = NULL
    cdef int best = -1
    cdef int i
    mutex_lock(&pool_lock)
    for i in range(larger_count):
        if size <= larger[i].capacity <= 4 * size and (best < 0 or larger[i].capacity < larger[best].capacity):
            best = i
    if best >= 0:
        found = larger[best].data
        capacity[0] = larger[best].capacity
        larger_remove(best)
    mutex_unlock(&pool_lock)
    if found == NULL:
        capacity[0] = (size + CAPACITY_STEP - 1) & -CAPACITY_STEP
        found = <uint8_t *>map_memory(capacity[0])
    return found


cdef bint larger_keep(uint8_t *buffer, int64_t capacity) noexcept nogil:
    global larger_count, larger_bytes
    cdef bint keep = False
    mutex_lock(&pool_lock)
    if capacity <= larger_limit:
        while larger_count and (larger_count == KEPT_LARGER or larger_bytes + capacity > larger_limit):
            larger_drop_smallest()
        larger[larger_count].data = buffer
        larger[larger_count].capacity = capacity
        larger_count += 1
        larger_bytes += capacity
        keep = True
    mutex_unlock(&pool_lock)
    return keep


cdef void buffers_keep(int64_t bytes) noexcept nogil:
    global larger_limit
    mutex_lock(&pool_lock)
    larger_limit += bytes
    while larger_bytes > larger_limit:
        larger_drop_smallest()
    mutex_unlock(&pool_lock)


cdef uint8_t *buffer_take(int64_t size, int64_t *capacity) noexcept nogil:
    if size < SMALL_BUFFERS_END:
        capacity[0] = size
        return <uint8_t *>malloc(size)
    if size <= LARGE_BUFFER:
        capacity[0] = LARGE_BUFFER
        return large_take()
    return larger_take(size, capacity)


cdef uint8_t *buffer_grow(uint8_t *buffer, int64_t used, int64_t wanted, int64_t *capacity) noexcept nogil:
    cdef uint8_t *grown
    cdef int64_t grown_capacity = wanted
    if capacity[0] >= LARGE_BUFFER:
        grown_capacity = (wanted + PAGE - 1) & -PAGE
        grown = <uint8_t *>remap_memory(buffer, capacity[0], grown_capacity)
    elif wanted < SMALL_BUFFERS_END:
        grown = <uint8_t *>realloc(buffer, wanted)
    else:
        grown = buffer_take(wanted, &grown_capacity)
        if grown != NULL:
            memcpy(grown, buffer, used)
            free(buffer)
    if grown != NULL:
        capacity[0] = grown_capacity
    return grown


cdef void buffer_free(uint8_t *buffer, int64_t capacity) noexcept nogil:
    global kept_count
    cdef bint keep = False
    if capacity < LARGE_BUFFER:
        free(buffer)
        return
    if capacity > LARGE_BUFFER:
        if larger_keep(buffer, capacity):
            return
        munmap(buffer + LARGE_BUFFER, capacity - LARGE_BUFFER)
    mutex_lock(&pool_lock)
    if kept_count < KEPT_BUFFERS:
        kept[kept_count] = buffer
        kept_count += 1
        keep = True
    mutex_unlock(&pool_lock)
    if not keep:
        munmap(buffer, LARGE_BUFFER)


def kept_buffers():
    """Return how many buffers of LARGE_BUFFER bytes the process keeps for reuse."""
    return kept_count


def kept_bytes():
    """Return how many bytes of larger buffers the process keeps for reuse."""
    return larger_bytes


def release_free_memory():
    """Give the system back the pages of the C heap that nobody uses."""
    with nogil:
        malloc_trim(0)
