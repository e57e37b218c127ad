"""Fetch (key 1), versions 0 to 17. The contract is in fetch.pxd.

v1  throttle time    v2  magic 1    v3  max_bytes of the whole response (KIP-74)
v4  isolation level, last stable offset, aborted transactions (KIP-98)      v12 flexible, last fetched epoch (KIP-595)
v5  log start offset (KIP-107)                                              v13 topics by id (KIP-516)
v7  sessions (KIP-227)                                                      v15 replica id in a tagged field (KIP-903)
v9  current leader epoch (KIP-320)                                          v16 leader and its endpoint on errors (KIP-951)
v11 rack, preferred read replica (KIP-392)                                  v17 replica directory id (KIP-858)

Left out: rack and preferred read replica (there is one replica), last fetched epoch (only followers send it).

A look at a fetch reads every partition's place without copying a byte; it is answered when the look finds enough, an
error, or no reason to wait, and parked otherwise.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from kbroker._core.connection cimport (
    SLOT_CLOSE, SLOT_READY, TIMER_FETCH, conn_t, request_t, slot_begin_response, slot_finish, slot_new, slot_settle, slot_t,
)
from kbroker._core.cursor cimport reader_t
from kbroker._core.fetch_entries cimport open_session, refuse_all
from kbroker._core.fetch_request cimport parse_request
from kbroker._core.fetch_response cimport write_response
from kbroker._core.fetch_sessions cimport (
    FetchSessions, cached_partition_t, fetch_session_t, next_epoch, session_add, session_list, session_move_last, session_new,
    session_touch, session_unref,
)
from kbroker._core.handover cimport hand_over_answer
from kbroker._core.mailbox cimport MAIL_FETCH
from kbroker._core.log_position cimport partition_read
from kbroker._core.partition cimport (
    NEEDS_HANDLER, fetch_waiter_t, partition_await_bytes, partition_forget_bytes, partition_ref, partition_unref,
    partition_visible_end, segment_unref,
)
from kbroker._core.processor cimport Processor
from kbroker._core.sync cimport atomic_load_i32, atomic_store_i64, mutex_lock, mutex_unlock
from kbroker._core.timer_wheel cimport wheel_add, wheel_remove

cdef enum:
    # How a look treats a log or segment that is not open.
    LOOK_FRESH = 0               # NEEDS_HANDLER
    LOOK_AGAIN = 1               # of a fetch that was prepared or parked: leave it out
    LOOK_PREPARE = 2             # open it

    FIRST_ZSTD_VERSION = 10      # older clients may not read a topic that is compressed with zstd by its config (KIP-110)
    CODEC_ZSTD = 4

# --- memory -------------------------------------------------------------------------------------------

cdef inline void drop_read(fetch_entry_t *e) noexcept nogil:
    if e.read.segment != NULL:
        segment_unref(e.read.segment)
        e.read.segment = NULL
    free(e.read.aborted)
    e.read.aborted = NULL
    e.read.aborted_count = 0

cdef void drop_entries(fetch_t *f) noexcept nogil:
    cdef int32_t i
    for i in range(f.entry_count):
        drop_read(&f.entries[i])
        if f.entries[i].partition != NULL:
            partition_unref(f.entries[i].partition)
    f.entry_count = 0

cdef void fetch_free(fetch_t *f) noexcept nogil:
    """Not parked any more. The shell stays until its mail has arrived, if that is under way."""
    drop_entries(f)
    free(f.entries)
    f.entries = NULL
    free(f.waiters)
    f.waiters = NULL
    free(f.names)
    f.names = NULL
    if f.session != NULL:
        session_unref(f.session)
        f.session = NULL
    if atomic_load_i32(&f.mail.posted):
        f.dead = True
    else:
        free(f)

# --- the look -----------------------------------------------------------------------------------------

cdef int read_entry(fetch_t *f, fetch_entry_t *e, int64_t left, bint at_least_one, int mode) noexcept nogil:
    cdef int64_t limit = min(<int64_t>e.max_bytes, left)
    cdef int32_t leader_epoch
    cdef int code
    if e.current_leader_epoch >= 0:
        leader_epoch = atomic_load_i32(&e.partition.leader_epoch)
        if e.current_leader_epoch < leader_epoch:
            return FENCED_LEADER_EPOCH
        if e.current_leader_epoch > leader_epoch:
            return UNKNOWN_LEADER_EPOCH
    if f.replica_id >= 0:
        # A follower that is not among the partition's replicas.
        return NOT_LEADER_OR_FOLLOWER if e.current_leader_epoch < 0 else UNKNOWN_LEADER_EPOCH
    e.visible_end = partition_visible_end(e.partition, f.committed)
    code = partition_read(e.partition, e.offset, max(limit, 0), at_least_one, f.committed, mode == LOOK_PREPARE, &e.read)
    if code == 0 and e.read.segment != NULL and limit < 0:
        return UNKNOWN_SERVER_ERROR      # as Kafka's log answers a negative size
    return code

cdef int look(fetch_t *f, int mode) noexcept nogil:
    """Read every partition's place under the limits of KIP-74. 0, or NEEDS_HANDLER under LOOK_FRESH."""
    cdef int64_t left = min(f.max_bytes, f.cache.fetch_max_bytes)
    cdef bint at_least_one = True
    cdef bint interesting = False
    cdef fetch_entry_t *e
    cdef int32_t i
    cdef int code
    f.bytes_ready = 0
    f.answer_now = f.max_wait_ms <= 0
    for i in range(f.entry_count):
        e = &f.entries[i]
        drop_read(e)
        if e.unknown:
            continue
        interesting = True
        code = read_entry(f, e, left, at_least_one, mode)
        if code == NEEDS_HANDLER:
            drop_read(e)
            if mode == LOOK_FRESH:
                return NEEDS_HANDLER
            f.answer_now = True  # the client asks again at once, and that request can be prepared
            code = 0
        e.error = <int16_t>code
        if code != 0:
            drop_read(e)
            f.answer_now = True
        elif e.read.segment != NULL:
            at_least_one = False
            f.bytes_ready += e.read.size
            left -= e.read.size
        left = max(left, 0)      # a negative max_bytes is an error of the first partition only, as in Kafka
    if not interesting or f.bytes_ready >= min(f.min_bytes, min(f.max_bytes, f.cache.fetch_max_bytes)):
        f.answer_now = True
    if not f.answer_now and f.bytes_ready > 0:
        f.answer_now = has_older_segment(f)
    return 0

