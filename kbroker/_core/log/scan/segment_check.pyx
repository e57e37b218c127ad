"""Checks a segment, its .index and its .timeindex in one pass, which goes on behind an error. For `kbroker verify-log`.

segment_scan.pyx stops at the first bad batch. This pass also walks the records, inflates compressed ones, and reports
every finding with its file and byte.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memset, strerror

from kbroker._core.log.scan.file_window cimport CHUNK, window_at, window_close, window_open
from kbroker._core.log.scan.index_check cimport check_entry_order, end_indexes, hold_index, hold_time_index, skip_index
from kbroker._core.log.scan.segment_check cimport *
from kbroker._core.wire.cursor cimport load_u32, load_u64, write_i32, write_i64, writer_free, writer_init
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.message_set cimport message_check, message_header, message_t, set_info_t, set_walk
from kbroker._core.wire.record cimport control_type, record_t, take_record
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_CODEC, BATCH_BAD_COUNT, BATCH_BAD_CRC, BATCH_BAD_LENGTH, BATCH_BAD_MAGIC, BATCH_BAD_RECORD,
    BATCH_FINDINGS, BATCH_OK, BATCH_OLD_MAGIC, BATCH_TOO_SHORT, batch_header, batch_info_t, batch_verify,
)
from kbroker._core.wire.transaction_marker cimport MARKER_ABORT

from typing import NamedTuple

from kbroker._core.wire.record_batch import FINDINGS as _BATCH_FINDINGS
from kbroker.errors import BadInput

cdef enum:
    SLICE = 16777216             # bytes between two returns to Python
    LARGEST = 536870912          # bytes; a batch that is larger is not read
    DATA = 0                     # kinds of transaction events
    ABORT = 1
    COMMIT = 2

LOG, INDEX, TIME_INDEX = IN_LOG, IN_INDEX, IN_TIME_INDEX
TRANSACTION_DATA, TRANSACTION_ABORT, TRANSACTION_COMMIT = DATA, ABORT, COMMIT

#: The text of each finding for people; `a` and `b` are its numbers.
TEXTS = {
    **{number: text for number, (_, _, text) in enumerate(_BATCH_FINDINGS)},
    **{CHECK_INSIDE + number: text for number, (_, _, text) in enumerate(_BATCH_FINDINGS)},
    BATCH_TOO_SHORT: "the last batch is cut off: {a} bytes of it are there",
    BATCH_BAD_LENGTH: "impossible length {a}; {b} bytes from here on are not read",
    BATCH_BAD_MAGIC: "unknown magic {a}; {b} bytes from here on are not read",
    BATCH_BAD_COUNT: "record count {a} and last offset delta {b} do not agree",
    CHECK_OFFSET_BACK: "offset {a} where {b} or more is due",
    CHECK_GAP: "offset {a} where {b} is due, and nothing tells that the log was compacted",
    CHECK_OFFSET_RANGE: "last offset {a} is out of the segment's range",
    CHECK_DELTAS: "offsets of the records do not ascend within those of the batch",
    CHECK_MISSING: "{a} records for {b} offsets, and nothing tells that the log was compacted",
    CHECK_TIMESTAMP: "max timestamp {a}, but the largest of the records is {b}",
    CHECK_CONTROL: "a control batch without a whole control record",
    CHECK_COMPRESSED: "the records do not inflate",
    CHECK_LARGE: "a batch of {a} bytes, more than are read; {b} bytes from here on are not",
    CHECK_CUT: "the last batch is cut off: {a} bytes of it are there",
    CHECK_UNREAD: "CRC does not match, and no batch follows; {a} bytes from here on are not read",
    CHECK_ZEROS: "{a} bytes of zeros to the end",
    CHECK_INNER_OFFSETS: "offsets of the messages inside do not ascend within the set's",
    CHECK_OVER_NEXT: "last offset {a}, but the next segment begins at {b}",
    CHECK_EPOCH: "leader epoch {a}",
    CHECK_NOT_BATCH: "no batch begins at byte {a} of the log",
    CHECK_NOT_LAST: "offset {a}, but the batch there ends at offset {b}",
    CHECK_ENTRY_ORDER: "entry {a} does not come after the one before",
    CHECK_BEYOND: "points at byte {a} of a log of {b}",
    CHECK_NO_TIME: "the log has no batch with offset {a} and max timestamp {b}",
    CHECK_LATE_TIME: "timestamp {b}, but {a} stands before that offset",
    CHECK_TIME_BEYOND: "offset {a} is beyond the segment, which ends at {b}",
}


cdef inline bint fill(check_t *check, int64_t size) noexcept nogil:
    """Read `size` bytes from check.position on; `here` returns them afterwards. False: reading has failed."""
    return window_at(&check.window, check.position, size) != NULL


cdef inline const uint8_t *here(check_t *check) noexcept nogil:
    return check.window.data + (check.position - check.window.start)


cdef bint only_zeros(check_t *check) noexcept nogil:
    """Return whether all bytes from check.position to the end are zero. May replace the bytes at `here`."""
    cdef int64_t at = check.position
    cdef int64_t size, i
    cdef bint zeros = True
    while check.position < check.window.end and zeros:
        size = min(<int64_t>CHUNK, check.window.end - check.position)
        if not fill(check, size):
            return False
        for i in range(size):
            if here(check)[i]:
                zeros = False
                break
        check.position += size
    check.position = at
    return zeros

# --- one batch ------------------------------------------------------------------------------------------

cdef int walk_records(check_t *check, const uint8_t *records, int64_t size, const batch_info_t *info,
                      seen_t *seen) noexcept nogil:
    """Check the records of a batch: their offsets have to ascend, some may be missing. Return BATCH_OK or a finding."""
    cdef const uint8_t *p = records
    cdef const uint8_t *end = records + size
    cdef record_t record
    cdef int32_t before = -1
    cdef int32_t left = info.record_count
    cdef int64_t timestamp
    cdef int64_t max_timestamp = -1
    while left > 0:
        left -= 1
        p = take_record(p, end, &record)
        if p == NULL:
            return BATCH_BAD_RECORD
        if record.offset_delta <= before or record.offset_delta > info.last_offset_delta:
            return CHECK_DELTAS
        before = record.offset_delta
        timestamp = <int64_t>(<uint64_t>info.base_timestamp + <uint64_t>record.timestamp_delta)
        if timestamp > max_timestamp:
            max_timestamp = timestamp
    if p != end:
        return BATCH_BAD_RECORD
    if before >= 0:
        seen.last_record_offset = info.base_offset + before
    if info.record_count and not info.attributes & ATTRIBUTE_LOG_APPEND_TIME and max_timestamp != info.max_timestamp:
        found(check, IN_LOG, CHECK_TIMESTAMP, check.position, info.max_timestamp, max_timestamp)
    return BATCH_OK


cdef int walk_inflated(check_t *check, const batch_info_t *info, seen_t *seen, object inflate) except -1 with gil:
    cdef Py_buffer view
    cdef int finding
    payload = PyMemoryView_FromMemory(<char *>(here(check) + BATCH_HEADER_SIZE), info.size - BATCH_HEADER_SIZE,
                                      PyBUF_READ)
    try:
        inflated = inflate(info.attributes & ATTRIBUTE_CODEC_MASK, payload, 2)
    except BadInput:
        return CHECK_COMPRESSED
    PyObject_GetBuffer(inflated, &view, PyBUF_SIMPLE)
    with nogil:
        finding = walk_records(check, <const uint8_t *>view.buf, view.len, info, seen)
    PyBuffer_Release(&view)
    return finding


cdef void transaction_event(check_t *check, int kind, const batch_info_t *info) noexcept nogil:
    cdef int64_t *known = &check.known_open[info.producer_id & (KNOWN_OPEN - 1)]
    if kind == DATA:
        if known[0] == info.producer_id:
            return
        known[0] = info.producer_id
    elif known[0] == info.producer_id:
        known[0] = -1
    write_i32(&check.events, kind)
    write_i64(&check.events, check.position)
    write_i64(&check.events, info.base_offset)
    write_i64(&check.events, info.base_offset + info.last_offset_delta)
    write_i64(&check.events, info.producer_id)


cdef int look_at_batch(check_t *check, const batch_info_t *info, seen_t *seen, object inflate) except -1 nogil:
    """Check a batch whose CRC is right and set `seen`. Return BATCH_OK or a finding."""
    cdef const uint8_t *records = here(check) + BATCH_HEADER_SIZE
    cdef int codec = info.attributes & ATTRIBUTE_CODEC_MASK
    cdef int finding
    cdef int marker
    seen.first_offset = info.base_offset
    seen.last_offset = info.base_offset + info.last_offset_delta
    seen.last_record_offset = seen.last_offset
    seen.max_timestamp = info.max_timestamp
    seen.records = info.record_count
    seen.epoch = info.leader_epoch
    seen.old = False
    if info.record_count < 0 or info.last_offset_delta < 0 or info.record_count - 1 > info.last_offset_delta:
        return BATCH_BAD_COUNT
    if codec > 4:
        return BATCH_BAD_CODEC
    if codec and info.record_count:
        finding = walk_inflated(check, info, seen, inflate)
    else:
        finding = walk_records(check, records, info.size - BATCH_HEADER_SIZE, info, seen)
    if finding != BATCH_OK:
        return finding
    if not check.gaps and info.record_count - 1 != info.last_offset_delta:
        found(check, IN_LOG, CHECK_MISSING, check.position, info.record_count, <int64_t>info.last_offset_delta + 1)
    if info.attributes & ATTRIBUTE_CONTROL:
        if info.record_count:
            marker = control_type(records, here(check) + info.size) if not codec else -1
            if marker < 0 or info.record_count > 1:
                return CHECK_CONTROL
            if marker <= 1:
                transaction_event(check, ABORT if marker == MARKER_ABORT else COMMIT, info)
    elif info.attributes & ATTRIBUTE_TRANSACTIONAL:
        transaction_event(check, DATA, info)
    return BATCH_OK


cdef int walk_inner(const uint8_t *data, int64_t size, const message_t *wrapper, bint gaps,
                    seen_t *seen) noexcept nogil:
    cdef set_info_t info
    cdef int64_t first           # the first offset as the bytes have it
    cdef int finding = set_walk(data, size, wrapper, &info)
    if finding != BATCH_OK:
        return finding
    first = <int64_t>(<uint64_t>info.first_offset - <uint64_t>info.base_offset)
    if (first < 0 or not info.ascends or info.last_offset > wrapper.offset
            or not gaps and info.last_offset != wrapper.offset):
        return CHECK_INNER_OFFSETS
    seen.first_offset = info.first_offset
    seen.records = info.count
    return BATCH_OK


cdef int walk_set(const uint8_t *data, const message_t *wrapper, bint gaps, seen_t *seen,
                  object inflate) except -1 with gil:
    cdef Py_buffer view
    cdef int finding
    payload = PyMemoryView_FromMemory(<char *>(data + wrapper.value_position), wrapper.value_size, PyBUF_READ)
    try:
        inflated = inflate(wrapper.attributes & ATTRIBUTE_CODEC_MASK, payload, wrapper.magic)
    except BadInput:
        return CHECK_COMPRESSED
    PyObject_GetBuffer(inflated, &view, PyBUF_SIMPLE)
    with nogil:
        finding = walk_inner(<const uint8_t *>view.buf, view.len, wrapper, gaps, seen)
    PyBuffer_Release(&view)
    return finding


cdef int look_at_message(check_t *check, const message_t *message, seen_t *seen, object inflate) except -1 nogil:
    """Set `seen` for a message of magic 0 or 1 with a right CRC; check what is inside. Return BATCH_OK or a finding."""
    seen.first_offset = seen.last_offset = seen.last_record_offset = message.offset
    seen.max_timestamp = message.timestamp
    seen.records = 1
    seen.epoch = -1
    seen.old = True
    if message.attributes & ATTRIBUTE_CODEC_MASK:
        return walk_set(here(check), message, check.gaps, seen, inflate)
    return BATCH_OK

# --- what a batch is in its log ---------------------------------------------------------------------------

cdef void end_run(check_t *check) noexcept nogil:
    if check.epoch >= 0:
        write_i32(&check.epochs, check.epoch)
        write_i64(&check.epochs, check.run_position)
        write_i64(&check.epochs, check.run_first)
        write_i64(&check.epochs, check.run_last)


cdef void place_epoch(check_t *check, const seen_t *seen) noexcept nogil:
    if seen.epoch < -1:
        found(check, IN_LOG, CHECK_EPOCH, check.position, seen.epoch, 0)
    if seen.epoch != check.epoch:
        end_run(check)
        check.epoch = seen.epoch
        check.run_position = check.position
        check.run_first = seen.first_offset
    check.run_last = seen.last_offset


cdef bint place_offsets(check_t *check, const seen_t *seen) noexcept nogil:
    """Return whether the batch's offsets fit between its neighbours'. If not, they are reported and not followed."""
    if seen.first_offset < check.next_offset:
        found(check, IN_LOG, CHECK_OFFSET_BACK, check.position, seen.first_offset, check.next_offset)
        return False
    if seen.last_offset < seen.first_offset or seen.last_offset - check.base_offset > INT32_MAX:
        found(check, IN_LOG, CHECK_OFFSET_RANGE, check.position, seen.last_offset, 0)
        return False
    if seen.last_offset >= check.end_offset:
        found(check, IN_LOG, CHECK_OVER_NEXT, check.position, seen.last_offset, check.end_offset)
        return False
    if not check.gaps and not check.unsure and seen.first_offset != check.next_offset:
        found(check, IN_LOG, CHECK_GAP, check.position, seen.first_offset, check.next_offset)
    return True

# --- the walk ---------------------------------------------------------------------------------------------

cdef int64_t pass_over(check_t *check, int64_t size) noexcept nogil:
    """Return the size of a batch with a wrong CRC if another batch follows it or the file ends there; else 0."""
    cdef int64_t at = check.position
    cdef batch_info_t info
    cdef int64_t left = check.window.end - at - size
    cdef bint follows = left == 0
    if left > BATCH_MAGIC:
        check.position += size
        if fill(check, min(left, <int64_t>BATCH_HEADER_SIZE)):
            follows = batch_header(here(check), left, &info) in (BATCH_OK, BATCH_OLD_MAGIC)
            follows = follows and <int64_t>load_u64(here(check)) >= check.next_offset
        check.position = at
    return size if follows else 0


cdef int64_t check_batch(check_t *check, object inflate) except -1 nogil:
    """Check the batch at check.position. Return its size, or 0 when the walk cannot go on."""
    cdef batch_info_t info
    cdef message_t message
    cdef seen_t seen
    cdef int64_t left = check.window.end - check.position
    cdef int64_t size
    cdef int finding
    memset(&message, 0, sizeof(message))
    if not fill(check, min(left, <int64_t>BATCH_HEADER_SIZE)):
        return 0
    finding = batch_header(here(check), left, &info)
    if finding == BATCH_OLD_MAGIC:
        finding = message_header(here(check), left, &message)
    if finding != BATCH_OK:
        size = <int32_t>load_u32(here(check) + BATCH_LENGTH) if left >= LOG_OVERHEAD else 0
        if not load_u64(here(check)) if left >= 8 else True:
            if only_zeros(check):
                if not check.zeros_allowed:
                    found(check, IN_LOG, CHECK_ZEROS, check.position, left, 0)
                return 0
            if check.window.failed or not fill(check, min(left, <int64_t>BATCH_HEADER_SIZE)):
                return 0
        if finding == BATCH_BAD_MAGIC and left > BATCH_MAGIC:
            found(check, IN_LOG, finding, check.position, here(check)[BATCH_MAGIC], left)
        elif finding == BATCH_BAD_LENGTH:
            found(check, IN_LOG, finding, check.position, size, left)
        else:
            found(check, IN_LOG, CHECK_CUT, check.position, left, 0)
        return 0
    size = LOG_OVERHEAD + <int64_t><int32_t>load_u32(here(check) + BATCH_LENGTH)
    if size > LARGEST:
        found(check, IN_LOG, CHECK_LARGE, check.position, size, left)
        return 0
    if not fill(check, size):
        return 0
    if here(check)[BATCH_MAGIC] == 2:
        finding = batch_verify(here(check), size, &info)
    else:
        finding = message_check(here(check), size, &message)
    if finding == BATCH_BAD_CRC:
        if pass_over(check, size):
            found(check, IN_LOG, BATCH_BAD_CRC, check.position, 0, 0)
        else:
            if not check.window.failed:
                found(check, IN_LOG, CHECK_UNREAD, check.position, left, 0)
            return 0
        check.unsure = True
        skip_index(check)
        return size
    if finding == BATCH_OK:
        if here(check)[BATCH_MAGIC] == 2:
            finding = look_at_batch(check, &info, &seen, inflate)
        else:
            finding = look_at_message(check, &message, &seen, inflate)
        if finding != BATCH_OK:
            if finding < BATCH_FINDINGS and finding != BATCH_BAD_COUNT:
                finding += CHECK_INSIDE
            found(check, IN_LOG, finding, check.position, info.record_count, info.last_offset_delta)
            check.unsure = check.unsure or here(check)[BATCH_MAGIC] < 2
    else:
        found(check, IN_LOG, finding, check.position, 0, 0)
        check.unsure = True
        skip_index(check)
        return size
    if place_offsets(check, &seen):
        place_epoch(check, &seen)
        if seen.max_timestamp > check.max_timestamp:
            check.max_timestamp = seen.max_timestamp
            check.max_timestamp_offset = seen.last_offset
        hold_index(check, &seen)
        hold_time_index(check, &seen)
        check.next_offset = seen.last_offset + 1
        check.previous_last = seen.last_offset
        check.unsure = False
    else:
        skip_index(check)
    check.batches += 1
    check.records += seen.records
    return size


cdef int walk(check_t *check, int64_t stop_at, object inflate) except -1 nogil:
    cdef int64_t size
    while check.position < check.window.end and check.position < stop_at:
        size = check_batch(check, inflate)
        if size == 0 or check.window.failed:
            check.over = True
            return 0
        check.position += size
    check.over = check.position >= check.window.end
    return 0


class EpochRun(NamedTuple):
    """Neighbouring batches of one leader epoch."""

    leader_epoch: int
    position: int                # of the first batch, in bytes
    first_offset: int
    last_offset: int


class TransactionEvent(NamedTuple):
    """A transactional batch, or the marker of a transaction."""

    kind: int                    # TRANSACTION_*
    position: int                # in bytes
    first_offset: int
    last_offset: int
    producer_id: int


class SegmentFinding(NamedTuple):
    """What is wrong with a segment's file."""

    file: int                    # LOG, INDEX or TIME_INDEX
    position: int                # in bytes
    what: str


