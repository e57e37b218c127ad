"""The two passes of compaction: one puts the newest offset of each key into a map, one copies what stays.

What stays follows Apache Kafka 3.9 (Cleaner, MemoryRecords.filterTo):
- a record beyond the map's `latest_offset` stays. Any other record stays when it has a key, the map has no newer offset
  of that key, and it is not a tombstone (null value) whose batch's delete horizon has passed;
- a batch that keeps a tombstone gets a delete horizon (KIP-534) when it has none: now plus delete.retention.ms, written
  as its base timestamp. The marker of a transaction whose records are all gone gets one too;
- the records of an aborted transaction are removed. Its marker is removed once they are gone and its delete horizon has
  passed;
- a batch with the last sequence of a living producer stays as a header alone when it loses all its records;
- offsets, last offset delta, producer, epoch and codec of a batch do not change. A batch that loses no record is copied
  unchanged, unless it gets a delete horizon.

Messages of magic 0 and 1 keep their magic (`message_copy`). They have no delete horizon: the caller says whether their
tombstones stay.
A batch is verified before it is read, so that damaged bytes never get a new, valid CRC.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kbroker._core.log.compaction.cleaned_transactions cimport (
    LastBatches, Transactions, data_is_aborted, is_last_of_producer, marker_is_spent,
)
from kbroker._core.log.compaction.copied_bytes cimport copied_keep, copied_t, copied_writer
from kbroker._core.log.compaction.dedupe_map cimport (
    DedupeMap, dedupe_get, dedupe_hash, dedupe_hash_t, dedupe_map_t, dedupe_prefetch, dedupe_enter,
)
from kbroker._core.log.compaction.message_copy cimport DEDUPE_MAP_FULL, copy_message, feed_message, message_pass_t
from kbroker._core.wire.crc cimport crc32c
from kbroker._core.wire.cursor cimport (
    load_u32, store_u16, store_u32, store_u64, write_i32, write_raw, writer_free, writer_reserve, writer_t,
)
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.record cimport control_type, record_t, take_fields
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_COUNT, BATCH_BAD_LENGTH, BATCH_BAD_RECORD, BATCH_OK, BATCH_OLD_MAGIC, BATCH_TOO_SHORT, batch_info_t,
    batch_verify,
)
from kbroker._core.wire.varint cimport put_varlong, varlong_size

from kbroker._core.wire.record_batch import InvalidBatch
from kbroker.errors import BadInput

cdef enum:
    NO_HORIZON = -1
    GROUP = 32                   # records whose keys are hashed before the first one is looked up

# --- one batch ------------------------------------------------------------------------------------------

cdef struct buffers_t:
    copied_t copied
    writer_t plain               # records of a batch before they are compressed
    writer_t kept                # int32 positions in pass_t.records of the records that stay

cdef struct pass_t:
    dedupe_map_t *map
    int64_t start_offset         # keys of records below are not put into the map
    int64_t now_ms
    int64_t horizon_ms           # the delete horizon for batches that get one now
    # Of the batch at hand:
    batch_info_t info
    const uint8_t *records       # its records, inflated; they end at `end`
    const uint8_t *end
    Py_buffer inflated
    bint is_inflated
    bint has_tombstones
    # Of the whole pass:
    message_pass_t old           # for messages of magic 0 and 1
    buffers_t *to                # the output of a copy; NULL in the pass that fills the map
    int64_t batches_read
    int64_t records_read
    int64_t batches_kept
    int64_t records_kept


cdef int inflate_batch(pass_t *run, const uint8_t *batch, object inflate) except -1 with gil:
    cdef const uint8_t *payload = batch + BATCH_HEADER_SIZE
    view = PyMemoryView_FromMemory(<char *>payload, run.info.size - BATCH_HEADER_SIZE, PyBUF_READ)
    PyObject_GetBuffer(inflate(run.info.attributes & ATTRIBUTE_CODEC_MASK, view), &run.inflated, PyBUF_SIMPLE)
    run.is_inflated = True
    run.records = <const uint8_t *>run.inflated.buf
    run.end = run.records + run.inflated.len
    return 0


cdef int release_batch(pass_t *run) except -1 with gil:
    if run.is_inflated:
        run.is_inflated = False
        PyBuffer_Release(&run.inflated)
    return 0


cdef int open_batch(pass_t *run, const uint8_t *batch, object inflate) except -1 nogil:
    """Set `records` and `end` for the batch whose header is in `info`. Return BATCH_OK or a finding."""
    cdef batch_info_t *info = &run.info
    if (info.base_offset < 0 or info.last_offset_delta < 0 or info.record_count < 0
            or info.base_offset > INT64_MAX - 1 - info.last_offset_delta):
        return BATCH_BAD_COUNT
    run.records = batch + BATCH_HEADER_SIZE
    run.end = batch + info.size
    if info.record_count == 0:
        return BATCH_OK if run.records == run.end else BATCH_BAD_COUNT
    if info.attributes & ATTRIBUTE_CODEC_MASK:
        inflate_batch(run, batch, inflate)
        if run.end - run.records > INT32_MAX:
            return BATCH_BAD_LENGTH
    return BATCH_OK


cdef int judge(pass_t *run, Transactions transactions, bint *discardable) except -1 nogil:
    """Set `discardable` if the open batch belongs to an aborted transaction, or is the marker of one without records.

    Return BATCH_OK or a finding.
    """
    cdef int marker
    discardable[0] = False
    if run.info.attributes & ATTRIBUTE_CONTROL:
        if run.info.record_count == 0:
            discardable[0] = True    # an earlier cleaning left the header alone
            return BATCH_OK
        marker = control_type(run.records, run.end)    # an unknown type never ends a transaction
        if marker < 0:
            return BATCH_BAD_RECORD
        discardable[0] = marker_is_spent(transactions, &run.info, marker)
    elif run.info.attributes & ATTRIBUTE_TRANSACTIONAL:
        discardable[0] = data_is_aborted(transactions, &run.info)
    return BATCH_OK

# --- records of the open batch, a group at a time -------------------------------------------------------

cdef struct group_t:
    # The records at hand.
    const uint8_t *next          # the first byte after the group
    int32_t left                 # records of the batch after the group
    int32_t last_delta           # of the group's last record
    int count
    record_t[GROUP] records
    int32_t[GROUP] positions     # of the records, in bytes from pass_t.records
    dedupe_hash_t[GROUP] hashes  # of their keys


cdef void group_init(group_t *group, const pass_t *run) noexcept nogil:
    group.next = run.records
    group.left = run.info.record_count
    group.last_delta = -1


cdef int group_fill(group_t *group, const pass_t *run) noexcept nogil:
    """Read the next group. Return BATCH_OK, or a finding when the bytes after the group are not a valid record.

    Record headers are not parsed, here or later: they are only copied.
    """
    cdef const uint8_t *p
    cdef record_t *record
    cdef int finding = BATCH_OK
    group.count = 0
    while group.count < GROUP and group.left > 0:
        record = &group.records[group.count]
        p = take_fields(group.next, run.end, record)
        if p == NULL:
            finding = BATCH_BAD_RECORD
            break
        if record.offset_delta <= group.last_delta or record.offset_delta > run.info.last_offset_delta:
            finding = BATCH_BAD_COUNT
            break
        # A record without a key gets the hash of no bytes, which nobody uses.
        group.hashes[group.count] = dedupe_hash(run.map, record.key, max(record.key_size, 0))
        group.positions[group.count] = <int32_t>(group.next - run.records)
        group.last_delta = record.offset_delta
        group.next = p
        group.left -= 1
        group.count += 1
    dedupe_prefetch(run.map, group.hashes, group.count)
    if finding == BATCH_OK and group.left == 0 and group.next != run.end:
        finding = BATCH_BAD_RECORD
    return finding

# --- first pass: into the map ---------------------------------------------------------------------------

cdef int feed_batch(pass_t *run, const uint8_t *batch, Transactions transactions, object inflate) except -1 nogil:
    cdef batch_info_t *info = &run.info
    cdef group_t group
    cdef record_t *record
    cdef int64_t offset
    cdef int at
    cdef bint aborted = False
    cdef int finding
    if info.base_offset + info.last_offset_delta < run.start_offset and not (
        info.attributes & (ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL)
    ):
        return BATCH_OK
    finding = open_batch(run, batch, inflate)
    if finding == BATCH_OK:
        finding = judge(run, transactions, &aborted)
    if finding != BATCH_OK:
        return finding
    run.records_read += info.record_count
    if not aborted and not info.attributes & ATTRIBUTE_CONTROL:
        group_init(&group, run)
        while finding == BATCH_OK and group.left > 0:
            finding = group_fill(&group, run)
            for at in range(group.count):
                record = &group.records[at]
                offset = info.base_offset + record.offset_delta
                if record.key_size >= 0 and offset >= run.start_offset:
                    if not dedupe_enter(run.map, &group.hashes[at], offset):
                        if offset - 1 > run.map.latest_offset:
                            run.map.latest_offset = offset - 1
                        return DEDUPE_MAP_FULL
        if finding != BATCH_OK:
            return finding
    offset = info.base_offset + info.last_offset_delta
    if offset >= run.start_offset and offset > run.map.latest_offset:
        run.map.latest_offset = offset
    return BATCH_OK

# --- second pass: the copy ------------------------------------------------------------------------------

cdef inline bint stays(const pass_t *run, const record_t *record, const dedupe_hash_t *hash) noexcept nogil:
    cdef int64_t offset = run.info.base_offset + record.offset_delta
    if offset > run.map.latest_offset:
        return True
    if record.key_size < 0 or offset < dedupe_get(run.map, hash):
        return False
    return (record.value_size >= 0 or not run.info.attributes & ATTRIBUTE_DELETE_HORIZON
            or run.now_ms < run.info.base_timestamp)


cdef int choose(pass_t *run, bint all_stay) noexcept nogil:
    """Write the positions of the records that stay to `kept`; set `has_tombstones` when one of them has no value."""
    cdef group_t group
    cdef record_t *record
    cdef int finding = BATCH_OK
    cdef int at
    run.to.kept.size = 0
    run.has_tombstones = False
    group_init(&group, run)
    while finding == BATCH_OK and group.left > 0:
        finding = group_fill(&group, run)
        for at in range(group.count):
            record = &group.records[at]
            if all_stay or stays(run, record, &group.hashes[at]):
                write_i32(&run.to.kept, group.positions[at])
                if record.value_size < 0:
                    run.has_tombstones = True
    return finding


cdef void write_header(const pass_t *run, uint8_t *at, int attributes, int64_t base_timestamp, int64_t max_timestamp,
                       int32_t count, int64_t size) noexcept nogil:
    """Write the header of a batch whose records follow it in the output already."""
    cdef const batch_info_t *info = &run.info
    store_u64(at + BATCH_BASE_OFFSET, <uint64_t>info.base_offset)
    store_u32(at + BATCH_LENGTH, <uint32_t>(size - LOG_OVERHEAD))
    store_u32(at + BATCH_LEADER_EPOCH, <uint32_t>info.leader_epoch)
    at[BATCH_MAGIC] = 2
    store_u16(at + BATCH_ATTRIBUTES, <uint16_t>attributes)
    store_u32(at + BATCH_LAST_OFFSET_DELTA, <uint32_t>info.last_offset_delta)
    store_u64(at + BATCH_BASE_TIMESTAMP, <uint64_t>base_timestamp)
    store_u64(at + BATCH_MAX_TIMESTAMP, <uint64_t>max_timestamp)
    store_u64(at + BATCH_PRODUCER_ID, <uint64_t>info.producer_id)
    store_u16(at + BATCH_PRODUCER_EPOCH, <uint16_t>info.producer_epoch)
    store_u32(at + BATCH_BASE_SEQUENCE, <uint32_t>info.base_sequence)
    store_u32(at + BATCH_RECORD_COUNT, <uint32_t>count)
    store_u32(at + BATCH_CRC, crc32c(0, at + BATCH_ATTRIBUTES, <size_t>(size - BATCH_ATTRIBUTES)))


cdef void write_record(writer_t *out, const record_t *record, int64_t timestamp_delta) noexcept nogil:
    cdef int64_t rest_size = record.stop - record.rest
    cdef int64_t size = 1 + varlong_size(timestamp_delta) + varlong_size(record.offset_delta) + rest_size
    cdef uint8_t *p = writer_reserve(out, <size_t>(varlong_size(size) + size))
    if p == NULL:
        return
    p += put_varlong(p, size)
    p[0] = record.attributes
    p += 1
    p += put_varlong(p, timestamp_delta)
    p += put_varlong(p, record.offset_delta)
    memcpy(p, record.rest, <size_t>rest_size)


cdef int64_t timestamp_of(const pass_t *run, const record_t *record) noexcept nogil:
    if run.info.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return run.info.max_timestamp
    return <int64_t>(<uint64_t>run.info.base_timestamp + <uint64_t>record.timestamp_delta)


cdef int compress_plain(pass_t *run, writer_t *out, object deflate) except -1 with gil:
    """Append the bytes of `plain`, compressed, to `out`."""
    cdef Py_buffer view
    # A copy, because not every codec takes a view.
    records = PyBytes_FromStringAndSize(<char *>run.to.plain.data, <Py_ssize_t>run.to.plain.size)
    PyObject_GetBuffer(deflate(run.info.attributes & ATTRIBUTE_CODEC_MASK, records), &view, PyBUF_SIMPLE)
    write_raw(out, view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return 0


cdef int rewrite(pass_t *run, int64_t horizon_ms, object deflate) except -1 nogil:
    """Write the batch with only its `kept` records. `horizon_ms` is its delete horizon, NO_HORIZON: none."""
    cdef const batch_info_t *info = &run.info
    cdef bint is_compressed = info.attributes & ATTRIBUTE_CODEC_MASK != 0
    cdef bint has_horizon = horizon_ms >= 0
    cdef writer_t *out = copied_writer(&run.to.copied)
    cdef writer_t *into = &run.to.plain if is_compressed else out
    cdef size_t start = out.size
    cdef int32_t count = <int32_t>(run.to.kept.size // 4)
    cdef int64_t base_timestamp = horizon_ms
    cdef int64_t max_timestamp = -1
    cdef int64_t timestamp
    cdef int64_t size
    cdef int32_t i
    cdef record_t record
    cdef int attributes = info.attributes & (ATTRIBUTES_IN_USE & ~ATTRIBUTE_DELETE_HORIZON)
    writer_reserve(out, BATCH_HEADER_SIZE)
    run.to.plain.size = 0
    for i in range(count):
        if take_fields(run.records + load_u32(run.to.kept.data + 4 * <size_t>i), run.end, &record) == NULL:
            return BATCH_BAD_RECORD
        timestamp = timestamp_of(run, &record)
        if i == 0 and not has_horizon:
            base_timestamp = timestamp
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        write_record(into, &record, <int64_t>(<uint64_t>timestamp - <uint64_t>base_timestamp))
    if info.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        max_timestamp = info.max_timestamp
    if is_compressed and not run.to.plain.failed:
        compress_plain(run, out, deflate)
    if out.failed or run.to.plain.failed:
        return out_of_memory()
    size = <int64_t>(out.size - start)
    if size > INT32_MAX - LOG_OVERHEAD:
        return BATCH_BAD_LENGTH
    if has_horizon:
        attributes |= ATTRIBUTE_DELETE_HORIZON
    write_header(run, out.data + start, attributes, base_timestamp, max_timestamp, count, size)
    return BATCH_OK


cdef int out_of_memory() except -1 with gil:
    raise MemoryError


cdef int copy_batch(pass_t *run, const uint8_t *batch, Transactions transactions, LastBatches producers, object inflate,
                    object deflate) except -1 nogil:
    cdef batch_info_t *info = &run.info
    cdef uint8_t *at
    cdef bint is_control = info.attributes & ATTRIBUTE_CONTROL != 0
    cdef bint has_horizon = info.attributes & ATTRIBUTE_DELETE_HORIZON != 0
    cdef bint discardable = False
    cdef bint is_discarded
    cdef bint needs_horizon
    cdef int finding = open_batch(run, batch, inflate)
    if finding == BATCH_OK:
        finding = judge(run, transactions, &discardable)
    if finding != BATCH_OK:
        return finding
    run.records_read += info.record_count
    is_discarded = discardable and (not is_control or (has_horizon and info.base_timestamp <= run.now_ms))
    run.to.kept.size = 0
    if not is_discarded:
        finding = choose(run, is_control)
        if finding != BATCH_OK:
            return finding
        if run.to.kept.failed:
            return out_of_memory()
    if run.to.kept.size:
        run.batches_kept += 1
        run.records_kept += <int64_t>(run.to.kept.size // 4)
        needs_horizon = not has_horizon and (run.has_tombstones or (discardable and is_control))
        if run.to.kept.size == 4 * <size_t>info.record_count and not needs_horizon:
            copied_keep(&run.to.copied, batch, info.size)
            return BATCH_OK
        return rewrite(run, run.horizon_ms if needs_horizon else info.base_timestamp if has_horizon else NO_HORIZON,
                       deflate)
    if is_last_of_producer(producers, info):
        run.batches_kept += 1
        at = writer_reserve(copied_writer(&run.to.copied), BATCH_HEADER_SIZE)
        if at != NULL:
            write_header(run, at,
                         info.attributes & (ATTRIBUTE_LOG_APPEND_TIME | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL),
                         -1, info.max_timestamp, 0, BATCH_HEADER_SIZE)
    return BATCH_OK

# --- for Python -----------------------------------------------------------------------------------------

cdef int walk(pass_t *run, const uint8_t *data, int64_t size, Transactions transactions, LastBatches producers,
              object inflate, object deflate, int64_t *position) except -1 nogil:
    """Feed or copy batches until one is cut off (BATCH_OK), or return the first finding.

    `position` is where it stopped.
    """
    cdef const uint8_t *batch
    cdef int finding
    while position[0] < size:
        batch = data + position[0]
        finding = batch_verify(batch, size - position[0], &run.info)
        if finding == BATCH_TOO_SHORT:
            return BATCH_OK
        if finding == BATCH_OLD_MAGIC:
            if run.to != NULL:
                finding = copy_message(&run.old, batch, size - position[0], &run.to.copied, inflate, deflate)
            else:
                finding = feed_message(&run.old, batch, size - position[0], inflate)
            if finding == BATCH_TOO_SHORT:
                return BATCH_OK
            if finding != BATCH_OK:
                return finding
            run.info.size = run.old.size
        elif finding == BATCH_OK:
            if run.to != NULL:
                finding = copy_batch(run, batch, transactions, producers, inflate, deflate)
            else:
                finding = feed_batch(run, batch, transactions, inflate)
            if run.is_inflated:
                release_batch(run)
            if finding != BATCH_OK:
                return finding
        else:
            return finding
        if run.to != NULL and run.to.copied.made.failed:
            return out_of_memory()
        run.batches_read += 1
        position[0] += run.info.size
    return BATCH_OK


cdef void pass_init(pass_t *run, DedupeMap map, buffers_t *to) noexcept:
    memset(&run.old, 0, sizeof(run.old))
    run.map = run.old.map = &map.map
    run.to = to
    run.start_offset = 0
    run.is_inflated = False
    run.batches_read = run.records_read = run.batches_kept = run.records_kept = 0


def feed_map(segment, DedupeMap map not None, *, inflate, int64_t start_offset=0, Transactions transactions=None):
    """Put keys and offsets of the batches in `segment` from `start_offset` on into the map.

    The map's `latest_offset` moves on as far as it got. Return (bytes taken, records read, whether the map is full). A
    batch that is cut off at the end is not taken, nor is the rest when the map is full. `inflate(codec, data)` returns
    the records of a compressed batch; for messages of magic 0 and 1 the magic is its third argument. Raises
    InvalidBatch when a batch is damaged or when `inflate` raises BadInput, which is its cause then.
    """
    cdef Py_buffer view
    cdef pass_t run
    cdef int64_t position = 0
    cdef int finding
    cdef LastBatches producers = LastBatches()
    transactions = Transactions() if transactions is None else transactions
    pass_init(&run, map, NULL)
    run.start_offset = run.old.start_offset = start_offset
    PyObject_GetBuffer(segment, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            finding = walk(&run, <const uint8_t *>view.buf, view.len, transactions, producers, inflate, None, &position)
    except BadInput as error:
        raise InvalidBatch(BATCH_BAD_RECORD, position) from error
    finally:
        release_batch(&run)
        PyBuffer_Release(&view)
    if finding != BATCH_OK and finding != DEDUPE_MAP_FULL:
        raise InvalidBatch(finding, position)
    return position, run.records_read + run.old.records_read, finding == DEDUPE_MAP_FULL


@cython.final
cdef class SegmentCopy:
    """The result of copy_segment: `output` is what stays of the first `taken` bytes of the segment.

    `output` lies in memory of this object or in the segment. Pass the object as `into` to use its memory for the next
    copy.
    """

    cdef buffers_t buffers
    cdef Py_buffer source        # the segment
    cdef bint has_source
    cdef int exports             # views of `output` that are alive
    cdef readonly int64_t taken
    cdef readonly int64_t batches_read
    cdef readonly int64_t records_read
    cdef readonly int64_t batches_kept
    cdef readonly int64_t records_kept

    def __dealloc__(self):
        self.forget()
        writer_free(&self.buffers.copied.made)
        writer_free(&self.buffers.plain)
        writer_free(&self.buffers.kept)

    cdef void forget(self) noexcept:
        self.buffers.copied.piece = NULL
        self.buffers.copied.made.size = 0
        self.buffers.copied.made.failed = self.buffers.plain.failed = self.buffers.kept.failed = False
        if self.has_source:
            self.has_source = False
            PyBuffer_Release(&self.source)

    def __getbuffer__(self, Py_buffer *view, int flags):
        cdef const copied_t *copied = &self.buffers.copied
        cdef const uint8_t *data = b""
        cdef Py_ssize_t size = 0
        if copied.piece != NULL:
            data = copied.piece
            size = copied.piece_end - data
        elif copied.made.size:
            data = copied.made.data
            size = <Py_ssize_t>copied.made.size
        PyBuffer_FillInfo(view, self, <void *>data, size, True, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1

    @property
    def output(self):
        """A view of the copy. Release it before the next copy is made; do not change the segment until then."""
        return memoryview(self)


def copy_segment(segment, DedupeMap map not None, *, inflate, deflate, int64_t now_ms, int64_t delete_retention_ms,
                 bint retain_old_tombstones=True, Transactions transactions=None, LastBatches producers=None,
                 SegmentCopy into=None):
    """Copy what stays of the batches in `segment`. A batch that is cut off at the end is not taken.

    `inflate(codec, data)` and `deflate(codec, data)` are called for compressed batches; for messages of magic 0 and 1
    the magic is their third argument. `retain_old_tombstones`: tombstones of magic 0 and 1 stay. `into` is an earlier
    copy that is not needed any more. Raises InvalidBatch when a batch is damaged or when one of the two raises
    BadInput, which is its cause then; ValueError when a time is negative; BufferError when the output of `into` is
    still in use.
    """
    cdef pass_t run
    cdef int64_t position = 0
    cdef int finding
    cdef SegmentCopy made = SegmentCopy() if into is None else into
    if now_ms < 0 or delete_retention_ms < 0:
        raise ValueError("times are not negative")
    if made.exports:
        raise BufferError("the earlier copy is still read")
    made.forget()
    transactions = Transactions() if transactions is None else transactions
    producers = LastBatches() if producers is None else producers
    pass_init(&run, map, &made.buffers)
    run.now_ms = now_ms
    run.old.retain_tombstones = retain_old_tombstones
    run.horizon_ms = INT64_MAX if delete_retention_ms > INT64_MAX - now_ms else now_ms + delete_retention_ms
    PyObject_GetBuffer(segment, &made.source, PyBUF_SIMPLE)
    made.has_source = True
    try:
        with nogil:
            finding = walk(&run, <const uint8_t *>made.source.buf, made.source.len, transactions, producers, inflate,
                           deflate, &position)
        if finding != BATCH_OK:
            raise InvalidBatch(finding, position)
        if made.buffers.copied.made.size and copied_writer(&made.buffers.copied).failed:
            raise MemoryError
    except BadInput as error:
        if isinstance(error, InvalidBatch):
            raise
        raise InvalidBatch(BATCH_BAD_RECORD, position) from error
    finally:
        release_batch(&run)
    made.taken = position
    made.batches_read = run.batches_read
    made.records_read = run.records_read + run.old.records_read
    made.batches_kept = run.batches_kept + run.old.messages_kept
    made.records_kept = run.records_kept + run.old.records_kept
    return made
