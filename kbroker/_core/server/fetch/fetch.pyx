"""Fetch (key 1), versions 0 to 17. The contract is in fetch.pxd.

v1  throttle time
v2  magic 1
v3  max_bytes of the whole response (KIP-74)
v4  isolation level, last stable offset, aborted transactions (KIP-98)
v5  log start offset (KIP-107)
v7  sessions (KIP-227)
v9  current leader epoch (KIP-320)
v11 rack, preferred read replica (KIP-392)
v12 flexible, last fetched epoch, diverging epoch (KIP-595)
v13 topics by id (KIP-516)
v15 replica id in a tagged field (KIP-903)
v16 leader and its endpoint on errors (KIP-951)
v17 replica directory id (KIP-858)

Followers fetch too: they read up to the log end, and their fetches move the high watermark (log/replicas.pxd).

A look at a fetch (look.pyx) finds what can be sent of every partition without copying a byte. The fetch is answered
when the look finds enough bytes, an error, or no reason to wait; otherwise it is parked.

Who frees what. A fetch_t may have mail under way once it has been parked, so only its processor's thread frees the
struct. A handler gives the struct back with the slot (`slot_t.fetch`), but may free what it owns (`release`).
"""

from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

from kbroker._core.base.clock cimport monotonic_ns
from kbroker._core.base.mailbox cimport MAIL_FETCH
from kbroker._core.base.sync cimport atomic_load_i32, atomic_store_i64, mutex_lock, mutex_trylock, mutex_unlock
from kbroker._core.base.throttle cimport throttle_record
from kbroker._core.base.timer_wheel cimport wheel_add, wheel_remove
from kbroker._core.log.partition cimport (
    NEEDS_HANDLER, ROLE_LEADER, fetch_waiter_t, partition_await_bytes, partition_forget_bytes, partition_ref,
    partition_unref,
)
from kbroker._core.server.connection cimport (
    SLOT_CLOSE, SLOT_PARKED, SLOT_READY, TIMER_FETCH, conn_close, conn_t, parked_t, request_t, slot_begin_response,
    slot_finish, slot_new, slot_settle, slot_t,
)
from kbroker._core.server.fetch.entries cimport open_session, refuse_all
from kbroker._core.server.fetch.look cimport drop_read, look
from kbroker._core.server.fetch.request cimport parse_request
from kbroker._core.server.fetch.response cimport write_response
from kbroker._core.server.fetch.sessions cimport (
    SESSION_PARTITIONS, FetchSessions, cached_partition_t, fetch_session_t, may_be_cached, next_epoch, session_add,
    session_list, session_move_last, session_new, session_touch, session_unref, sessions_abandon,
)
from kbroker._core.server.peer cimport connection_of
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.apis cimport FETCH_BATCHES_FROM, FETCH_ZSTD_FROM, READ_COMMITTED, READ_UNCOMMITTED
from kbroker._core.wire.cursor cimport reader_t
from kbroker._core.wire.error_codes cimport (
    UNKNOWN_SERVER_ERROR, UNSUPPORTED_VERSION, KAFKA_STORAGE_ERROR, INVALID_FETCH_SESSION_EPOCH,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kbroker._core.wire.layout cimport CODEC_ZSTD

import logging

logger = logging.getLogger("kbroker.server")

cdef enum:
    FEW_ENTRIES = 16             # entries; a parked fetch with room for so few is not shrunk

# --- memory -------------------------------------------------------------------------------------------

cdef void drop_entries(fetch_t *f) noexcept nogil:
    cdef int32_t i
    for i in range(f.entry_count):
        drop_read(&f.entries[i])
        if f.entries[i].partition != NULL:
            partition_unref(f.entries[i].partition)
    f.entry_count = 0

cdef void release(fetch_t *f) noexcept nogil:
    """Free all that the fetch owns, from any thread. The fetch must not be linked to partitions."""
    drop_entries(f)
    free(f.entries)
    f.entries = NULL
    if f.waiters != NULL:
        free(f.waiters)
        f.waiters = NULL
    if f.names != NULL:
        free(f.names)
        f.names = NULL
    if f.session != NULL:
        session_unref(f.session)
        f.session = NULL

cdef void fetch_free(fetch_t *f) noexcept nogil:
    """Free a fetch that is not parked any more. If its mail is under way, the struct stays until that arrives."""
    release(f)
    if atomic_load_i32(&f.parked.mail.posted):
        f.dead = True
    else:
        free(f)

# --- the answer ---------------------------------------------------------------------------------------

cdef inline int64_t told_high_watermark(const fetch_entry_t *e) noexcept nogil:
    """Return the high watermark that the client has from this answer; -1: none.

    After an error there is none, so that the partition is named again when the error is gone. Nor is there one after a
    diverging epoch: a follower takes none before its log is cut.
    """
    return -1 if e.diverging_epoch >= 0 else e.read.high_watermark

cdef inline bint note_change(fetch_entry_t *e, cached_partition_t *cached) noexcept nogil:
    """Return whether an incremental response names this partition; note in the session what the client knows then."""
    cdef int64_t high_watermark = told_high_watermark(e)
    cdef bint changed = e.read.segment != NULL or e.diverging_epoch >= 0 or e.preferred >= 0
    if cached.high_watermark != high_watermark:
        cached.high_watermark = high_watermark
        changed = True
    if cached.log_start_offset != e.read.log_start_offset:
        cached.log_start_offset = e.read.log_start_offset
        changed = True
    return changed or e.error != 0

cdef inline void refuse_old_client(const fetch_t *f, fetch_entry_t *e) noexcept nogil:
    """Set the error when the topic's settings forbid this version; as in Kafka, it replaces other errors too."""
    if f.version < FETCH_ZSTD_FROM and e.partition.options.compression == CODEC_ZSTD:
        e.error = UNSUPPORTED_COMPRESSION_TYPE
    elif f.version < FETCH_BATCHES_FROM and not e.partition.options.downconversion:
        e.error = UNSUPPORTED_VERSION

cdef int32_t link_entries(fetch_t *f) noexcept nogil:
    """Link the entries that go into the response by `next` and return the first one, -1 without any.

    Entries with an unknown topic id come after the known ones, unknown partitions last. The session's lock is held if
    there is a session.
    """
    cdef int32_t first = -1
    cdef int32_t last = -1
    cdef int32_t i
    cdef int pass_
    cdef fetch_entry_t *e
    for pass_ in range(KNOWN, UNKNOWN_PARTITION + 1):
        for i in range(f.entry_count):
            e = &f.entries[i]
            if e.unknown != pass_ and not (pass_ == KNOWN and e.unknown == ELSEWHERE):
                continue
            if e.partition != NULL and e.error != KAFKA_STORAGE_ERROR:
                refuse_old_client(f, e)
            if e.error:
                drop_read(e)
                e.read.high_watermark = -1
                e.read.last_stable_offset = -1
                e.read.log_start_offset = -1
            if f.context == CONTEXT_INCREMENTAL:
                if not note_change(e, &f.session.cached[e.cached]):
                    continue
                if e.read.segment != NULL:
                    session_move_last(f.session, e.cached)
            e.next = -1
            if last >= 0:
                f.entries[last].next = i
            else:
                first = i
            last = i
    return first

cdef int32_t make_session(fetch_t *f, int32_t first, int64_t now_ms) noexcept nogil:
    """Make a session with the partitions of a full fetch. Return its id, 0 when it is too large or there is no room."""
    cdef fetch_session_t *session
    cdef cached_partition_t *cached
    cdef fetch_entry_t *e
    cdef int32_t place
    cdef int32_t session_id
    if f.cache.slots <= 0 or f.entry_count > SESSION_PARTITIONS:
        return 0
    session = session_new(f.replica_id >= 0, f.version >= 13)
    if session == NULL:
        return 0
    while first >= 0:
        e = &f.entries[first]
        first = e.next
        place = -1
        if may_be_cached(e.topic_size):
            place = session_add(session, e.topic, e.topic_size, e.topic_id, e.partition_id)
        if place < 0:
            session_unref(session)
            return 0
        cached = &session.cached[place]
        if cached.partition == NULL and e.partition != NULL:
            partition_ref(e.partition)
            cached.partition = e.partition
        cached.id_known = e.unknown != UNKNOWN_ID
        cached.max_bytes = e.max_bytes
        cached.offset = e.offset
        cached.last_fetched_epoch = e.last_fetched_epoch
        cached.follower_start = e.follower_start
        cached.leader_epoch = e.current_leader_epoch
        cached.high_watermark = told_high_watermark(e)
        cached.log_start_offset = e.read.log_start_offset
    session_id = session_list(f.cache, session, f.owner, f.host, now_ms)
    if session_id == 0:
        session_unref(session)
    return session_id

cdef void note_throttled(const fetch_t *f, int32_t i) noexcept nogil:
    """Count what a follower gets of the partitions that are throttled, in sync or not (KIP-73)."""
    cdef int64_t size = 0
    while i >= 0:
        if f.entries[i].read.segment != NULL and f.entries[i].partition.options.leader_throttled:
            size += f.entries[i].read.size
        i = f.entries[i].next
    if size:
        throttle_record(f.cache.throttle, size, monotonic_ns() // 1000000)

cdef void compose(Serving serving, fetch_t *f, slot_t *slot, int64_t now_ms, bint may_convert) noexcept nogil:
    """Write the response and release the session's lock, which is held if there is a session.

    Without `may_convert`, a response whose bytes have to be converted is not written: only `f.first` is set.
    """
    cdef int32_t session_id = 0
    cdef int16_t error = 0
    cdef int32_t first = -1
    if f.context == CONTEXT_ERROR:
        error = f.session_error
    elif f.context == CONTEXT_INCREMENTAL:
        session_id = f.session.id
        if f.session.epoch != next_epoch(f.session_epoch) or f.session.shape != f.session_shape:
            error = INVALID_FETCH_SESSION_EPOCH      # another request has used the session meanwhile
        else:
            first = link_entries(f)
    else:
        first = link_entries(f)
        if f.context == CONTEXT_FULL:
            session_id = make_session(f, first, now_ms)
        elif f.context == CONTEXT_REFUSED:
            error = UNKNOWN_SERVER_ERROR
            session_id = f.session_id
    if not may_convert and f.version < FETCH_BATCHES_FROM and has_bytes(f, first):
        f.first = first
        return
    if f.replica_id >= 0 and f.cache.throttle != NULL:
        note_throttled(f, first)
    write_response(serving, f, slot, first, error, session_id)
    if f.session != NULL:
        mutex_unlock(&f.session.lock)

cdef inline bint has_bytes(fetch_t *f, int32_t i) noexcept nogil:
    while i >= 0 and f.entries[i].read.segment == NULL:
        i = f.entries[i].next
    return i >= 0

cdef int answer(Serving serving, fetch_t *f, slot_t *slot) noexcept nogil:
    """Answer a fetch and free it, on the processor's thread. Return 0, or TO_HANDLER when bytes have to be converted.

    Releases the session's lock, which is held if there is a session.
    """
    cdef bint converts
    compose(serving, f, slot, serving.p.now_ns // 1000000, False)
    converts = f.first >= 0
    if converts and own_names(f):
        return give_away(f, slot)
    fetch_free(f)
    if converts:
        slot_settle(slot, SLOT_CLOSE)
    else:
        slot_finish(slot)
    return 0

# --- parking ------------------------------------------------------------------------------------------

cdef void unlink(fetch_t *f) noexcept nogil:
    cdef int32_t i
    for i in range(f.waiter_count):
        partition_forget_bytes(&f.waiters[i])
    f.waiter_count = 0

cdef bint own_names(fetch_t *f) noexcept nogil:
    """Make the entries' topic names live as long as the fetch does.

    The names point into the frame or the session. Each is replaced by the name in its partition, or copied to f.names
    once for the entries that share it. False: memory is out.
    """
    cdef size_t size = 0
    cdef int32_t i
    cdef fetch_entry_t *e
    cdef const uint8_t *name = NULL
    cdef uint8_t *at
    if f.version >= 13 or f.names != NULL:
        return True
    for i in range(f.entry_count):
        e = &f.entries[i]
        if e.partition != NULL:
            e.topic = <const uint8_t *>e.partition.topic
        elif e.topic != name:
            name = e.topic
            size += e.topic_size
    if size == 0:
        return True
    at = <uint8_t *>malloc(size)
    if at == NULL:
        return False
    f.names = at
    name = NULL
    for i in range(f.entry_count):
        e = &f.entries[i]
        if e.partition != NULL:
            continue
        if e.topic != name:
            name = e.topic
            memcpy(at, name, e.topic_size)
            at += e.topic_size
        e.topic = at - e.topic_size
    return True

cdef void shrink_entries(fetch_t *f) noexcept nogil:
    """Give back, before the fetch waits, memory that a request has taken which named one partition again and again."""
    cdef fetch_entry_t *fitting
    if f.entry_count == 0 or f.entry_capacity <= FEW_ENTRIES or f.entry_capacity // 4 <= f.entry_count:
        return
    fitting = <fetch_entry_t *>realloc(f.entries, <size_t>f.entry_count * sizeof(fetch_entry_t))
    if fitting != NULL:
        f.entries = fitting
        f.entry_capacity = f.entry_count

cdef bint wait_for_bytes(fetch_t *f) noexcept nogil:
    """Link the fetch to its partitions, so that it is told of new bytes.

    Returns False, with the fetch linked to none, when a partition has got more bytes already: the caller looks again.
    """
    cdef int32_t i
    cdef fetch_entry_t *e
    cdef fetch_waiter_t *waiter
    atomic_store_i64(&f.bytes_missing, min(f.min_bytes, min(f.max_bytes, f.cache.fetch_max_bytes)) - f.bytes_ready)
    for i in range(f.entry_count):
        e = &f.entries[i]
        drop_read(e)
        if e.unknown or e.throttled:
            continue
        waiter = &f.waiters[f.waiter_count]
        waiter.next = NULL
        waiter.previous = NULL
        waiter.partition = NULL
        waiter.bytes_missing = &f.bytes_missing
        waiter.mail = &f.parked.mail
        if not partition_await_bytes(e.partition, waiter, e.visible_end, f.until):
            unlink(f)
            return False
        f.waiter_count += 1
    return True

cdef int look_and_wait(fetch_t *f, bint may_block) noexcept nogil:
    """Look at what the fetch's partitions have; if that is too little, link the fetch to them, so that it waits.

    Returns 0: answer now; 1: the fetch waits; NEEDS_HANDLER: the look would block, so another thread has to do it.
    """
    while True:
        if look(f, may_block) == NEEDS_HANDLER:
            return NEEDS_HANDLER
        if f.answer_now or f.timed_out:
            return 0
        if f.waiters == NULL:
            f.waiters = <fetch_waiter_t *>malloc(<size_t>f.entry_count * sizeof(fetch_waiter_t))
            if f.waiters == NULL or not own_names(f):
                return 0
            shrink_entries(f)
        if wait_for_bytes(f):
            return 1

# --- beginning ----------------------------------------------------------------------------------------

cdef int begin(Serving serving, request_t *request, int64_t owner, int64_t host, int64_t now_ms, bint may_block,
               fetch_t **begun) noexcept nogil:
    """Parse a request into a new fetch; its session, if it has one, is open and locked.

    Return 0; -1: the request does not parse or memory is out; NEEDS_HANDLER, without `may_block` only: its session is
    in use or too large for a processor.
    """
    cdef reader_t forgotten
    cdef int code = 0
    cdef fetch_t *f = <fetch_t *>calloc(1, sizeof(fetch_t))
    if f == NULL:
        return -1
    f.parked.mail.kind = MAIL_FETCH
    f.parked.mail.box = &serving.mailbox
    f.parked.timer.kind = TIMER_FETCH
    f.first = -1
    f.owner = owner
    f.host = host
    f.version = request.api_version
    f.cache = serving.fetch_sessions.cache
    if not parse_request(f, request, &forgotten):
        code = -1
    elif f.isolation != READ_UNCOMMITTED and f.isolation != READ_COMMITTED:
        refuse_all(f)
    else:
        code = open_session(f, serving.partition_table, forgotten, now_ms, may_block)
    if code:
        fetch_free(f)
        return code
    f.parked.timer.due_ms = now_ms + f.max_wait_ms
    begun[0] = f
    return 0

cdef inline void go_on_with_session(fetch_t *f, int64_t now_ms) noexcept nogil:
    """Move the session (its lock is held) to the next epoch: the client may send its next request from here on."""
    f.session.epoch = next_epoch(f.session_epoch)
    session_touch(f.cache, f.session, f.owner, now_ms)

cdef void give_up(fetch_t *f) noexcept nogil:
    """Drop a fetch before anything was answered, on the processor's thread."""
    unlink(f)
    if f.session != NULL:
        mutex_unlock(&f.session.lock)
    fetch_free(f)

cdef inline bint may_be_redirected(const fetch_t *f) noexcept nogil:
    """Return whether a consumer has named another rack than this broker's, and there are others to fetch from."""
    return (f.cache.redirects and f.rack_size and f.replica_id < 0
            and not (f.rack_size == f.cache.rack_size and memcmp(f.rack, f.cache.rack, <size_t>f.rack_size) == 0))

cdef void redirect(Serving serving, fetch_t *f, conn_t *conn) noexcept with gil:
    """Find the replicas that a consumer is to fetch from instead of this broker (KIP-392)."""
    cdef fetch_entry_t *e
    cdef int32_t i
    try:
        connection = <object>f.peer if f.peer != NULL else connection_of(serving, conn)
        rack = f.rack[:f.rack_size].decode("utf-8", "replace")
        for i in range(f.entry_count):
            e = &f.entries[i]
            if e.partition != NULL and atomic_load_i32(&e.partition.role) == ROLE_LEADER:
                topic = e.partition.topic[:e.partition.topic_size].decode()
                e.preferred = serving.fetch_sessions.read_replica_of(
                    connection, topic, e.partition_id, rack, e.offset
                )
    except Exception:
        logger.exception("no replica can be chosen for a consumer")

cdef int fetch(Serving serving, conn_t *conn, request_t *request) noexcept nogil:
    cdef int64_t now_ms = serving.p.now_ns // 1000000
    cdef fetch_t *f = NULL
    cdef slot_t *slot
    cdef int outcome
    if request.frame_size > LARGE_REQUEST:
        return NEEDS_HANDLER
    outcome = begin(serving, request, conn.id, conn.token, now_ms, False, &f)
    if outcome:
        return outcome
    if may_be_redirected(f):
        redirect(serving, f, conn)
    outcome = look_and_wait(f, False) if f.entry_count <= SERVED_AT_ONCE else NEEDS_HANDLER
    if outcome == NEEDS_HANDLER:
        give_up(f)
        return NEEDS_HANDLER
    slot = slot_new(conn, request)
    if slot == NULL:
        give_up(f)
        return -1
    slot_begin_response(slot, request)
    note_sessions(f, conn)
    if f.session != NULL:
        go_on_with_session(f, now_ms)
    if outcome == 0:
        return answer(serving, f, slot)
    if f.session != NULL:
        mutex_unlock(&f.session.lock)
    f.parked.slot = slot
    conn.fetch = &f.parked
    wheel_add(serving.p.wheel, &f.parked.timer, f.parked.timer.due_ms)
    return 0

cdef inline void note_sessions(fetch_t *f, conn_t *conn) noexcept nogil:
    if f.context == CONTEXT_FULL or f.context == CONTEXT_INCREMENTAL:
        conn.has_sessions = True

# --- going on -----------------------------------------------------------------------------------------

cdef int fetch_resume(Serving serving, parked_t *parked, bint timed_out) noexcept nogil:
    cdef fetch_t *f = <fetch_t *>parked
    cdef slot_t *slot = parked.slot
    cdef int outcome = NEEDS_HANDLER
    if f.dead:
        free(f)
        return 0
    if f.away:
        f.woken = True
        return 0
    wheel_remove(serving.p.wheel, &parked.timer)
    f.timed_out |= timed_out
    if f.entry_count <= SERVED_AT_ONCE:
        unlink(f)
        outcome = look_and_wait(f, False)
        if outcome == 1:
            wheel_add(serving.p.wheel, &parked.timer, parked.timer.due_ms)
            return 0
    slot.conn.fetch = NULL
    if outcome == NEEDS_HANDLER or (f.session != NULL and mutex_trylock(&f.session.lock) != 0):
        return give_away(f, slot)
    return answer(serving, f, slot)

cdef void fetch_abandon(Serving serving, parked_t *parked) noexcept nogil:
    wheel_remove(serving.p.wheel, &parked.timer)
    unlink(<fetch_t *>parked)
    fetch_free(<fetch_t *>parked)

# --- on other threads ---------------------------------------------------------------------------------

cdef int give_away(fetch_t *f, slot_t *slot) noexcept nogil:
    f.away = True
    f.woken = False
    slot.fetch = &f.parked
    return TO_HANDLER

cdef int fetch_came(Serving serving, slot_t *slot) noexcept nogil:
    cdef parked_t *parked = slot.fetch
    cdef fetch_t *f = <fetch_t *>parked
    cdef conn_t *conn = slot.conn
    slot.fetch = NULL
    f.away = False
    if conn != NULL:
        note_sessions(f, conn)
    elif f.context == CONTEXT_FULL or f.context == CONTEXT_INCREMENTAL:
        sessions_abandon(f.cache, f.owner)
    if conn == NULL or slot.outcome != SLOT_PARKED:
        fetch_abandon(serving, parked)
        return 1
    conn.fetch = parked
    if atomic_load_i32(&serving.p.stopping):
        conn_close(conn, NULL)       # it was parked too late for begin_stop to find it
    elif f.woken:
        return fetch_resume(serving, parked, False)
    else:
        wheel_add(serving.p.wheel, &parked.timer, parked.timer.due_ms)
    return 0

cdef int32_t work(Serving serving, slot_t *slot, fetch_t *f, int64_t now_ms) noexcept nogil:
    """Look at what the fetch's partitions have, and answer if it is enough.

    Return what becomes of the slot (SLOT_*).
    """
    if look_and_wait(f, True) == 1:
        return SLOT_PARKED
    if f.session != NULL:
        mutex_lock(&f.session.lock)
    compose(serving, f, slot, now_ms, True)
    release(f)
    return SLOT_READY

cdef int32_t fetch_elsewhere(Serving serving, slot_t *slot, request_t *request, PyObject *peer, int64_t owner,
                             int64_t host) noexcept nogil:
    cdef int64_t now_ms = monotonic_ns() // 1000000
    cdef fetch_t *f = NULL
    cdef int32_t outcome = SLOT_CLOSE
    if begin(serving, request, owner, host, now_ms, True, &f) != 0:
        return SLOT_CLOSE
    slot.fetch = &f.parked
    f.parked.slot = slot
    f.away = True
    f.peer = peer
    if may_be_redirected(f):
        redirect(serving, f, NULL)
    slot_begin_response(slot, request)
    if f.session != NULL:
        go_on_with_session(f, now_ms)
        mutex_unlock(&f.session.lock)
    if f.session == NULL or own_names(f):
        outcome = work(serving, slot, f, now_ms)
    f.peer = NULL
    return outcome

cdef int32_t fetch_go_on(Serving serving, slot_t *slot, PyObject *peer) noexcept nogil:
    cdef fetch_t *f = <fetch_t *>slot.fetch
    cdef int32_t outcome = SLOT_READY
    f.peer = peer
    if f.first >= 0:
        write_response(serving, f, slot, f.first, 0, 0)
        release(f)
    else:
        unlink(f)
        outcome = work(serving, slot, f, monotonic_ns() // 1000000)
    f.peer = NULL
    return outcome