cdef bint has_older_segment(fetch_t *f) noexcept nogil:
    """A range at the end of a segment that is not appended to any more cannot grow: waiting for more is no use."""
    cdef fetch_entry_t *e
    cdef bint older = False
    cdef int32_t i
    for i in range(f.entry_count):
        e = &f.entries[i]
        if e.read.segment != NULL and not older:
            mutex_lock(&e.partition.lock)
            older = (e.partition.segment_count == 0
                     or e.partition.segments[e.partition.segment_count - 1] != e.read.segment)
            mutex_unlock(&e.partition.lock)
    return older

# --- the answer ---------------------------------------------------------------------------------------

cdef inline bint tell(fetch_entry_t *e, cached_partition_t *cached) noexcept nogil:
    """Whether an incremental response names this partition; the session remembers what the client now knows. After an
    error that is a high watermark of -1, so that the partition is named again when the error goes away."""
    cdef bint changed = e.read.segment != NULL
    if cached.high_watermark != e.read.high_watermark:
        cached.high_watermark = e.read.high_watermark
        changed = True
    if cached.log_start_offset != e.read.log_start_offset:
        cached.log_start_offset = e.read.log_start_offset
        changed = True
    return changed or e.error != 0

cdef inline void refuse_old_client(const fetch_t *f, fetch_entry_t *e) noexcept nogil:
    """What the topic's settings forbid a client of this version: as in Kafka, whatever has been read, errors too."""
    if f.version < FIRST_ZSTD_VERSION and e.partition.options.compression == CODEC_ZSTD:
        e.error = UNSUPPORTED_COMPRESSION_TYPE
    elif f.version < FIRST_BATCH_VERSION and not e.partition.options.downconversion:
        e.error = UNSUPPORTED_VERSION

cdef int32_t link_entries(fetch_t *f) noexcept nogil:
    """Link what goes into the response and return the first; behind the others come ids that are not known, then
    partitions. Session lock held if there is one."""
    cdef int32_t first = -1
    cdef int32_t last = -1
    cdef int32_t i
    cdef int pass_
    cdef fetch_entry_t *e
    for pass_ in range(KNOWN, UNKNOWN_PARTITION + 1):
        for i in range(f.entry_count):
            e = &f.entries[i]
            if e.unknown != pass_:
                continue
            if e.partition != NULL and e.error != KAFKA_STORAGE_ERROR:
                refuse_old_client(f, e)
            if e.error:
                drop_read(e)
                e.read.high_watermark = -1
                e.read.last_stable_offset = -1
                e.read.log_start_offset = -1
            if f.context == CONTEXT_INCREMENTAL:
                if not tell(e, &f.session.cached[e.cached]):
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
    """A session of what a full fetch asked for. Its id, 0 when the cache has no room."""
    cdef fetch_session_t *session
    cdef cached_partition_t *cached
    cdef fetch_entry_t *e
    cdef int32_t place
    cdef int32_t session_id
    if f.cache.slots <= 0:
        return 0
    session = session_new(f.replica_id >= 0, f.version >= 13)
    if session == NULL:
        return 0
    while first >= 0:
        e = &f.entries[first]
        first = e.next
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
        cached.leader_epoch = e.current_leader_epoch
        cached.high_watermark = e.read.high_watermark
        cached.log_start_offset = e.read.log_start_offset
    session_id = session_list(f.cache, session, now_ms)
    if session_id == 0:
        session_unref(session)
    return session_id

