"""Hot state of a partition's log; the contracts are in partition.pxd.

In this order: references and files, the list of segments, what storage.Log and its directory are told, waiting fetches.
Appending is in append.pyx, reading in position.pyx, flushing in flush.pyx, replicas in replicas.pyx.
"""

from cpython.ref cimport Py_XDECREF, PyObject
from libc.errno cimport EDQUOT, EFBIG, ENOSPC
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport strerror
from posix.mman cimport MAP_FAILED, MAP_POPULATE, MAP_SHARED, PROT_READ, mmap, munmap

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.clock cimport monotonic_ns
from kbroker._core.base.links cimport chain_push, chain_remove
from kbroker._core.base.sync cimport *
from kbroker._core.log.io cimport io_close, io_truncate
from kbroker._core.log.producers cimport producers_free
from kbroker._core.wire.error_codes cimport UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR

import logging

from kbroker.errors import KbrokerError

logger = logging.getLogger("kbroker.storage")

# --- references and files ---------------------------------------------------------------------------

cdef void partition_ref(partition_t *p) noexcept nogil:
    atomic_add_i32(&p.refs, 1)


cdef void partition_unref(partition_t *p) noexcept nogil:
    if atomic_add_i32(&p.refs, -1) == 0:
        partition_free(p)


cdef void partition_free(partition_t *p) noexcept nogil:
    cdef int32_t i
    for i in range(p.segment_count):
        segment_unref(p.segments[i])
    free(p.segments)
    free(p.aborting)
    free(p.verifications.entries)
    free(p.followers)
    free(p.epochs)
    free(p.ended)
    producers_free(p.producers)
    mutex_destroy(&p.flush_lock)
    mutex_destroy(&p.append_lock)
    mutex_destroy(&p.lock)
    free(p.topic)
    with gil:
        Py_XDECREF(<PyObject *>p.directory)
        Py_XDECREF(<PyObject *>p.file_system)
        Py_XDECREF(<PyObject *>p.log)
    free(p)


cdef void segment_unref(segment_t *s) noexcept nogil:
    if atomic_add_i32(&s.refs, -1) != 0:
        return
    segment_close_files(s)
    if s.file_system != NULL:
        with gil:
            Py_XDECREF(<PyObject *>s.file_system)
    free(s.pending)
    free(s)


cdef uint8_t *map_index_file(int32_t fd, int64_t size, bint populate) noexcept nogil:
    cdef void *address = mmap(NULL, <size_t>size, PROT_READ, MAP_SHARED | (MAP_POPULATE if populate else 0), fd, 0)
    return <uint8_t *>address if address != MAP_FAILED else NULL


cdef void segment_close_files(segment_t *s) noexcept nogil:
    if s.index != NULL:
        munmap(s.index, <size_t>s.index_capacity)
        s.index = NULL
    if s.time_index != NULL:
        munmap(s.time_index, <size_t>s.time_index_capacity)
        s.time_index = NULL
    if s.aborted != NULL:
        munmap(s.aborted, <size_t>s.aborted_capacity)
        s.aborted = NULL
    io_close(s.file_system, s.fd)
    io_close(s.file_system, s.index_fd)
    io_close(s.file_system, s.time_index_fd)
    io_close(s.file_system, s.aborted_fd)
    s.fd = -1
    s.index_fd = -1
    s.time_index_fd = -1
    s.aborted_fd = -1

# --- the list of segments ---------------------------------------------------------------------------

cdef int32_t first_segment_from(segment_t *const *segments, int32_t count, int64_t base_offset) noexcept nogil:
    cdef int32_t low = 0
    cdef int32_t high = count
    cdef int32_t middle
    while low < high:
        middle = (low + high) >> 1
        if segments[middle].base_offset < base_offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef segment_t *find_segment(partition_t *p, int64_t base_offset) noexcept nogil:
    """Return the segment with this base offset, or NULL (`lock` held)."""
    cdef int32_t at = first_segment_from(p.segments, p.segment_count, base_offset)
    return p.segments[at] if at < p.segment_count and p.segments[at].base_offset == base_offset else NULL


