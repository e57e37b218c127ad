"""Checks all batches of a Produce before any of them is appended; see check.pxd."""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from kbroker._core.base.clock cimport wall_ms
from kbroker._core.base.sync cimport atomic_load_i32
from kbroker._core.log.partition cimport ROLE_ALONE, log_options_t
from kbroker._core.log.replicas cimport replicas_refuse
from kbroker._core.server.produce.work cimport entry_t, is_transactional, produce_t, refuse
from kbroker._core.server.serving cimport Serving, report
from kbroker._core.wire.apis cimport PRODUCE_BATCHES_FROM, PRODUCE_ZSTD_FROM
from kbroker._core.wire.error_codes cimport (
    UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, MESSAGE_TOO_LARGE,
    INVALID_TOPIC_EXCEPTION, INVALID_REQUIRED_ACKS, INVALID_PRODUCER_ID_MAPPING, TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD,
)
from kbroker._core.wire.layout cimport (
    ATTRIBUTE_CODEC_MASK, ATTRIBUTE_TRANSACTIONAL, BATCH_ATTRIBUTES, BATCH_HEADER_SIZE, BATCH_MAGIC, CODEC_ZSTD,
)
from kbroker._core.wire.record cimport record_t, take_fields
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_TIMESTAMP, BATCH_NO_KEY, BATCH_OK, batch_check, batch_check_timestamps, batch_check_trailing,
    batch_error_code, batch_header, batch_info_t, batch_walk,
)

from kbroker.errors import KbrokerError

cdef enum:
    # A compressed batch of at most SMALL_BATCH bytes that inflates to at most SMALL_INFLATED is checked on the
    # processor.
    SMALL_BATCH = 4 << 10
    SMALL_INFLATED = 64 << 10
    # The limit of inflated bytes for all such batches of a request. Each counts as LEAST_INFLATED at least.
    INFLATED_AT_ONCE = 1 << 20
    LEAST_INFLATED = 4 << 10

    MOST_NAMED = 100             # bad records named for a batch: a few compressed kilobytes may have millions

    # What check_compressed returns besides 0.
    TOO_LARGE_HERE = 1