cdef class SegmentCheck:
    """The result of check_segment. `position` is how far the walk came; `findings` are SegmentFinding."""
    cdef readonly int64_t position
    cdef readonly int64_t next_offset
    cdef readonly bint is_sure   # the walk came to the end, and the last batches were read
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t max_timestamp_offset
    cdef readonly int64_t batches
    cdef readonly int64_t records
    cdef readonly list epochs
    cdef readonly list findings
    cdef readonly int64_t finding_count


def check_segment(int fd, int64_t size, int64_t base_offset, *, inflate, index=b"", time_index=b"", end_offset=None,
                  bint gaps=False, bint zeros_allowed=False, transactions=None, progress=None):
    """Check the first `size` bytes of a segment, and its indexes, given as whole entries without zeros at the end.

    `inflate(codec, payload, magic)` returns bytes or raises BadInput. `end_offset` is the base offset of the next
    segment. `gaps`: offsets may be missing. `zeros_allowed`: the file may end in zeros. `transactions` is called with
    lists of TransactionEvent, `progress` with the bytes walked since the last call. `epochs` of the result are
    EpochRun. Raises OSError when the file cannot be read.
    """
    cdef check_t check
    cdef Py_buffer index_view
    cdef Py_buffer time_view
    cdef int64_t reported = 0
    cdef SegmentCheck result
    memset(&check, 0, sizeof(check))
    memset(check.known_open, 0xff, sizeof(check.known_open))
    writer_init(&check.epochs)
    writer_init(&check.findings)
    writer_init(&check.events)
    check.base_offset = check.next_offset = base_offset
    check.previous_last = base_offset - 1
    check.end_offset = INT64_MAX if end_offset is None else end_offset
    check.max_timestamp = check.max_timestamp_offset = -1
    check.epoch = -1
    check.awaited = -1
    check.gaps = gaps
    check.zeros_allowed = zeros_allowed
    PyObject_GetBuffer(index, &index_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(time_index, &time_view, PyBUF_SIMPLE)
        try:
            check.index = <const uint8_t *>index_view.buf
            check.index_count = index_view.len // INDEX_ENTRY_SIZE
            check.time_index = <const uint8_t *>time_view.buf
            check.time_count = time_view.len // TIME_INDEX_ENTRY_SIZE
            if not window_open(&check.window, fd, size, max(<int64_t>BATCH_HEADER_SIZE, min(<int64_t>CHUNK, size))):
                raise MemoryError
            with nogil:
                check_entry_order(&check)
            while not check.over:
                with nogil:
                    walk(&check, check.position + SLICE, inflate)
                if check.window.failed:
                    raise OSError(-check.window.failed,
                                  f"{strerror(-check.window.failed).decode()} at byte {check.position}")
                report_events(&check, transactions)
                if progress is not None:
                    progress(check.position - reported)
                reported = check.position
            end_run(&check)
            end_indexes(&check)
            if check.findings.failed or check.epochs.failed or check.events.failed:
                raise MemoryError
            result = SegmentCheck.__new__(SegmentCheck)
            result.position = check.position
            result.next_offset = check.next_offset
            result.is_sure = not check.unsure and check.position == check.window.end
            result.max_timestamp = check.max_timestamp
            result.max_timestamp_offset = check.max_timestamp_offset
            result.batches = check.batches
            result.records = check.records
            result.epochs = [
                EpochRun(
                    <int32_t>load_u32(check.epochs.data + at), <int64_t>load_u64(check.epochs.data + at + 4),
                    <int64_t>load_u64(check.epochs.data + at + 12), <int64_t>load_u64(check.epochs.data + at + 20),
                )
                for at in range(0, <int64_t>check.epochs.size, 28)
            ]
            result.findings = [finding_of(check.findings.data + at) for at in range(0, <int64_t>check.findings.size,
                                                                                    32)]
            result.finding_count = check.finding_count
            return result
        finally:
            PyBuffer_Release(&time_view)
    finally:
        PyBuffer_Release(&index_view)
        window_close(&check.window)
        writer_free(&check.epochs)
        writer_free(&check.findings)
        writer_free(&check.events)


cdef int report_events(check_t *check, object transactions) except -1:
    if check.events.size and transactions is not None:
        transactions([
            TransactionEvent(
                <int32_t>load_u32(check.events.data + at), <int64_t>load_u64(check.events.data + at + 4),
                <int64_t>load_u64(check.events.data + at + 12), <int64_t>load_u64(check.events.data + at + 20),
                <int64_t>load_u64(check.events.data + at + 28),
            )
            for at in range(0, <int64_t>check.events.size, 36)
        ])
    check.events.size = 0
    return 0


cdef object finding_of(const uint8_t *at):
    cdef int kind = <int32_t>load_u32(at + 4)
    text = TEXTS[kind].format(a=<int64_t>load_u64(at + 16), b=<int64_t>load_u64(at + 24))
    return SegmentFinding(<int32_t>load_u32(at), <int64_t>load_u64(at + 8), text)
