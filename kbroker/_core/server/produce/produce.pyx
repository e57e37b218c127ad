"""Produce (key 0), versions 0 to 12. Messages of magic 0 or 1 (versions 0 to 2) are converted to a record batch first.

    request  = [v3: transactional_id:string?] acks:i16 timeout_ms:i32 topic*
    topic    = name:string partition*
    partition= index:i32 records:bytes?

    response = topic* [v1: throttle_time_ms:i32]
    topic    = name:string partition*
    partition= index:i32 error_code:i16 base_offset:i64 [v2: log_append_time_ms:i64] [v5: log_start_offset:i64]
               [v8: record_error* error_message:string?]
    record_error= batch_index:i32 message:string?

v7  zstd (KIP-110)
v8  which records are wrong (KIP-467)
v9  flexible
v10 current leader in tagged fields, and its endpoint (KIP-951)
v11, v12 the same layout (KIP-890)

What is refused follows Apache Kafka 3.9 (KafkaApis, ReplicaManager, UnifiedLog). Left out: quotas.

The first batch of a transaction in a partition is appended only after the transaction's coordinator has confirmed that
the partition belongs to the transaction or, from v12 on, has added it (KIP-890). A handler asks the coordinator.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

from kbroker._core.base.arrays cimport with_room
from kbroker._core.base.clock cimport wall_ms
from kbroker._core.base.sync cimport atomic_add_i32
from kbroker._core.log.acks cimport acks_await
from kbroker._core.log.append cimport appender_t, partition_append, partition_verify
from kbroker._core.log.partition cimport NEEDS_HANDLER, NEEDS_VERIFICATION, partition_unref
from kbroker._core.log.producers cimport FROM_CLIENT
from kbroker._core.log.verifications cimport NO_GUARD
from kbroker._core.server.connection cimport (
    acks_timer, begin_response, conn_t, request_t, slot_begin_response, slot_new, slot_settle, slot_t,
)
from kbroker._core.server.produce.check cimport produce_check, produce_check_rest
from kbroker._core.server.produce.response cimport produce_patch, produce_response
from kbroker._core.server.produce.work cimport entry_t, is_transactional, must_wait, produce_t, refuse
from kbroker._core.server.serving cimport Serving
from kbroker._core.wire.apis cimport PRODUCE_ADDS_FROM, PRODUCE_BATCHES_FROM
from kbroker._core.wire.cursor cimport (
    MOST_ELEMENTS, is_utf8, read_array_count, read_bytes, read_i16, read_i32, read_string, reader_t, skip_tags,
)
from kbroker._core.wire.error_codes cimport (
    UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE,
    INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR,
)

cdef enum:
    APPENDED_AT_ONCE = 500       # batches that a processor appends for a request, each with a write(2): about 1 ms
    KEPT_ENTRIES = 64            # entries that the spare produce_t of a processor keeps room for

# --- memory -------------------------------------------------------------------------------------------

cdef void drop_entries(produce_t *w) noexcept nogil:
    cdef entry_t *e
    cdef int32_t i
    for i in range(w.count):
        e = &w.entries[i]
        if e.partition != NULL:
            partition_unref(e.partition)
        free(e.made)
        free(e.bad_records)
    w.count = 0


cdef void recycle(produce_t *w) noexcept nogil:
    """Keep the struct of a Produce for the next one, but free the memory that a request of many partitions took."""
    drop_entries(w)
    if w.capacity > KEPT_ENTRIES:
        free(w.entries)
        w.entries = NULL
        w.capacity = 0


cdef void produce_discard(produce_t *w) noexcept nogil:
    drop_entries(w)
    free(w.entries)
    free(w)


cdef entry_t *add_entry(produce_t *w) noexcept nogil:
    cdef entry_t *e
    if w.count == MOST_ELEMENTS:
        return NULL
    e = <entry_t *>with_room(w.entries, w.count, &w.capacity, sizeof(entry_t))
    if e == NULL:
        return NULL
    w.entries = e
    e = &w.entries[w.count]
    w.count += 1
    e.partition = NULL
    e.made = NULL
    e.bad_records = NULL
    e.bad_count = 0
    e.topic_partitions = 0
    e.error = 0
    e.unchecked = False
    e.unconverted = False
    e.done = False
    e.before_append = False
    e.unverified = False
    e.guard = NO_GUARD
    e.leader_id = -1
    return e


# --- the request --------------------------------------------------------------------------------------

cdef bint parse(produce_t *w, request_t *request) noexcept nogil:
    cdef reader_t r = request.body
    cdef bint flexible = request.flexible
    cdef const uint8_t *name
    cdef const uint8_t *records
    cdef int32_t name_size = 0
    cdef int32_t records_size = 0
    cdef int32_t topic_count
    cdef int32_t partition_count
    cdef int32_t first
    cdef entry_t *e
    w.version = request.api_version
    w.flexible = flexible
    w.internal_allowed = is_admin_client(request)
    w.transactional_id_at = -1
    if w.version >= PRODUCE_BATCHES_FROM:
        name = read_string(&r, flexible, &name_size)
        if name != NULL:
            w.transactional_id_at = name - request.frame
            w.transactional_id_size = name_size
    w.acks = read_i16(&r)
    w.timeout_ms = read_i32(&r)
    topic_count = read_array_count(&r, flexible, 3 if flexible else 6)
    while topic_count > 0 and not r.failed:
        topic_count -= 1
        name = read_string(&r, flexible, &name_size)
        if name == NULL or not is_utf8(name, name_size):
            return False
        partition_count = read_array_count(&r, flexible, 6 if flexible else 8)
        first = w.count
        while partition_count > 0 and not r.failed:
            partition_count -= 1
            e = add_entry(w)
            if e == NULL:
                return False
            e.topic_at = name - request.frame
            e.topic_size = name_size
            e.partition_id = read_i32(&r)
            records = read_bytes(&r, flexible, &records_size)
            e.batch_at = records - request.frame if records != NULL else -1
            e.batch_size = records_size
            w.entries[first].topic_partitions += 1
            if flexible:
                skip_tags(&r)
        if partition_count < 0:
            return False         # a null array, which Kafka does not allow here
        if flexible:
            skip_tags(&r)
    if topic_count < 0:
        return False
    if flexible:
        skip_tags(&r)
    return not r.failed     # bytes after the message are ignored, as in Apache Kafka


cdef inline bint is_admin_client(request_t *request) noexcept nogil:
    return request.client_id_size == 14 and memcmp(request.client_id, b"__admin_client", 14) == 0


# --- transactions -------------------------------------------------------------------------------------

cdef bint begin_verification(produce_t *w) noexcept nogil:
    """Get guards for the batches that begin a transaction in their partitions. Return whether there are any.

    May block.
    """
    cdef bint needed = False
    cdef int32_t i
    cdef int code
    cdef entry_t *e
    for i in range(w.count):
        e = &w.entries[i]
        if e.done or not is_transactional(e):
            continue
        code = partition_verify(e.partition, &e.info, w.version >= PRODUCE_ADDS_FROM, &e.guard)
        if code:
            refuse(e, code, True)
        elif e.guard != NO_GUARD:
            needed = True
    return needed


cdef object produce_asked(produce_t *w, uint8_t *frame):
    cdef entry_t *e
    cdef int32_t i
    partitions = []
    producer = ()
    for i in range(w.count):
        e = &w.entries[i]
        if e.guard != NO_GUARD and not e.done:
            partitions.append(((<char *>frame + e.topic_at)[:e.topic_size].decode(), e.partition_id))
            producer = e.info.producer_id, e.info.producer_epoch
    transactional_id = (<char *>frame + w.transactional_id_at)[:w.transactional_id_size].decode("utf-8", "replace")
    return transactional_id, *producer, partitions


cdef int produce_answered(produce_t *w, object codes) except -1:
    cdef list asked = [at for at in range(w.count) if w.entries[at].guard != NO_GUARD and not w.entries[at].done]
    cdef entry_t *e
    if codes is None:
        codes = [INVALID_TXN_STATE] * len(asked)
    if len(codes) != len(asked):
        raise AssertionError(f"{len(codes)} answers for {len(asked)} partitions")
    for at, code in zip(asked, codes):
        if code:
            e = &w.entries[<int32_t>at]
            refuse(e, code, True)
            e.unverified = True
    return 0

# --- appending and answering --------------------------------------------------------------------------

cdef bint append_all(produce_t *w, uint8_t *frame, int64_t now_ms, bint may_block) noexcept nogil:
    """Append all entries. Returns False if another thread has to go on.

    That is one that may block, or one that may ask a transaction's coordinator.
    """
    cdef appender_t appender
    cdef bint unverified = False
    cdef int32_t i
    cdef int code
    cdef entry_t *e
    appender.origin = FROM_CLIENT
    appender.acks = w.acks
    appender.leader_epoch = -1
    appender.marker = NULL
    appender.adds = w.version >= PRODUCE_ADDS_FROM
    for i in range(w.count):
        e = &w.entries[i]
        if e.done:
            continue
        appender.guard = e.guard
        code = partition_append(e.partition, e.made if e.made != NULL else frame + e.batch_at, &e.info, &appender,
                                now_ms, may_block, &e.result)
        if code == NEEDS_HANDLER:
            return False
        if code == NEEDS_VERIFICATION and not may_block:
            unverified = True
            continue
        if code == NEEDS_VERIFICATION:
            code = INVALID_TXN_STATE     # its transaction was open at produce_check_blocking, and is over now
        if code:
            refuse(e, code, code == UNKNOWN_TOPIC_OR_PARTITION or code == NOT_LEADER_OR_FOLLOWER
                   or code == MESSAGE_TOO_LARGE or code == RECORD_LIST_TOO_LARGE or code == KAFKA_STORAGE_ERROR
                   or code == INVALID_PRODUCER_EPOCH and is_transactional(e))
        e.done = True
    w.only_verifies = unverified
    return not unverified


cdef int32_t count_waiting(produce_t *w) noexcept nogil:
    cdef int32_t waiting = 0
    cdef int32_t i
    if w.acks != 0:
        for i in range(w.count):
            waiting += must_wait(&w.entries[i])
    return waiting


cdef bint await_acks(slot_t *slot) noexcept nogil:
    """Link the slot's waiters to their partitions. Returns whether mail (MAIL_ACKS) will come when all acks are there.

    Returns False if all acks are there already. The caller has counted the mail in slot.outstanding before, because it
    may come before this returns.
    """
    cdef int32_t i
    cdef int32_t count = slot.waiter_count
    slot.pending = count + 1
    for i in range(count):
        if not acks_await(slot.waiters[i].partition, &slot.waiters[i]):
            atomic_add_i32(&slot.pending, -1)
    return atomic_add_i32(&slot.pending, -1) != 0


cdef inline bint waits_for_replicas(const slot_t *slot) noexcept nogil:
    cdef int32_t i
    for i in range(slot.waiter_count):
        if slot.waiters[i].for_replicas:
            return True
    return False


cdef int produce(Serving serving, conn_t *conn, request_t *request) noexcept nogil:
    cdef produce_t *w = serving.spare
    cdef uint8_t *frame = <uint8_t *>request.frame
    cdef slot_t *slot
    cdef int32_t outcome
    cdef int32_t waiting
    if w == NULL:
        w = <produce_t *>calloc(1, sizeof(produce_t))
        if w == NULL:
            return -1
        serving.spare = w
    if not parse(w, request):
        recycle(w)
        return -1
    w.only_verifies = False
    w.checked = False
    if (not produce_check(serving, w, frame) or w.count > APPENDED_AT_ONCE
            or not append_all(w, frame, serving.p.now_ms, False)):
        serving.handed = w
        serving.spare = NULL
        return NEEDS_HANDLER
    waiting = count_waiting(w)
    slot = slot_new(conn, request)
    if slot == NULL:
        recycle(w)
        return -1
    slot_begin_response(slot, request)
    outcome = produce_response(serving, slot, w, frame, waiting, NULL)
    slot.outcome = outcome
    if slot.waiter_count:
        slot.outstanding = 1
        if not await_acks(slot):
            slot.outstanding = 0
            produce_patch(serving, slot)
        elif waits_for_replicas(slot):
            acks_timer(slot, w.timeout_ms)
    recycle(w)
    if slot.outstanding == 0:
        slot_settle(slot, outcome)
    return 0


cdef bint produce_check_blocking(Serving serving, produce_t *w, uint8_t *frame) noexcept nogil:
    w.checked = True
    produce_check_rest(serving, w, frame)
    return w.transactional_id_at >= 0 and begin_verification(w)


cdef int32_t produce_run(Serving serving, slot_t *slot, produce_t *w, uint8_t *frame, PyObject *peer) noexcept nogil:
    cdef int32_t outcome
    append_all(w, frame, wall_ms(), True)
    begin_response(slot, w.flexible)
    outcome = produce_response(serving, slot, w, frame, count_waiting(w), peer)
    if slot.waiter_count:
        if waits_for_replicas(slot):
            slot.acks_timeout_ms = max(w.timeout_ms, 0)
        atomic_add_i32(&slot.outstanding, 1)
        if not await_acks(slot):
            atomic_add_i32(&slot.outstanding, -1)
    produce_discard(w)
    return outcome