cdef void answer(Processor processor, fetch_t *f, slot_t *slot) noexcept nogil:
    """Session lock held if there is one: it is given up here, and the fetch is freed."""
    cdef int64_t now_ms = processor.now_ns // 1000000
    cdef int32_t session_id = 0
    cdef int16_t error = 0
    cdef int32_t first = -1
    if f.context == CONTEXT_ERROR:
        error = f.session_error
    elif f.context == CONTEXT_INCREMENTAL:
        session_id = f.session.id
        if f.session.epoch != next_epoch(f.session_epoch) or f.session.shape != f.session_shape:
            error = INVALID_FETCH_SESSION_EPOCH      # another request went on with it meanwhile
        else:
            first = link_entries(f)
    else:
        first = link_entries(f)
        if f.context == CONTEXT_FULL:
            session_id = make_session(f, first, now_ms)
        elif f.context == CONTEXT_REFUSED:
            error = UNKNOWN_SERVER_ERROR
            session_id = f.session_id
    if f.version < FIRST_BATCH_VERSION and has_bytes(f, first):
        f.first = first
        convert_elsewhere(processor, f, slot)
        return
    write_response(processor, f, slot, first, error, session_id)
    if f.session != NULL:
        mutex_unlock(&f.session.lock)
    fetch_free(f)
    slot_finish(slot)

# --- versions 0 to 3 ----------------------------------------------------------------------------------

cdef inline bint has_bytes(fetch_t *f, int32_t i) noexcept nogil:
    while i >= 0 and f.entries[i].read.segment == NULL:
        i = f.entries[i].next
    return i >= 0

cdef void convert_elsewhere(Processor processor, fetch_t *f, slot_t *slot) noexcept nogil:
    """What has been read goes to a request handler; the shell stays for mail that may be under way to it."""
    cdef fetch_t *moved = <fetch_t *>calloc(1, sizeof(fetch_t))
    if moved == NULL or not own_names(f):
        free(moved)
        fetch_free(f)
        slot_settle(slot, SLOT_CLOSE)
        return
    moved.version = f.version
    moved.context = f.context
    moved.first = f.first
    moved.entries = f.entries
    moved.entry_count = f.entry_count
    moved.names = f.names
    f.entries = NULL
    f.entry_count = 0
    f.names = NULL
    fetch_free(f)
    hand_over_answer(processor, slot, moved)

cdef void fetch_discard(fetch_t *f) noexcept nogil:
    fetch_free(f)

cdef int32_t fetch_convert(Processor processor, slot_t *slot, fetch_t *f) noexcept nogil:
    write_response(processor, f, slot, f.first, 0, 0)
    fetch_free(f)
    return SLOT_READY

# --- parking ------------------------------------------------------------------------------------------

cdef void unpark(Processor processor, fetch_t *f) noexcept nogil:
    cdef int32_t i
    wheel_remove(processor.wheel, &f.timer)
    for i in range(f.waiter_count):
        partition_forget_bytes(&f.waiters[i])
    f.waiter_count = 0

cdef bint own_names(fetch_t *f) noexcept nogil:
    """Names that stand in the frame or in the session move to where they last as long as the fetch."""
    cdef size_t size = 0
    cdef int32_t i
    cdef fetch_entry_t *e
    cdef uint8_t *at
    if f.version >= 13 or f.names != NULL:
        return True
    for i in range(f.entry_count):
        e = &f.entries[i]
        if e.partition != NULL:
            e.topic = <const uint8_t *>e.partition.topic
        else:
            size += e.topic_size
    if size == 0:
        return True
    at = <uint8_t *>malloc(size)
    if at == NULL:
        return False
    f.names = at
    for i in range(f.entry_count):
        e = &f.entries[i]
        if e.partition == NULL:
            memcpy(at, e.topic, e.topic_size)
            e.topic = at
            at += e.topic_size
    return True

