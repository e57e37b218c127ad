"""Produce (key 0), versions 0 to 12. What versions 0 to 2 bring in messages of magic 0 or 1 becomes a record batch first.

    request  = [v3: transactional_id:string?] acks:i16 timeout_ms:i32 topic*
    topic    = name:string partition*
    partition= index:i32 records:bytes?

    response = topic* [v1: throttle_time_ms:i32]
    topic    = name:string partition*
    partition= index:i32 error_code:i16 base_offset:i64 [v2: log_append_time_ms:i64] [v5: log_start_offset:i64]
               [v8: record_error* error_message:string?]                        record_error = batch_index:i32 message:string?

v7 zstd (KIP-110)    v8 which records are wrong (KIP-467)    v9 flexible    v10 current leader in tagged fields (KIP-951; there is
only one leader, they are not written)    v11, v12 the same layout (KIP-890)

What is refused follows Apache Kafka 3.9 (KafkaApis, ReplicaManager, UnifiedLog). Left out: quotas. The first batch of a
transaction in a partition is appended when its coordinator has said that it knows of that (KIP-890), or from v12 on has added
the partition to the transaction; the request goes to a handler for it.
"""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, strlen

from kbroker._core.arrays cimport with_room
from kbroker._core.connection cimport (
    SLOT_CLOSE, SLOT_READY, SLOT_SILENT, begin_response, conn_t, count_error, request_t, slot_begin_response, slot_new, slot_settle, slot_t,
)
from kbroker._core.cursor cimport (
    MOST_ELEMENTS, is_utf8, read_array_count, read_bytes, read_i16, read_i32, read_string, reader_t, skip_tags, write_array_count,
    write_i16, write_i32, write_i64, write_string, write_uvarint, writer_t,
)
from kbroker._core.layout cimport (
    ATTRIBUTE_CODEC_MASK, ATTRIBUTE_TRANSACTIONAL, BATCH_ATTRIBUTES, BATCH_HEADER_SIZE, BATCH_MAGIC,
)
from kbroker._core.log_flush cimport partition_await_flush
from kbroker._core.partition cimport (
    NEEDS_HANDLER, NEEDS_VERIFICATION, ack_waiter_t, appender_t, log_options_t, partition_append, partition_unref,
    partition_verify,
)
from kbroker._core.processor cimport Processor
from kbroker._core.producers cimport FROM_CLIENT
from kbroker._core.record cimport record_t, take_fields
from kbroker._core.record_batch cimport (
    BATCH_BAD_TIMESTAMP, BATCH_NO_KEY, BATCH_OK, batch_check, batch_check_timestamps, batch_check_trailing,
    batch_error_code, batch_header, batch_info_t, batch_walk,
)
from kbroker._core.sending cimport wall_ms
from kbroker._core.sync cimport atomic_add_i32, atomic_load_i64
from kbroker._core.verifications cimport NO_GUARD

from kbroker.errors import KbrokerError

cdef enum:
    UNKNOWN_SERVER_ERROR = -1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    INVALID_TIMESTAMP = 32
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87

    CODEC_ZSTD = 4
    FIRST_BATCH_VERSION = 3
    FIRST_ZSTD_VERSION = 7
    FIRST_ADDING_VERSION = 12

    # A compressed batch of at most so many bytes, that inflates to at most so many, is looked at on the processor.
    SMALL_BATCH = 4 << 10
    SMALL_INFLATED = 64 << 10
    KEPT_ENTRIES = 64            # room for so many partitions stays with the processor

    # check_compressed and check_all
    TOO_LARGE_HERE = 1

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
    """It stays with the processor, but not the room that a request of many partitions took."""
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
    return e


cdef inline void refuse(entry_t *e, int16_t error, bint before_append) noexcept nogil:
    e.error = error
    e.done = True
    e.before_append = before_append

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
    if w.version >= FIRST_BATCH_VERSION:
        name = read_string(&r, flexible, &name_size)
        if name != NULL:
            w.transactional_id_at = name - request.frame
            w.transactional_id_size = name_size
    w.acks = read_i16(&r)
    read_i32(&r)                 # timeout: replicas are not waited for
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
            return False         # null: Kafka's arrays here are not nullable
        if flexible:
            skip_tags(&r)
    if topic_count < 0:
        return False
    if flexible:
        skip_tags(&r)
    return not r.failed     # bytes behind the message are ignored, as Apache Kafka does


