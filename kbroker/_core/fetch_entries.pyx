"""Which partitions a fetch is about; see fetch_entries.pxd."""

from libc.stdint cimport int16_t, int32_t, uint8_t
from libc.string cimport memcpy

from kbroker._core.cursor cimport read_array_count, read_i32, reader_t, skip_tags
from kbroker._core.fetch cimport *
from kbroker._core.fetch_request cimport add_entry, next_forgotten
from kbroker._core.fetch_sessions cimport (
    cached_partition_t, fetch_session_t, session_add, session_drop, session_find, session_place, session_remove, session_unref,
)
from kbroker._core.partition cimport PARTITION_DELETED, partition_ref, partition_unref
from kbroker._core.registry cimport Registry
from kbroker._core.sync cimport atomic_load_i32, mutex_lock, mutex_unlock


cdef void resolve(fetch_t *f, Registry registry, fetch_entry_t *e) noexcept nogil:
    """Find the partition, or say what is not known: the topic id, else the partition."""
    if f.version >= 13:
        e.partition = registry.find_by_id(e.topic_id, e.partition_id)
    else:
        e.partition = registry.find(e.topic, e.topic_size, e.partition_id)
    if e.partition != NULL:
        return
    if f.version >= 13 and not registry.knows_topic_id(e.topic_id):
        e.error = UNKNOWN_TOPIC_ID
        e.unknown = UNKNOWN_ID
    else:
        e.error = UNKNOWN_TOPIC_OR_PARTITION
        e.unknown = UNKNOWN_PARTITION

cdef bint update_session(fetch_t *f, fetch_session_t *session, reader_t forgotten) noexcept nogil:
    """Session lock held: what the request names is added or changed, what it forgets goes. The same request may come
    here twice (a fetch that had to be prepared), with the same outcome. False when memory is out."""
    cdef bint flexible = f.version >= 12
    cdef bint by_id = session.by_id
    cdef const uint8_t *topic = NULL
    cdef int32_t topic_size = 0
    cdef int32_t topic_count
    cdef int32_t partition_count = 0
    cdef int32_t place
    cdef int32_t i
    cdef fetch_entry_t *e
    cdef cached_partition_t *cached
    for i in range(f.entry_count):
        e = &f.entries[i]
        place = session_add(session, e.topic, e.topic_size, e.topic_id, e.partition_id)
        if place < 0:
            return False
        cached = &session.cached[place]
        cached.max_bytes = e.max_bytes
        cached.offset = e.offset
        cached.leader_epoch = e.current_leader_epoch
    topic_count = read_array_count(&forgotten, flexible, 3)
    while topic_count > 0:
        topic_count -= 1
        if not next_forgotten(&forgotten, flexible, by_id, &topic, &topic_size, &partition_count):
            return True          # not reached: parse has walked over it
        while partition_count > 0:
            partition_count -= 1
            place = session_place(session, topic, <int16_t>topic_size, topic, read_i32(&forgotten))
            if place >= 0:
                session_drop(session, place)
        if flexible:
            skip_tags(&forgotten)
    return True

cdef bint take_entries(fetch_t *f, fetch_session_t *session, Registry registry) noexcept nogil:
    """Session lock held: the session's partitions become the fetch's, in the session's order. False: out of memory."""
    cdef int32_t place = session.first
    cdef cached_partition_t *cached
    cdef fetch_entry_t *e
    f.entry_count = 0            # they hold nothing yet
    while place >= 0:
        cached = &session.cached[place]
        e = add_entry(f)
        if e == NULL:
            return False
        e.topic = cached.topic
        e.topic_size = cached.topic_size
        memcpy(e.topic_id, cached.topic_id, 16)
        e.partition_id = cached.partition_id
        e.current_leader_epoch = cached.leader_epoch
        e.offset = cached.offset
        e.max_bytes = cached.max_bytes
        e.cached = place
        if cached.partition != NULL and atomic_load_i32(&cached.partition.state) == PARTITION_DELETED:
            partition_unref(cached.partition)
            cached.partition = NULL
        if cached.partition == NULL:
            resolve(f, registry, e)
            if e.unknown != UNKNOWN_ID:
                cached.id_known = True
            elif cached.id_known:
                e.error = UNKNOWN_TOPIC_OR_PARTITION
                e.unknown = UNKNOWN_PARTITION
            if e.partition != NULL:
                partition_ref(e.partition)
                cached.partition = e.partition
        else:
            e.partition = cached.partition
            partition_ref(e.partition)
        place = cached.next
    f.session_shape = session.shape
    return True

cdef int open_session(fetch_t *f, Registry registry, reader_t forgotten) noexcept nogil:
    cdef fetch_session_t *session
    cdef int32_t i
    if f.session_epoch == INITIAL_EPOCH or f.session_epoch == FINAL_EPOCH:
        if f.session_id != 0:
            session_remove(f.cache, f.session_id)
        f.context = CONTEXT_FULL if f.session_epoch == INITIAL_EPOCH else CONTEXT_SESSIONLESS
    else:
        session = session_find(f.cache, f.session_id)
        if session == NULL:
            return session_refused(f, FETCH_SESSION_ID_NOT_FOUND)
        mutex_lock(&session.lock)
        if session.epoch != f.session_epoch:
            f.session_error = INVALID_FETCH_SESSION_EPOCH
        elif session.by_id != (f.version >= 13):
            f.session_error = FETCH_SESSION_TOPIC_ID_ERROR
        if f.session_error:
            mutex_unlock(&session.lock)
            session_unref(session)
            return session_refused(f, f.session_error)
        if not update_session(f, session, forgotten) or (session.count and not take_entries(f, session, registry)):
            mutex_unlock(&session.lock)
            session_unref(session)
            return -1
        if session.count:
            f.context = CONTEXT_INCREMENTAL
            f.session = session
            return 0
        # Nothing left to ask for: the session ends, and this is the last answer.
        mutex_unlock(&session.lock)
        session_remove(f.cache, session.id)
        session_unref(session)
        f.context = CONTEXT_SESSIONLESS
    for i in range(f.entry_count):
        resolve(f, registry, &f.entries[i])
    return 0

cdef void refuse_all(fetch_t *f) noexcept nogil:
    cdef int32_t i
    f.context = CONTEXT_REFUSED
    if f.version >= 13:
        f.entry_count = 0
    for i in range(f.entry_count):
        f.entries[i].unknown = UNKNOWN_PARTITION
        f.entries[i].error = UNKNOWN_SERVER_ERROR

cdef int session_refused(fetch_t *f, int16_t error) noexcept nogil:
    f.context = CONTEXT_ERROR
    f.session_error = error
    f.entry_count = 0
    return 0
