"""Batches on their way from a producer to a broker; see outgoing.pxd."""

from cpython.ref cimport Py_XDECREF
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from posix.unistd cimport getpid

from kbroker._core.base.futex cimport futex_wait, futex_wake_all
from kbroker._core.base.sync cimport atomic_add_i32, atomic_claim_i32, atomic_load_i32, atomic_store_i32
from kbroker._core.wire.crc cimport crc32c
from kbroker._core.wire.cursor cimport store_u16, store_u32, store_u64
from kbroker._core.wire.layout cimport *

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)

cdef int32_t process_id = getpid()


cdef void note_process() noexcept nogil:
    global process_id
    process_id = getpid()


pthread_atfork(NULL, NULL, note_process)

# --- buffers ------------------------------------------------------------------------------------------

cdef int class_of(int64_t size) noexcept nogil:
    """The smallest class that holds `size`, or BUFFER_CLASSES when none does."""
    cdef int found = 0
    while found < BUFFER_CLASSES and (<int64_t>SMALLEST_BUFFER << 2 * found) < size:
        found += 1
    return found


cdef uint8_t *pool_take(buffer_pool_t *pool, int64_t size, int64_t *capacity) noexcept nogil:
    cdef int found = class_of(size)
    cdef uint8_t *buffer
    if found == BUFFER_CLASSES:
        capacity[0] = size
        return <uint8_t *>malloc(<size_t>size)
    capacity[0] = <int64_t>SMALLEST_BUFFER << 2 * found
    buffer = pool.kept[found]
    if buffer == NULL:
        return <uint8_t *>malloc(<size_t>capacity[0])
    pool.kept[found] = (<uint8_t **>buffer)[0]
    pool.kept_bytes -= capacity[0]
    return buffer


cdef void pool_give(buffer_pool_t *pool, uint8_t *buffer, int64_t capacity) noexcept nogil:
    cdef int found = class_of(capacity)
    if buffer == NULL:
        return
    if found == BUFFER_CLASSES or pool.kept_bytes + capacity > pool.most_kept \
            or capacity != <int64_t>SMALLEST_BUFFER << 2 * found:
        free(buffer)
        return
    (<uint8_t **>buffer)[0] = pool.kept[found]
    pool.kept[found] = buffer
    pool.kept_bytes += capacity


cdef void pool_free(buffer_pool_t *pool) noexcept nogil:
    cdef uint8_t *buffer
    cdef int i
    for i in range(BUFFER_CLASSES):
        while pool.kept[i] != NULL:
            buffer = pool.kept[i]
            pool.kept[i] = (<uint8_t **>buffer)[0]
            free(buffer)
    pool.kept_bytes = 0

# --- batches ------------------------------------------------------------------------------------------

cdef outgoing_t *outgoing_new() noexcept nogil:
    cdef outgoing_t *batch = <outgoing_t *>calloc(1, sizeof(outgoing_t))
    if batch != NULL:
        batch.references = 1
        batch.process_id = process_id
        batch.producer_id = -1
        batch.producer_epoch = -1
        batch.base_sequence = NO_SEQUENCE
        batch.base_offset = -1
        batch.log_append_time = -1
        batch.leader = -1
        batch.leader_epoch = -1
        batch.size = BATCH_HEADER_SIZE
    return batch


cdef void outgoing_unref(outgoing_t *batch) noexcept nogil:
    cdef outgoing_t *part
    if atomic_add_i32(&batch.references, -1) > 0:
        return
    while batch.parts != NULL:
        part = batch.parts
        batch.parts = part.sibling
        outgoing_unref(part)
    if batch.exception != NULL or batch.callbacks != NULL:
        with gil:
            Py_XDECREF(batch.exception)
            Py_XDECREF(batch.callbacks)
    free(batch.data)
    free(batch.text)
    free(batch)


cdef bint outgoing_is_foreign(const outgoing_t *batch) noexcept nogil:
    return batch.process_id != process_id


cdef void outgoing_seal(outgoing_t *batch, bint transactional) noexcept nogil:
    cdef uint8_t *p = batch.data
    cdef int attributes = batch.codec if batch.compressed else 0
    if transactional:
        attributes |= ATTRIBUTE_TRANSACTIONAL
    store_u64(p + BATCH_BASE_OFFSET, 0)
    store_u32(p + BATCH_LENGTH, <uint32_t>(batch.size - LOG_OVERHEAD))
    store_u32(p + BATCH_LEADER_EPOCH, <uint32_t>-1)
    p[BATCH_MAGIC] = 2
    store_u16(p + BATCH_ATTRIBUTES, <uint16_t>attributes)
    store_u32(p + BATCH_LAST_OFFSET_DELTA, <uint32_t>(batch.count - 1))
    store_u64(p + BATCH_BASE_TIMESTAMP, <uint64_t>batch.base_timestamp)
    store_u64(p + BATCH_MAX_TIMESTAMP, <uint64_t>batch.max_timestamp)
    store_u64(p + BATCH_PRODUCER_ID, <uint64_t>batch.producer_id)
    store_u16(p + BATCH_PRODUCER_EPOCH, <uint16_t>batch.producer_epoch)
    store_u32(p + BATCH_BASE_SEQUENCE, <uint32_t>batch.base_sequence)
    store_u32(p + BATCH_RECORD_COUNT, <uint32_t>batch.count)
    store_u32(p + BATCH_CRC, crc32c(0, p + BATCH_ATTRIBUTES, <size_t>(batch.size - BATCH_ATTRIBUTES)))


cdef void outgoing_await(outgoing_t *batch, int64_t timeout_ms) noexcept nogil:
    atomic_add_i32(&batch.sleepers, 1)
    if atomic_load_i32(&batch.state) == OUTGOING_PENDING:
        futex_wait(&batch.state, OUTGOING_PENDING, timeout_ms)
    atomic_add_i32(&batch.sleepers, -1)


cdef bint outgoing_settle(outgoing_t *batch, int32_t state) noexcept nogil:
    atomic_store_i32(&batch.state, state)
    if atomic_add_i32(&batch.sleepers, 0) > 0:
        futex_wake_all(&batch.state)
    return not atomic_claim_i32(&batch.watched, UNWATCHED, WATCHED_TOO_LATE)