cdef inline bint is_admin_client(request_t *request) noexcept nogil:
    return request.client_id_size == 14 and memcmp(request.client_id, b"__admin_client", 14) == 0


cdef inline bint is_internal(const uint8_t *topic, int32_t size) noexcept nogil:
    if size < 2 or topic[0] != c"_":
        return False
    return (size == 18 and memcmp(topic, b"__consumer_offsets", 18) == 0
            or size == 19 and memcmp(topic, b"__transaction_state", 19) == 0)

# --- checking -----------------------------------------------------------------------------------------

cdef bint check_all(Processor processor, produce_t *w, uint8_t *frame) noexcept nogil:
    """Look at every partition without appending; false when some batch needs a thread that may block."""
    cdef bint complete = True
    cdef int32_t i
    cdef entry_t *e
    if is_foreign_transaction(w, frame):
        refuse_all(w, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return True
    for i in range(w.count):
        e = &w.entries[i]
        check(processor, w, e, frame)
        if e.unchecked:
            if (e.unconverted or e.batch_size > SMALL_BATCH or must_recompress(e)
                    or check_compressed(processor, e, frame, SMALL_INFLATED)):
                complete = False
    if w.transactional_id_at >= 0 and has_several_producers(w):
        refuse_all(w, INVALID_PRODUCER_ID_MAPPING)
        return True
    return complete


cdef void refuse_all(produce_t *w, int16_t error) noexcept nogil:
    cdef int32_t i
    for i in range(w.count):
        w.entries[i].unchecked = False
        w.entries[i].unconverted = False
        refuse(&w.entries[i], error, True)


cdef inline bint is_transactional(const entry_t *e) noexcept nogil:
    return e.error == 0 and not e.unconverted and e.info.producer_id >= 0 and e.info.attributes & ATTRIBUTE_TRANSACTIONAL != 0


cdef bint has_several_producers(produce_t *w) noexcept nogil:
    """Whether batches of transactions have not all one producer and epoch."""
    cdef const entry_t *first = NULL
    cdef const entry_t *e
    cdef int32_t i
    for i in range(w.count):
        e = &w.entries[i]
        if not is_transactional(e):
            continue
        if first == NULL:
            first = e
        elif e.info.producer_id != first.info.producer_id or e.info.producer_epoch != first.info.producer_epoch:
            return True
    return False


cdef bint is_foreign_transaction(produce_t *w, const uint8_t *frame) noexcept nogil:
    """Whether a batch is of a transaction whose id the request does not name: nobody is allowed to write for that. Kafka
    asks this before it looks at anything else."""
    cdef const uint8_t *batch
    cdef int32_t i
    if w.transactional_id_at >= 0:
        return False
    for i in range(w.count):
        batch = frame + w.entries[i].batch_at
        if (w.entries[i].batch_at >= 0 and w.entries[i].batch_size >= BATCH_HEADER_SIZE and batch[BATCH_MAGIC] == 2
                and batch[BATCH_ATTRIBUTES + 1] & ATTRIBUTE_TRANSACTIONAL):
            return True
    return False


cdef void check(Processor processor, produce_t *w, entry_t *e, uint8_t *frame) noexcept nogil:
    """In the order in which Kafka refuses: partition, shape of the records, request, topic, batch."""
    cdef uint8_t *topic = frame + e.topic_at
    cdef uint8_t *batch = frame + e.batch_at
    cdef int finding
    e.partition = processor.registry.find(topic, e.topic_size, e.partition_id)
    if e.partition == NULL:
        refuse(e, UNKNOWN_TOPIC_OR_PARTITION, True)
        return
    if e.batch_at < 0:
        refuse(e, INVALID_RECORD, True)
        return
    e.unconverted = w.version < FIRST_BATCH_VERSION and e.batch_size > BATCH_MAGIC and batch[BATCH_MAGIC] < 2
    finding = BATCH_OK
    if not e.unconverted:
        finding = batch_header(batch, e.batch_size, &e.info)
        if finding == BATCH_OK:
            finding = batch_check_trailing(batch, e.batch_size, &e.info)
    if finding != BATCH_OK:
        refuse(e, batch_error_code(finding), True)
    elif not e.unconverted and e.info.attributes & ATTRIBUTE_CODEC_MASK == CODEC_ZSTD and w.version < FIRST_ZSTD_VERSION:
        refuse(e, UNSUPPORTED_COMPRESSION_TYPE, True)
    elif not -1 <= w.acks <= 1:
        refuse(e, INVALID_REQUIRED_ACKS, True)
    elif is_internal(topic, e.topic_size) and not w.internal_allowed:
        refuse(e, INVALID_TOPIC_EXCEPTION, True)
    elif e.unconverted:
        e.unchecked = True
    elif e.info.size > e.partition.options.max_message_bytes:
        refuse(e, MESSAGE_TOO_LARGE, True)
    else:
        finding = batch_check(batch, e.batch_size, &e.info)
        if finding != BATCH_OK:
            refuse(e, batch_error_code(finding), False)
        elif e.info.attributes & ATTRIBUTE_CODEC_MASK or must_recompress(e):
            e.unchecked = True
        else:
            check_records(e, batch + BATCH_HEADER_SIZE, e.info.size - BATCH_HEADER_SIZE, processor.now_ms)


cdef inline bint must_recompress(entry_t *e) noexcept nogil:
    cdef int8_t wanted = e.partition.options.compression
    return wanted >= 0 and wanted != e.info.attributes & ATTRIBUTE_CODEC_MASK


cdef void check_records(entry_t *e, const uint8_t *records, int64_t size, int64_t now_ms) noexcept nogil:
    cdef log_options_t *options = &e.partition.options
    cdef int finding = batch_walk(records, size, &e.info, options.compacted)
    e.unchecked = False
    if finding == BATCH_OK:
        finding = batch_check_timestamps(&e.info, options.log_append_time, now_ms, options.timestamp_before_max_ms,
                                         options.timestamp_after_max_ms)
    if finding == BATCH_NO_KEY or finding == BATCH_BAD_TIMESTAMP:
        find_bad_records(e, records, records + size, finding, now_ms)
    if finding != BATCH_OK:
        refuse(e, batch_error_code(finding), False)


cdef void find_bad_records(entry_t *e, const uint8_t *p, const uint8_t *end, int finding, int64_t now_ms) noexcept nogil:
    """Note which records have no key, or a timestamp out of bounds; those behind one that cannot be read are not looked at."""
    cdef record_t record
    cdef int64_t timestamp
    cdef int64_t oldest = now_ms - e.partition.options.timestamp_before_max_ms
    cdef int64_t newest = INT64_MAX
    cdef int32_t i
    if e.partition.options.timestamp_after_max_ms < INT64_MAX - now_ms:
        newest = now_ms + e.partition.options.timestamp_after_max_ms
    e.bad_records = <int32_t *>malloc(<size_t>e.info.record_count * sizeof(int32_t))
    if e.bad_records == NULL:
        return
    for i in range(e.info.record_count):
        p = take_fields(p, end, &record)
        if p == NULL:
            return
        timestamp = <int64_t>(<uint64_t>e.info.base_timestamp + <uint64_t>record.timestamp_delta)
        if record.key_size < 0 if finding == BATCH_NO_KEY else timestamp != -1 and not oldest <= timestamp <= newest:
            e.bad_records[e.bad_count] = i
            e.bad_count += 1


cdef int check_compressed(Processor processor, entry_t *e, uint8_t *frame, int64_t limit) noexcept with gil:
    """Inflate, walk, and compress again where the topic wants another codec. TOO_LARGE_HERE: more than `limit` bytes.

    `limit` 0 is the broker's own, beyond which a batch is refused.
    """
    cdef uint8_t *batch = frame + e.batch_at
    cdef const uint8_t[::1] plain
    cdef const uint8_t[::1] made
    cdef int codec = e.info.attributes & ATTRIBUTE_CODEC_MASK
    cdef int64_t allowed = min(limit, processor.max_inflated_size) if limit else processor.max_inflated_size
    try:
        records = PyMemoryView_FromMemory(<char *>batch + BATCH_HEADER_SIZE, e.info.size - BATCH_HEADER_SIZE, PyBUF_READ)
        try:
            inflated = processor.inflate(codec, records, allowed)
        except KbrokerError as error:
            if limit and error.code == MESSAGE_TOO_LARGE:
                return TOO_LARGE_HERE
            e.unchecked = False
            refuse(e, error.code, False)
            return 0
        plain = inflated
        with nogil:
            check_records(e, &plain[0] if plain.shape[0] else batch, plain.shape[0], wall_ms())
        if e.error or not must_recompress(e):
            return 0
        header = PyMemoryView_FromMemory(<char *>batch, BATCH_HEADER_SIZE, PyBUF_READ)
        made = processor.recompress(
            header, inflated, <int>e.partition.options.compression, <int>e.partition.options.compression_level
        )
        keep_made(e, made)
    except BaseException as error:
        processor.report("checking a compressed batch", error)
        e.unchecked = False
        refuse(e, UNKNOWN_SERVER_ERROR, False)
    return 0


cdef void convert(Processor processor, entry_t *e, uint8_t *frame) noexcept with gil:
    """Messages of magic 0 or 1 become the batch to append, in their own codec if the topic wants no other."""
    cdef const uint8_t[::1] batch
    cdef log_options_t *options = &e.partition.options
    e.unchecked = False
    try:
        messages = PyMemoryView_FromMemory(<char *>frame + e.batch_at, e.batch_size, PyBUF_READ)
        try:
            converted, codec = processor.convert(messages, options.max_message_bytes, processor.max_inflated_size)
        except KbrokerError as error:
            refuse(e, error.code, error.code == MESSAGE_TOO_LARGE)
            return
        batch = converted
        if batch_header(&batch[0], batch.shape[0], &e.info) != BATCH_OK:
            raise AssertionError(f"converting made {batch.shape[0]} bytes that are no batch")
        with nogil:
            check_records(e, &batch[0] + BATCH_HEADER_SIZE, e.info.size - BATCH_HEADER_SIZE, wall_ms())
        if e.error:
            return
        level = None
        if options.compression >= 0:
            codec, level = options.compression, options.compression_level
        if codec:
            view = memoryview(converted)
            batch = processor.recompress(view[:BATCH_HEADER_SIZE], view[BATCH_HEADER_SIZE:], codec, level)
        keep_made(e, batch)
        if e.info.size > options.max_message_bytes:
            refuse(e, MESSAGE_TOO_LARGE, True)
    except BaseException as error:
        processor.report("converting messages", error)
        refuse(e, UNKNOWN_SERVER_ERROR, False)


cdef int keep_made(entry_t *e, const uint8_t[::1] batch) except -1:
    """The batch to append instead; its records are those that were walked."""
    cdef batch_info_t info = e.info
    e.made = <uint8_t *>malloc(batch.shape[0])
    if e.made == NULL:
        raise MemoryError()
    memcpy(e.made, &batch[0], batch.shape[0])
    if batch_header(e.made, batch.shape[0], &info) != BATCH_OK:
        raise AssertionError(f"{batch.shape[0]} bytes were made that are no batch")
    e.info.size = info.size
    e.info.attributes = info.attributes
    return 0

# --- transactions -------------------------------------------------------------------------------------

cdef bint begin_verification(produce_t *w) noexcept nogil:
    """Guards for the batches that begin a transaction in their partitions; whether there are any (may block)."""
    cdef bint needed = False
    cdef int32_t i
    cdef int code
    cdef entry_t *e
    for i in range(w.count):
        e = &w.entries[i]
        if e.done or not is_transactional(e):
            continue
        code = partition_verify(e.partition, &e.info, w.version >= FIRST_ADDING_VERSION, &e.guard)
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
    """False when somebody who may ask the coordinator of a transaction, or may block, has to go on."""
    cdef appender_t appender
    cdef bint unverified = False
    cdef int32_t i
    cdef int code
    cdef entry_t *e
    appender.origin = FROM_CLIENT
    appender.marker = NULL
    appender.adds = w.version >= FIRST_ADDING_VERSION
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
            code = INVALID_TXN_STATE     # the transaction was open when the others were asked about, and is over
        if code:
            refuse(e, code, code == UNKNOWN_TOPIC_OR_PARTITION or code == NOT_LEADER_OR_FOLLOWER
                   or code == MESSAGE_TOO_LARGE or code == RECORD_LIST_TOO_LARGE or code == KAFKA_STORAGE_ERROR
                   or code == INVALID_PRODUCER_EPOCH and is_transactional(e))
        e.done = True
    w.only_verifies = unverified
    return not unverified


cdef const char *refusal_text(int16_t error) noexcept nogil:
    return b"the timestamp is out of the topic's bounds" if error == INVALID_TIMESTAMP else b"a compacted topic needs keys"


cdef void write_errors(writer_t *out, produce_t *w, entry_t *e) noexcept nogil:
    """Version 8 on: which records were wrong, and a text, where Kafka has them."""
    cdef const char *text = refusal_text(e.error)
    cdef int32_t i
    write_array_count(out, e.bad_count, w.flexible)
    for i in range(e.bad_count):
        write_i32(out, e.bad_records[i])
        write_string(out, text, <int32_t>strlen(text), w.flexible)
        if w.flexible:
            write_uvarint(out, 0)
    if e.unverified and (e.error == INVALID_TXN_STATE or e.error == NOT_ENOUGH_REPLICAS):
        text = b"the transaction's coordinator does not know of this partition, or cannot tell"
        write_string(out, text, <int32_t>strlen(text), w.flexible)
    elif e.bad_count or e.error == INVALID_TIMESTAMP:
        write_string(out, text, <int32_t>strlen(text), w.flexible)
    else:
        write_string(out, NULL, -1, w.flexible)


cdef int32_t write_partition(slot_t *slot, produce_t *w, entry_t *e) noexcept nogil:
    """Returns where its error code stands."""
    cdef writer_t *out = &slot.out
    cdef int32_t error_at
    cdef int64_t log_start_offset = -1
    write_i32(out, e.partition_id)
    error_at = <int32_t>out.size
    write_i16(out, e.error)
    if e.error == 0:
        log_start_offset = e.result.log_start_offset
    elif not e.before_append and e.error != CORRUPT_MESSAGE:
        log_start_offset = atomic_load_i64(&e.partition.log_start_offset)
    write_i64(out, e.result.base_offset if e.error == 0 else -1)
    if w.version >= 2:
        write_i64(out, e.result.log_append_time if e.error == 0 else -1)
    if w.version >= 5:
        write_i64(out, log_start_offset)
    if w.version >= 8:
        write_errors(out, w, e)
    if w.flexible:
        write_uvarint(out, 0)
    return error_at


cdef bint make_waiters(slot_t *slot, int32_t count) noexcept nogil:
    """Room for `count` waiters of acks; false when memory is out."""
    cdef char *room = <char *>calloc(count, sizeof(ack_waiter_t) + sizeof(uint32_t) + sizeof(int16_t))
    if room == NULL:
        return False
    slot.waiters = <ack_waiter_t *>room
    slot.waiter_positions = <uint32_t *>(room + count * sizeof(ack_waiter_t))
    slot.waiter_errors = <int16_t *>(room + count * (sizeof(ack_waiter_t) + sizeof(uint32_t)))
    slot.waiter_count = 0
    return True


cdef int32_t write_response(Processor processor, slot_t *slot, produce_t *w, uint8_t *frame, int32_t waiting) noexcept nogil:
    """The whole response, and a waiter for each partition whose ack has to wait. Returns the slot's outcome."""
    cdef writer_t *out = &slot.out
    cdef ack_waiter_t *waiter
    cdef int32_t topic_count = 0
    cdef int32_t error_at
    cdef int32_t i
    cdef entry_t *e
    cdef bint failed = False
    for i in range(w.count):
        e = &w.entries[i]
        topic_count += e.topic_partitions > 0
        if e.error:
            count_error(processor.p, 0, e.error)
            failed = True
    if w.acks == 0:
        return SLOT_CLOSE if failed else SLOT_SILENT
    if waiting and not make_waiters(slot, waiting):
        return SLOT_CLOSE
    write_array_count(out, topic_count, w.flexible)
    for i in range(w.count):
        e = &w.entries[i]
        if e.topic_partitions:
            if w.flexible and i:
                write_uvarint(out, 0)        # tags of the topic before
            write_string(out, frame + e.topic_at, e.topic_size, w.flexible)
            write_array_count(out, e.topic_partitions, w.flexible)
        error_at = write_partition(slot, w, e)
        if e.error == 0 and e.result.must_wait:
            waiter = &slot.waiters[slot.waiter_count]
            waiter.partition = e.partition
            waiter.offset = e.result.last_offset
            waiter.pending = &slot.pending
            waiter.error = &slot.waiter_errors[slot.waiter_count]
            waiter.mail = &slot.acks_mail
            slot.waiter_positions[slot.waiter_count] = error_at
            slot.waiter_count += 1
    if w.flexible and w.count:
        write_uvarint(out, 0)
    if w.version >= 1:
        write_i32(out, 0)
    if w.flexible:
        write_uvarint(out, 0)
    return SLOT_READY


cdef int32_t count_waiting(produce_t *w) noexcept nogil:
    cdef int32_t waiting = 0
    cdef int32_t i
    if w.acks != 0:
        for i in range(w.count):
            waiting += w.entries[i].error == 0 and w.entries[i].result.must_wait
    return waiting


cdef bint await_acks(slot_t *slot) noexcept nogil:
    """Link the slot's waiters. True when MAIL_ACKS will come; false when nothing is to be waited for any more.

    The slot has counted that mail in `outstanding` already: it may come before this returns.
    """
    cdef int32_t i
    cdef int32_t count = slot.waiter_count
    slot.pending = count + 1
    for i in range(count):
        if not partition_await_flush(slot.waiters[i].partition, &slot.waiters[i]):
            atomic_add_i32(&slot.pending, -1)
    return atomic_add_i32(&slot.pending, -1) != 0


cdef int produce(Processor processor, conn_t *conn, request_t *request) noexcept nogil:
    cdef produce_t *w = <produce_t *>processor.work
    cdef uint8_t *frame = <uint8_t *>request.frame
    cdef slot_t *slot
    cdef int32_t outcome
    cdef int32_t waiting
    if w == NULL:
        w = <produce_t *>calloc(1, sizeof(produce_t))
        if w == NULL:
            return -1
        processor.work = w
    if not parse(w, request):
        recycle(w)
        return -1
    w.only_verifies = False
    w.prepared = False
    if not check_all(processor, w, frame) or not append_all(w, frame, processor.now_ms, False):
        processor.handed = w
        processor.work = NULL
        return NEEDS_HANDLER
    waiting = count_waiting(w)
    slot = slot_new(conn, request)
    if slot == NULL:
        recycle(w)
        return -1
    slot_begin_response(slot, request)
    outcome = write_response(processor, slot, w, frame, waiting)
    slot.outcome = outcome
    if slot.waiter_count:
        slot.outstanding = 1
        if not await_acks(slot):
            slot.outstanding = 0
    recycle(w)
    if slot.outstanding == 0:
        slot_settle(slot, outcome)
    return 0


cdef bint produce_prepare(Processor processor, produce_t *w, uint8_t *frame) noexcept nogil:
    cdef int32_t i
    w.prepared = True
    for i in range(w.count):
        if w.entries[i].unconverted:
            convert(processor, &w.entries[i], frame)
        elif w.entries[i].unchecked:
            check_compressed(processor, &w.entries[i], frame, 0)
    return w.transactional_id_at >= 0 and begin_verification(w)


cdef int32_t produce_run(Processor processor, slot_t *slot, produce_t *w, uint8_t *frame) noexcept nogil:
    cdef int32_t outcome
    append_all(w, frame, wall_ms(), True)
    begin_response(slot, w.flexible)
    outcome = write_response(processor, slot, w, frame, count_waiting(w))
    if slot.waiter_count:
        atomic_add_i32(&slot.outstanding, 1)
        if not await_acks(slot):
            atomic_add_i32(&slot.outstanding, -1)
    produce_discard(w)
    return outcome
