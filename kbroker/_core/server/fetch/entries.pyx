"""Finds the partitions of a fetch; see entries.pxd."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from kbroker._core.base.seeded_hash cimport seeded_hash, seeded_hash_of_number
from kbroker._core.base.sync cimport atomic_load_i32, mutex_lock, mutex_trylock, mutex_unlock
from kbroker._core.log.partition cimport NEEDS_HANDLER, PARTITION_DELETED, partition_ref, partition_unref
from kbroker._core.log.partition_table cimport MOST_TOPIC_NAME, PartitionTable
from kbroker._core.server.fetch.fetch cimport *
from kbroker._core.server.fetch.request cimport add_entry, next_forgotten
from kbroker._core.server.fetch.sessions cimport (
    SESSION_PARTITIONS, cached_partition_t, fetch_session_t, may_be_cached, session_add, session_drop, session_find,
    session_place, session_remove, session_resize, session_unref,
)
from kbroker._core.wire.cursor cimport read_array_count, read_i32, reader_t, skip_tags
from kbroker._core.wire.error_codes cimport (
    UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FETCH_SESSION_ID_NOT_FOUND,
    INVALID_FETCH_SESSION_EPOCH, UNKNOWN_TOPIC_ID, FETCH_SESSION_TOPIC_ID_ERROR,
)

cdef enum:
    COMPARED_IN_PAIRS = 8        # up to so many entries are compared with each other; more need a hash table

    # What update_session returns.
    UPDATED = 0
    TOO_LARGE = 1
    MEMORY_OUT = 2

# --- partitions ---------------------------------------------------------------------------------------


cdef void resolve(fetch_t *f, PartitionTable partition_table, fetch_entry_t *e) noexcept nogil:
    """Find the partition of an entry; if it is not found, set the error for an unknown topic id or partition."""
    if f.version >= 13:
        e.partition = partition_table.find_by_id(e.topic_id, e.partition_id)
    else:
        e.partition = partition_table.find(e.topic, e.topic_size, e.partition_id)
    if e.partition != NULL:
        return
    if f.version >= 13 and not partition_table.knows_topic_id(e.topic_id):
        e.error = UNKNOWN_TOPIC_ID
        e.unknown = UNKNOWN_ID
    elif (partition_table.is_elsewhere_by_id(e.topic_id, e.partition_id) if f.version >= 13
            else partition_table.is_elsewhere(e.topic, e.topic_size, e.partition_id)):
        e.error = NOT_LEADER_OR_FOLLOWER
        e.unknown = ELSEWHERE
    else:
        e.error = UNKNOWN_TOPIC_OR_PARTITION
        e.unknown = UNKNOWN_PARTITION

cdef inline bint is_same(const fetch_t *f, const fetch_entry_t *a, const fetch_entry_t *b) noexcept nogil:
    """Return whether two entries are about the same partition.

    Names longer than any topic's are not compared, because a request could make that slow: such entries are the same
    only if they share one name in the request.
    """
    if a.partition != b.partition or a.partition_id != b.partition_id:
        return False
    if a.partition != NULL:
        return True
    if f.version >= 13:
        return memcmp(a.topic_id, b.topic_id, 16) == 0
    if a.topic == b.topic:
        return True
    return a.topic_size == b.topic_size <= MOST_TOPIC_NAME and memcmp(a.topic, b.topic, a.topic_size) == 0

cdef inline uint64_t hash_of(const fetch_t *f, const fetch_entry_t *e) noexcept nogil:
    if e.partition != NULL:
        return seeded_hash_of_number(<uint64_t><uintptr_t>e.partition)
    if f.version >= 13:
        return seeded_hash(e.topic_id, 16, <uint64_t>e.partition_id)
    if e.topic_size > MOST_TOPIC_NAME:
        return seeded_hash(<const uint8_t *>&e.topic, sizeof(e.topic), <uint64_t>e.partition_id)
    return seeded_hash(e.topic, e.topic_size, <uint64_t>e.partition_id)

cdef void take_over(fetch_entry_t *first, fetch_entry_t *again) noexcept nogil:
    """Merge an entry that names a partition for the second time into the first entry.

    The first one keeps its place and gets the newer values.
    """
    first.current_leader_epoch = again.current_leader_epoch
    first.offset = again.offset
    first.last_fetched_epoch = again.last_fetched_epoch
    first.follower_start = again.follower_start
    first.max_bytes = again.max_bytes
    if again.partition != NULL:
        partition_unref(again.partition)

cdef bint merge_repeated(fetch_t *f) noexcept nogil:
    """Merge entries that name the same partition. False: memory is out."""
    cdef int32_t count = f.entry_count
    cdef int32_t size = 4
    cdef int32_t kept = 0
    cdef int32_t at
    cdef int32_t i
    cdef int32_t *table = NULL
    cdef fetch_entry_t *e
    if count > COMPARED_IN_PAIRS:
        while size < 2 * count:
            size *= 2
        table = <int32_t *>malloc(<size_t>size * sizeof(int32_t))
        if table == NULL:
            return False
        memset(table, 0xff, <size_t>size * sizeof(int32_t))
    for i in range(count):
        e = &f.entries[i]
        if table == NULL:
            at = 0
            while at < kept and not is_same(f, &f.entries[at], e):
                at += 1
        else:
            at = <int32_t>(hash_of(f, e) & <uint64_t>(size - 1))
            while table[at] >= 0 and not is_same(f, &f.entries[table[at]], e):
                at = (at + 1) & (size - 1)
            if table[at] < 0:
                table[at] = kept
            at = table[at]
        if at < kept:
            take_over(&f.entries[at], e)
        else:
            if kept < i:
                f.entries[kept] = e[0]
            kept += 1
    f.entry_count = kept
    free(table)
    return True

# --- sessions -----------------------------------------------------------------------------------------

cdef int update_session(fetch_t *f, fetch_session_t *session, reader_t forgotten) noexcept nogil:
    """Add or change the partitions that the request names, and remove those it forgets (session's lock held).

    The same request may come here twice, when a handler has to go on with the fetch; the outcome is the same.
    """
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
        if not may_be_cached(e.topic_size) or session.count > SESSION_PARTITIONS:
            return TOO_LARGE
        place = session_add(session, e.topic, e.topic_size, e.topic_id, e.partition_id)
        if place < 0:
            return MEMORY_OUT
        cached = &session.cached[place]
        cached.max_bytes = e.max_bytes
        cached.offset = e.offset
        cached.leader_epoch = e.current_leader_epoch
        cached.last_fetched_epoch = e.last_fetched_epoch
        cached.follower_start = e.follower_start
    topic_count = read_array_count(&forgotten, flexible, 3)
    while topic_count > 0:
        topic_count -= 1
        if not next_forgotten(&forgotten, flexible, by_id, &topic, &topic_size, &partition_count):
            return UPDATED       # not reached: parse_request has checked it
        while partition_count > 0:
            partition_count -= 1
            place = session_place(session, topic, <int16_t>topic_size, topic, read_i32(&forgotten))
            if place >= 0:
                session_drop(session, place)
        if flexible:
            skip_tags(&forgotten)
    return UPDATED if session.count <= SESSION_PARTITIONS else TOO_LARGE

cdef bint take_entries(fetch_t *f, fetch_session_t *session, PartitionTable partition_table) noexcept nogil:
    """Replace the entries by the session's partitions, in its order (session's lock held). False: memory is out."""
    cdef int32_t place = session.first
    cdef cached_partition_t *cached
    cdef fetch_entry_t *e
    f.entry_count = 0            # these entries hold no references yet
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
        e.last_fetched_epoch = cached.last_fetched_epoch
        e.follower_start = cached.follower_start
        e.max_bytes = cached.max_bytes
        e.cached = place
        if cached.partition != NULL and atomic_load_i32(&cached.partition.state) == PARTITION_DELETED:
            partition_unref(cached.partition)
            cached.partition = NULL
        if cached.partition == NULL:
            resolve(f, partition_table, e)
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

cdef int open_session(fetch_t *f, PartitionTable partition_table, reader_t forgotten, int64_t now_ms,
                      bint may_block) noexcept nogil:
    cdef fetch_session_t *session
    cdef int32_t i
    cdef int updated
    if f.session_epoch == INITIAL_EPOCH or f.session_epoch == FINAL_EPOCH:
        if f.session_id != 0:
            session_remove(f.cache, f.session_id)
        f.context = CONTEXT_FULL if f.session_epoch == INITIAL_EPOCH else CONTEXT_SESSIONLESS
    else:
        session = session_find(f.cache, f.session_id)
        if session == NULL:
            return session_refused(f, FETCH_SESSION_ID_NOT_FOUND)
        if may_block:
            mutex_lock(&session.lock)
        elif mutex_trylock(&session.lock) != 0:
            session_unref(session)
            return NEEDS_HANDLER
        if session.epoch != f.session_epoch:
            f.session_error = INVALID_FETCH_SESSION_EPOCH
        elif session.by_id != (f.version >= 13):
            f.session_error = FETCH_SESSION_TOPIC_ID_ERROR
        if f.session_error:
            mutex_unlock(&session.lock)
            session_unref(session)
            return session_refused(f, f.session_error)
        if session.count > SERVED_AT_ONCE and not may_block:
            mutex_unlock(&session.lock)
            session_unref(session)
            return NEEDS_HANDLER
        updated = update_session(f, session, forgotten)
        if updated == UPDATED and session.count != session.listed_size and not session_resize(f.cache, session, now_ms):
            updated = TOO_LARGE
        if updated == UPDATED and session.count and not take_entries(f, session, partition_table):
            updated = MEMORY_OUT
        if updated == UPDATED and session.count:
            f.context = CONTEXT_INCREMENTAL
            f.session = session
            return 0
        # Too large: answer as if the session had been evicted. No partitions left: the session ends with this answer.
        mutex_unlock(&session.lock)
        if updated != MEMORY_OUT:
            session_remove(f.cache, session.id)
        session_unref(session)
        if updated == MEMORY_OUT:
            return -1
        if updated == TOO_LARGE:
            return session_refused(f, FETCH_SESSION_ID_NOT_FOUND)
        f.context = CONTEXT_SESSIONLESS
    for i in range(f.entry_count):
        resolve(f, partition_table, &f.entries[i])
    if f.entry_count > 1 and not merge_repeated(f):
        return -1
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