cdef bint wait_for_bytes(fetch_t *f) noexcept nogil:
    """Link it to its partitions; false, and linked to none, when there is something new to look at already."""
    cdef int32_t i
    cdef fetch_entry_t *e
    cdef fetch_waiter_t *waiter
    atomic_store_i64(&f.bytes_missing, min(f.min_bytes, min(f.max_bytes, f.cache.fetch_max_bytes)) - f.bytes_ready)
    for i in range(f.entry_count):
        e = &f.entries[i]
        drop_read(e)
        if e.unknown:
            continue
        waiter = &f.waiters[f.waiter_count]
        waiter.next = NULL
        waiter.previous = NULL
        waiter.partition = NULL
        waiter.bytes_missing = &f.bytes_missing
        waiter.mail = &f.mail
        if not partition_await_bytes(e.partition, waiter, e.visible_end, f.committed):
            for i in range(f.waiter_count):
                partition_forget_bytes(&f.waiters[i])
            f.waiter_count = 0
            return False
        f.waiter_count += 1
    return True

cdef int look_and_wait(fetch_t *f, int mode) noexcept nogil:
    """0: to be answered now. 1: linked to its partitions. NEEDS_HANDLER as look."""
    while True:
        if look(f, mode) == NEEDS_HANDLER:
            return NEEDS_HANDLER
        if f.answer_now:
            return 0
        if f.waiters == NULL:
            f.waiters = <fetch_waiter_t *>malloc(<size_t>f.entry_count * sizeof(fetch_waiter_t))
            if f.waiters == NULL or not own_names(f):
                return 0
        if wait_for_bytes(f):
            return 1

# --- what the processor calls -------------------------------------------------------------------------

cdef fetch_t *fetch_begin(Processor processor, request_t *request) noexcept nogil:
    """The request, read, its session open and locked if it has one. NULL when it does not parse or memory is out."""
    cdef reader_t forgotten
    cdef fetch_t *f = <fetch_t *>calloc(1, sizeof(fetch_t))
    if f == NULL:
        return NULL
    f.mail.kind = MAIL_FETCH
    f.mail.box = &processor.mailbox
    f.timer.kind = TIMER_FETCH
    f.version = request.api_version
    f.cache = (<FetchSessions>processor.fetch_sessions).cache
    if not parse_request(f, request, &forgotten):
        fetch_free(f)
        return NULL
    if f.isolation != READ_UNCOMMITTED and f.isolation != READ_COMMITTED:
        refuse_all(f)
    elif open_session(f, processor.registry, forgotten) < 0:
        fetch_free(f)
        return NULL
    return f

cdef int fetch(Processor processor, conn_t *conn, request_t *request, slot_t *slot) noexcept nogil:
    cdef int outcome
    cdef fetch_t *f = fetch_begin(processor, request)
    if f == NULL:
        return -1
    outcome = look_and_wait(f, LOOK_FRESH if slot == NULL else LOOK_AGAIN)
    if outcome == NEEDS_HANDLER:
        if f.session != NULL:
            mutex_unlock(&f.session.lock)
        fetch_free(f)
        return NEEDS_HANDLER
    if slot == NULL:
        slot = slot_new(conn, request)
    if slot == NULL:
        unpark(processor, f)
        if f.session != NULL:
            mutex_unlock(&f.session.lock)
        fetch_free(f)
        return -1
    slot_begin_response(slot, request)
    if f.session != NULL:
        f.session.epoch = next_epoch(f.session_epoch)
        session_touch(f.cache, f.session, processor.now_ns // 1000000)
    if outcome == 0:
        answer(processor, f, slot)
        return 0
    if f.session != NULL:
        mutex_unlock(&f.session.lock)
    f.slot = slot
    conn.fetch = f
    wheel_add(processor.wheel, &f.timer, processor.now_ns // 1000000 + f.max_wait_ms)
    return 0

cdef void fetch_prepare(Processor processor, request_t *request) noexcept nogil:
    cdef fetch_t *f = fetch_begin(processor, request)
    if f == NULL:
        return
    if f.session != NULL:
        mutex_unlock(&f.session.lock)
    look(f, LOOK_PREPARE)
    fetch_free(f)

cdef void fetch_resume(Processor processor, fetch_t *parked, bint timed_out) noexcept nogil:
    cdef slot_t *slot
    if parked.dead:
        free(parked)
        return
    slot = parked.slot
    unpark(processor, parked)
    if timed_out:
        look(parked, LOOK_AGAIN)
    elif look_and_wait(parked, LOOK_AGAIN):
        wheel_add(processor.wheel, &parked.timer, parked.timer.due_ms)
        return
    slot.conn.fetch = NULL
    if parked.session != NULL:
        mutex_lock(&parked.session.lock)
    answer(processor, parked, slot)

cdef void fetch_abandon(Processor processor, fetch_t *parked) noexcept nogil:
    unpark(processor, parked)
    fetch_free(parked)