cdef bint add_aborting(partition_t *p, segment_t *s) noexcept nogil:
    cdef segment_t **grown = <segment_t **>with_room(p.aborting, p.aborting_count, &p.aborting_capacity,
                                                     sizeof(segment_t *))
    if grown == NULL:
        return False
    p.aborting = grown
    p.aborting[p.aborting_count] = s
    p.aborting_count += 1
    return True

# --- what storage.Log and its directory are told ----------------------------------------------------

cdef int write_failed(partition_t *p, segment_t *s, int failed) noexcept nogil:
    """Handle a failed write (`failed`: -errno). Returns the error code to answer.

    On a full disk or quota the half-written bytes are cut off, and appends are refused until there is space. Any other
    error takes the directory offline.
    """
    if failed == -ENOSPC or failed == -EDQUOT or failed == -EFBIG:
        failed = io_truncate(s.file_system, s.fd, s.size)
        if failed == 0:
            directory_full(p)
            return KAFKA_STORAGE_ERROR
    directory_failed(p, failed)
    return KAFKA_STORAGE_ERROR


cdef void directory_full(partition_t *p) noexcept nogil:
    """Log that the disk is full, but not for every append that is refused (FULL_TOLD_EVERY_S)."""
    cdef int64_t told_ns = atomic_load_i64(&p.dir.full_told_ns)
    if told_ns and monotonic_ns() - told_ns < FULL_TOLD_EVERY_S * 1000000000LL:
        return
    with gil:
        try:
            (<object>p.directory).tell_full(f"{p.topic[:p.topic_size].decode('utf-8', 'replace')}-{p.partition_id}")
        except BaseException:
            logger.exception("telling that a disk is full")


cdef bint take_offline(partition_t *p) noexcept nogil:
    return atomic_claim_i32(&p.dir.offline, 0, 1)


cdef void tell_offline(partition_t *p, int failed) noexcept with gil:
    try:
        reason = f"{p.topic[:p.topic_size].decode('utf-8', 'replace')}-{p.partition_id}: {strerror(-failed).decode()}"
        (<object>p.directory).tell_offline(reason)
    except BaseException:
        logger.exception("telling that a log directory is offline")


cdef void directory_failed(partition_t *p, int failed) noexcept nogil:
    if take_offline(p):
        tell_offline(p, failed)


cdef int meet_need(partition_t *p, const need_t *need) noexcept with gil:
    if need.kind == NEED_NOTHING:
        return 0
    log = (<object>p.log)() if p.log != NULL else None
    if log is None:
        return UNKNOWN_TOPIC_OR_PARTITION
    try:
        log.meet_need(need.kind, need.base_offset, need.leader_epoch if need.kind == NEED_EPOCH else -1)
        return 0
    except KbrokerError as error:
        return error.code
    except OSError:
        logger.exception("%s: cannot go on", log)
        return KAFKA_STORAGE_ERROR
    except BaseException:
        logger.exception("%s: cannot go on", log)
        return UNKNOWN_SERVER_ERROR

# --- waiting fetches --------------------------------------------------------------------------------

cdef bint partition_await_bytes(partition_t *p, fetch_waiter_t *waiter, int64_t from_offset,
                                int8_t until) noexcept nogil:
    mutex_lock(&p.lock)
    if refusal(p) or partition_visible_end(p, until) > from_offset:
        mutex_unlock(&p.lock)
        waiter.partition = NULL
        return False
    partition_ref(p)
    waiter.partition = p
    waiter.until = until
    chain_push(p.fetch_waiters, waiter, waiter.next, waiter.previous)
    mutex_unlock(&p.lock)
    return True


cdef void partition_forget_bytes(fetch_waiter_t *waiter) noexcept nogil:
    cdef partition_t *p = waiter.partition
    if p == NULL:
        return
    mutex_lock(&p.lock)
    chain_remove(p.fetch_waiters, waiter, waiter.next, waiter.previous)
    waiter.partition = NULL
    mutex_unlock(&p.lock)
    partition_unref(p)