cdef bint produce_check(Serving serving, produce_t *w, uint8_t *frame) noexcept nogil:
    cdef bint complete = True
    cdef int64_t left = INFLATED_AT_ONCE
    cdef int32_t i
    cdef entry_t *e
    if is_foreign_transaction(w, frame):
        refuse_all(w, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return True
    for i in range(w.count):
        e = &w.entries[i]
        check(serving, w, e, frame)
        if e.unchecked:
            if (not complete or e.unconverted or e.batch_size > SMALL_BATCH or must_recompress(e) or left <= 0
                    or check_compressed(serving, e, frame, &left)):
                complete = False
    if w.transactional_id_at >= 0 and has_several_producers(w):
        refuse_all(w, INVALID_PRODUCER_ID_MAPPING)
        return True
    return complete


cdef void produce_check_rest(Serving serving, produce_t *w, uint8_t *frame) noexcept nogil:
    cdef int64_t made = 0
    cdef int32_t i
    cdef entry_t *e
    for i in range(w.count):
        e = &w.entries[i]
        if e.unconverted:
            convert(serving, e, frame)
        elif e.unchecked:
            check_compressed(serving, e, frame, NULL)
        if e.made == NULL:
            continue
        # All batches are kept until the last one is checked; without its codec, a batch may be a thousand times as
        # large.
        if e.info.size > e.partition.options.max_message_bytes or made + e.info.size > serving.max_inflated_size:
            free(e.made)
            e.made = NULL
            if not e.done:
                refuse(e, MESSAGE_TOO_LARGE, True)
        else:
            made += e.info.size


cdef void refuse_all(produce_t *w, int16_t error) noexcept nogil:
    cdef int32_t i
    for i in range(w.count):
        w.entries[i].unchecked = False
        w.entries[i].unconverted = False
        refuse(&w.entries[i], error, True)


cdef bint has_several_producers(produce_t *w) noexcept nogil:
    """Return whether the transactional batches are of more than one producer or epoch."""
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
    """Return whether a batch is transactional although the request names no transactional id, which is not authorized.

    Kafka checks this before anything else.
    """
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


cdef inline bint is_internal(const uint8_t *topic, int32_t size) noexcept nogil:
    if size < 2 or topic[0] != c"_":
        return False
    return (size == 18 and memcmp(topic, b"__consumer_offsets", 18) == 0
            or size == 19 and memcmp(topic, b"__transaction_state", 19) == 0)


cdef void check(Serving serving, produce_t *w, entry_t *e, uint8_t *frame) noexcept nogil:
    """Check one entry in the order in which Kafka refuses: partition, form of the records, request, topic, batch."""
    cdef uint8_t *topic = frame + e.topic_at
    cdef uint8_t *batch = frame + e.batch_at
    cdef int finding
    e.partition = serving.partition_table.find(topic, e.topic_size, e.partition_id)
    if e.partition == NULL:
        refuse(e, NOT_LEADER_OR_FOLLOWER if serving.partition_table.is_elsewhere(topic, e.topic_size, e.partition_id)
               else UNKNOWN_TOPIC_OR_PARTITION, True)
        return
    if e.batch_at < 0:
        refuse(e, INVALID_RECORD, True)
        return
    e.unconverted = w.version < PRODUCE_BATCHES_FROM and e.batch_size > BATCH_MAGIC and batch[BATCH_MAGIC] < 2
    finding = BATCH_OK
    if not e.unconverted:
        finding = batch_header(batch, e.batch_size, &e.info)
        if finding == BATCH_OK:
            finding = batch_check_trailing(batch, e.batch_size, &e.info)
    if finding != BATCH_OK:
        refuse(e, batch_error_code(finding), True)
    elif not e.unconverted and e.info.attributes & ATTRIBUTE_CODEC_MASK == CODEC_ZSTD and w.version < PRODUCE_ZSTD_FROM:
        refuse(e, UNSUPPORTED_COMPRESSION_TYPE, True)
    elif not -1 <= w.acks <= 1:
        refuse(e, INVALID_REQUIRED_ACKS, True)
    elif is_internal(topic, e.topic_size) and not w.internal_allowed:
        refuse(e, INVALID_TOPIC_EXCEPTION, True)
    elif refused_by_role(w, e):
        return
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
            check_records(e, batch + BATCH_HEADER_SIZE, e.info.size - BATCH_HEADER_SIZE, serving.p.now_ms)


cdef inline bint refused_by_role(const produce_t *w, entry_t *e) noexcept nogil:
    """Refuse an entry that this broker does not lead, or whose in-sync replicas are too few. Return whether it did."""
    cdef int code
    if atomic_load_i32(&e.partition.role) == ROLE_ALONE:
        return False
    code = replicas_refuse(e.partition, w.acks)
    if code:
        refuse(e, <int16_t>code, code == NOT_LEADER_OR_FOLLOWER)
    return code != 0


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


cdef void find_bad_records(entry_t *e, const uint8_t *p, const uint8_t *end, int finding,
                           int64_t now_ms) noexcept nogil:
    """Note up to MOST_NAMED records without a key or, by `finding`, with a timestamp out of bounds.

    It stops at a record that cannot be read.
    """
    cdef record_t record
    cdef int64_t timestamp
    cdef int64_t oldest = now_ms - e.partition.options.timestamp_before_max_ms
    cdef int64_t newest = INT64_MAX
    cdef int32_t i
    if e.partition.options.timestamp_after_max_ms < INT64_MAX - now_ms:
        newest = now_ms + e.partition.options.timestamp_after_max_ms
    e.bad_records = <int32_t *>malloc(min(e.info.record_count, MOST_NAMED) * sizeof(int32_t))
    if e.bad_records == NULL:
        return
    for i in range(e.info.record_count):
        p = take_fields(p, end, &record)
        if p == NULL:
            return
        timestamp = <int64_t>(<uint64_t>e.info.base_timestamp + <uint64_t>record.timestamp_delta)
        if record.key_size < 0 if finding == BATCH_NO_KEY else timestamp != -1 and not oldest <= timestamp <= newest:
            if e.bad_count == MOST_NAMED:
                return
            e.bad_records[e.bad_count] = i
            e.bad_count += 1


cdef int check_compressed(Serving serving, entry_t *e, uint8_t *frame, int64_t *left) noexcept with gil:
    """Inflate a batch, check its records, and compress it anew when the topic wants another codec.

    `left`: the bytes that a processor may still inflate for this request, reduced by this batch. Returns 0, or
    TOO_LARGE_HERE when the batch inflates to more than SMALL_INFLATED. `left` NULL: a handler thread; the limit is the
    broker's own, and a larger batch is refused.
    """
    cdef uint8_t *batch = frame + e.batch_at
    cdef const uint8_t[::1] plain
    cdef const uint8_t[::1] made
    cdef int codec = e.info.attributes & ATTRIBUTE_CODEC_MASK
    cdef int64_t allowed = min(SMALL_INFLATED, serving.max_inflated_size) if left != NULL else serving.max_inflated_size
    try:
        records = PyMemoryView_FromMemory(<char *>batch + BATCH_HEADER_SIZE, e.info.size - BATCH_HEADER_SIZE,
                                          PyBUF_READ)
        try:
            inflated = serving.inflate(codec, records, allowed)
        except KbrokerError as error:
            if left != NULL:
                left[0] -= SMALL_INFLATED
                if error.code == MESSAGE_TOO_LARGE:
                    return TOO_LARGE_HERE
            e.unchecked = False
            refuse(e, error.code, False)
            return 0
        plain = inflated
        if left != NULL:
            left[0] -= max(plain.shape[0], <Py_ssize_t>LEAST_INFLATED)
        with nogil:
            check_records(e, &plain[0] if plain.shape[0] else batch, plain.shape[0], wall_ms())
        if e.error or not must_recompress(e):
            return 0
        header = PyMemoryView_FromMemory(<char *>batch, BATCH_HEADER_SIZE, PyBUF_READ)
        made = serving.recompress(
            header, inflated, <int>e.partition.options.compression, <int>e.partition.options.compression_level
        )
        keep_made(e, made)
    except BaseException as error:
        report(serving, "checking a compressed batch", error)
        e.unchecked = False
        refuse(e, UNKNOWN_SERVER_ERROR, False)
    return 0


cdef void convert(Serving serving, entry_t *e, uint8_t *frame) noexcept with gil:
    """Convert messages of magic 0 or 1 to the batch to append, in their own codec unless the topic wants another."""
    cdef const uint8_t[::1] batch
    cdef log_options_t *options = &e.partition.options
    e.unchecked = False
    try:
        messages = PyMemoryView_FromMemory(<char *>frame + e.batch_at, e.batch_size, PyBUF_READ)
        try:
            converted, codec = serving.convert(messages, options.max_message_bytes, serving.max_inflated_size)
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
            batch = serving.recompress(view[:BATCH_HEADER_SIZE], view[BATCH_HEADER_SIZE:], codec, level)
        keep_made(e, batch)
        if e.info.size > options.max_message_bytes:
            refuse(e, MESSAGE_TOO_LARGE, True)
    except BaseException as error:
        report(serving, "converting messages", error)
        refuse(e, UNKNOWN_SERVER_ERROR, False)


cdef int keep_made(entry_t *e, const uint8_t[::1] batch) except -1:
    """Keep `batch`, which was made anew, to be appended in place of the one in the frame.

    Its records are those that were checked.
    """
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
