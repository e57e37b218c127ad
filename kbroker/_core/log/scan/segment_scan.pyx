"""Walks over the batches of a segment file: for recovery, the end of a cleanly closed log, lookup by time.

It reads every magic: 2 is a record batch, 0 and 1 are messages (wire/message_set.pyx). A compressed message is a whole
set, and its offset is the set's last one.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memset, strerror

from kbroker._core.log.producer_table cimport ProducerTable
from kbroker._core.log.producers cimport ended_t, producers_end, producers_remember, producers_t
from kbroker._core.log.scan.file_window cimport CHUNK, file_window_t, window_at, window_close, window_open
from kbroker._core.wire.cursor cimport (
    load_u32, load_u64, writer_free, writer_init, writer_t, write_i32, write_i64, write_raw,
)
from kbroker._core.wire.layout cimport *
from kbroker._core.wire.message_set cimport message_as_batch
from kbroker._core.wire.record_batch cimport (
    BATCH_BAD_CRC, BATCH_BAD_LENGTH, BATCH_BAD_MAGIC, BATCH_OK, BATCH_OLD_MAGIC, BATCH_TOO_SHORT, batch_header,
    batch_info_t, batch_verify,
)
from kbroker._core.wire.transaction_marker cimport (
    ABORTED_SIZE, MARKER_ABORT, NO_MARKER, marker_t, read_marker, write_aborted,
)

from typing import NamedTuple

from kbroker.errors import StorageFailed

cdef enum:
    MARKER_READ = 4096           # bytes of a control batch that are read
    SLICE = 67108864             # bytes between two reports to Python
    OFFSETS_GO_BACK = 100        # besides the findings: an intact batch that does not belong here

REASONS = {
    BATCH_TOO_SHORT: "cut off",
    BATCH_BAD_LENGTH: "impossible length",
    BATCH_BAD_MAGIC: "unknown magic",
    BATCH_BAD_CRC: "wrong CRC",
    OFFSETS_GO_BACK: "offset out of order",
}


class FoundBatch(NamedTuple):
    """A batch of a segment, as its header describes it."""

    position: int                # in the .log, in bytes
    size: int                    # in bytes
    base_offset: int
    last_offset: int
    max_timestamp: int
    leader_epoch: int            # -1: the batch's format has none


ctypedef struct scan_t:
    file_window_t window
    int64_t position             # of the next batch
    int64_t base_offset          # of the segment
    int64_t next_offset          # the next batch must not begin below
    int64_t first_timestamp
    int64_t max_timestamp
    int64_t max_timestamp_offset # last offset of the first batch with max_timestamp
    int64_t last_time_entry      # timestamp of the newest time index entry, -1 without one
    int64_t indexed_to           # position of the batch with the newest index entry, or where the scan began
    int64_t batches
    int64_t producers_from       # batches from this offset on are replayed into `producers`
    int32_t index_interval_bytes
    int32_t latest_epoch         # the largest leader epoch so far
    bint verify                  # check CRCs
    int finding                  # why the scan ended, BATCH_OK at the end
    writer_t index               # entries of .index
    writer_t time_index          # entries of .timeindex
    writer_t epochs              # int32 epoch, int64 start offset
    producers_t *producers
    writer_t aborted             # entries of .txnindex
    bint marker_seen             # there was a marker, and no `producers` that knows where its transaction began
    bint gaps                    # some offsets have no records
    bint memory_out


cdef int look(scan_t *scan, batch_info_t *info) noexcept nogil:
    """Read the batch at scan.position into `info`. Return BATCH_OK or a finding; a failed read sets window.failed."""
    cdef const uint8_t *data
    cdef int64_t left
    cdef int64_t wanted
    cdef int finding
    left = scan.window.end - scan.position
    wanted = left if left < BATCH_HEADER_SIZE else BATCH_HEADER_SIZE
    data = window_at(&scan.window, scan.position, wanted)
    if data == NULL:
        return BATCH_TOO_SHORT
    if scan.verify:
        if wanted < LOG_OVERHEAD:
            return BATCH_TOO_SHORT
        wanted = LOG_OVERHEAD + <int64_t><int32_t>load_u32(data + BATCH_LENGTH)
        if wanted < LOG_OVERHEAD + 14:
            return BATCH_BAD_LENGTH
        if wanted > left:
            return BATCH_TOO_SHORT
        data = window_at(&scan.window, scan.position, wanted)
        if data == NULL:
            return BATCH_TOO_SHORT
        finding = batch_verify(data, wanted, info)
    else:
        finding = batch_header(data, left, info)
    if finding == BATCH_OLD_MAGIC:
        finding = message_as_batch(data, left, scan.verify, info)
    return finding


cdef void add_entries(scan_t *scan, int64_t last_offset) noexcept nogil:
    write_i32(&scan.index, <int32_t>(last_offset - scan.base_offset))
    write_i32(&scan.index, <int32_t>scan.position)
    add_time_entry(scan)


cdef void add_time_entry(scan_t *scan) noexcept nogil:
    if scan.max_timestamp > scan.last_time_entry:
        write_i64(&scan.time_index, scan.max_timestamp)
        write_i32(&scan.time_index, <int32_t>(scan.max_timestamp_offset - scan.base_offset))
        scan.last_time_entry = scan.max_timestamp


cdef bint follow(scan_t *scan, batch_info_t *info) noexcept nogil:
    """Add a batch of a producer to the table `producers`. False: the scan has failed."""
    cdef marker_t marker
    cdef ended_t ended
    cdef uint8_t[ABORTED_SIZE] entry
    cdef const uint8_t *data
    cdef int64_t size
    if not info.attributes & ATTRIBUTE_CONTROL:
        if scan.producers != NULL \
                and producers_remember(scan.producers, info, info.base_offset, info.max_timestamp) < 0:
            scan.memory_out = True
        return not scan.memory_out
    if info.record_count == 0 or info.attributes & ATTRIBUTE_CODEC_MASK:
        return True              # compaction has removed the transaction and its marker
    if scan.producers == NULL:
        scan.marker_seen = True
        return True
    size = info.size if info.size < MARKER_READ else MARKER_READ
    data = window_at(&scan.window, scan.position, size)
    if data == NULL:
        return False
    if read_marker(data + BATCH_HEADER_SIZE, data + size, &marker) == NO_MARKER:
        return True
    if producers_end(scan.producers, info, &marker, info.base_offset, info.max_timestamp, &ended) < 0:
        scan.memory_out = True
        return False
    if marker.type == MARKER_ABORT and ended.first_offset != -1:
        write_aborted(entry, info.producer_id, ended.first_offset, info.base_offset, ended.last_stable_offset)
        write_raw(&scan.aborted, entry, ABORTED_SIZE)
    return True


cdef bint walk(scan_t *scan, int64_t stop_at) noexcept nogil:
    """Scan batches up to position `stop_at`. Return whether the scan is over."""
    cdef batch_info_t info
    cdef int64_t last_offset
    while scan.position < scan.window.end:
        if scan.position >= stop_at:
            return False
        scan.finding = look(scan, &info)
        if scan.finding != BATCH_OK or scan.window.failed:
            return True
        last_offset = info.base_offset + info.last_offset_delta
        if info.base_offset < scan.next_offset or info.last_offset_delta < 0 or (
            last_offset - scan.base_offset > INT32_MAX or last_offset < info.base_offset
        ):
            scan.finding = OFFSETS_GO_BACK
            return True
        if info.base_offset > scan.next_offset or info.record_count <= info.last_offset_delta:
            scan.gaps = True
        if scan.position == 0:
            scan.first_timestamp = info.max_timestamp
        if info.max_timestamp > scan.max_timestamp:
            scan.max_timestamp = info.max_timestamp
            scan.max_timestamp_offset = last_offset
        if scan.position - scan.indexed_to > scan.index_interval_bytes:
            add_entries(scan, last_offset)
            scan.indexed_to = scan.position
        if info.leader_epoch > scan.latest_epoch:
            scan.latest_epoch = info.leader_epoch
            write_i32(&scan.epochs, info.leader_epoch)
            write_i64(&scan.epochs, info.base_offset)
        if info.producer_id >= 0 and info.base_offset >= scan.producers_from and not follow(scan, &info):
            return True
        scan.next_offset = last_offset + 1
        scan.position += info.size
        scan.batches += 1
    return True


cdef class SegmentScan:
    """The result of a scan.

    `valid_size` is where the last good batch ends, `reason` is why the scan ended there or None.
    """
    cdef readonly int64_t valid_size
    cdef readonly int64_t next_offset
    cdef readonly int64_t first_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t max_timestamp_offset
    cdef readonly int64_t last_time_entry
    cdef readonly int64_t bytes_since_index
    cdef readonly int64_t batches
    cdef readonly bytes index
    cdef readonly bytes time_index
    cdef readonly bytes aborted
    cdef readonly bint marker_seen
    cdef readonly bint gaps
    cdef readonly list epochs
    cdef readonly object reason


cdef void scan_init(scan_t *scan, int64_t base_offset, int32_t index_interval_bytes) noexcept:
    memset(scan, 0, sizeof(scan_t))
    writer_init(&scan.index)
    writer_init(&scan.time_index)
    writer_init(&scan.epochs)
    writer_init(&scan.aborted)
    scan.base_offset = scan.next_offset = scan.max_timestamp_offset = base_offset
    scan.first_timestamp = scan.max_timestamp = scan.last_time_entry = -1
    scan.index_interval_bytes = index_interval_bytes
    scan.latest_epoch = -1


cdef void scan_free(scan_t *scan) noexcept:
    writer_free(&scan.index)
    writer_free(&scan.time_index)
    writer_free(&scan.epochs)
    writer_free(&scan.aborted)


cdef SegmentScan scan_result(scan_t *scan, int64_t size):
    """Return the result of a scan of a segment of `size` bytes. Raises MemoryError."""
    cdef SegmentScan result
    if scan.memory_out or scan.index.failed or scan.time_index.failed or scan.epochs.failed or scan.aborted.failed:
        raise MemoryError
    result = SegmentScan.__new__(SegmentScan)
    result.valid_size = scan.position
    result.next_offset = scan.next_offset
    result.first_timestamp = scan.first_timestamp
    result.max_timestamp = scan.max_timestamp
    result.max_timestamp_offset = scan.max_timestamp_offset
    result.last_time_entry = scan.last_time_entry
    result.bytes_since_index = scan.position - scan.indexed_to
    result.batches = scan.batches
    result.index = written(&scan.index)
    result.time_index = written(&scan.time_index)
    result.aborted = written(&scan.aborted)
    result.marker_seen = scan.marker_seen
    result.gaps = scan.gaps
    result.epochs = [
        (<int32_t>load_u32(scan.epochs.data + at), <int64_t>load_u64(scan.epochs.data + at + 4))
        for at in range(0, <int64_t>scan.epochs.size, 12)
    ]
    result.reason = REASONS.get(scan.finding, f"finding {scan.finding}") if scan.position < size else None
    return result


def scan_segment(int fd, int64_t size, int64_t base_offset, *, int64_t position=0, next_offset=None, bint verify=True,
                 int32_t index_interval_bytes=4096, int64_t max_timestamp=-1, int64_t max_timestamp_offset=-1,
                 int64_t last_time_entry=-1, int32_t latest_epoch=-1, ProducerTable producers=None,
                 int64_t producers_from=0, progress=None):
    """Scan the batches of a segment file of `size` bytes from `position` to its end or to the first bad batch.

    `verify`: check CRCs. Batches from offset `producers_from` on are replayed into `producers`. `progress(bytes)` is
    called now and then. Of the result: `index` and `time_index` are the entries for the scanned batches; `aborted` are
    the .txnindex entries of the transactions that were aborted among the replayed batches; without `producers`,
    `marker_seen` tells that there are markers; `gaps`: compaction has left offsets without records. Raises OSError when
    the file cannot be read.
    """
    cdef scan_t scan
    cdef bint over = False
    cdef int64_t stop_at
    cdef int64_t reported = position
    scan_init(&scan, base_offset, index_interval_bytes)
    scan.position = scan.indexed_to = position
    if next_offset is not None:
        scan.next_offset = next_offset
    scan.max_timestamp = max_timestamp
    if max_timestamp_offset >= 0:
        scan.max_timestamp_offset = max_timestamp_offset
    scan.last_time_entry = last_time_entry
    scan.producers_from = producers_from
    scan.latest_epoch = latest_epoch
    scan.verify = verify
    scan.producers = producers.table if producers is not None else NULL
    if not window_open(&scan.window, fd, size, max(BATCH_HEADER_SIZE, min(<int64_t>CHUNK, size - position))):
        raise MemoryError
    try:
        while not over:
            stop_at = scan.position + SLICE
            with nogil:
                over = walk(&scan, stop_at)
            if progress is not None and scan.position > reported:
                progress(scan.position - reported)
                reported = scan.position
        if scan.window.failed:
            raise unreadable(&scan)
        return scan_result(&scan, size)
    finally:
        window_close(&scan.window)
        scan_free(&scan)


@cython.final
cdef class SegmentWalk:
    """A scan of a segment as it is written, from the written bytes. CRCs are not checked. One thread at a time."""

    cdef scan_t scan
    cdef int64_t size

    def __cinit__(self, int64_t base_offset, *, int32_t index_interval_bytes=4096):
        scan_init(&self.scan, base_offset, index_interval_bytes)

    def __dealloc__(self):
        scan_free(&self.scan)

    def add(self, batches):
        """Scan more whole batches, which follow those before. After a bad batch nothing is scanned any more."""
        cdef Py_buffer view
        cdef file_window_t *window = &self.scan.window
        PyObject_GetBuffer(batches, &view, PyBUF_SIMPLE)
        if self.scan.position == self.size:
            # The window has all bytes that the scan can ask for, so it reads no file.
            window.data = <uint8_t *>view.buf
            window.start = self.size
            window.size = view.len
            window.end = self.size + view.len
            with nogil:
                walk(&self.scan, window.end)
        self.size += view.len
        PyBuffer_Release(&view)

    def scanned(self):
        """Return the SegmentScan of all bytes added so far. It has a `reason` when a batch is bad."""
        return scan_result(&self.scan, self.size)


cdef object unreadable(scan_t *scan):
    return OSError(-scan.window.failed,
                   f"reading a segment at byte {scan.position}: {strerror(-scan.window.failed).decode()}")


cdef bytes written(writer_t *writer):
    return <bytes>(<char *>writer.data)[:writer.size] if writer.size else b""


def find_batch(int fd, int64_t size, *, int64_t position=0, int64_t timestamp=-1, int64_t offset=-1):
    """Find the first batch from `position` on with a max timestamp >= `timestamp` and a last offset >= `offset`.

    Return it as FoundBatch, or None. Raises OSError when the file cannot be read, StorageFailed when it is damaged.
    """
    cdef scan_t scan
    cdef batch_info_t info
    cdef bint found = False
    memset(&scan, 0, sizeof(scan))
    scan.position = position
    if not window_open(&scan.window, fd, size, 65536):
        raise MemoryError
    with nogil:
        while scan.position < scan.window.end:
            scan.finding = look(&scan, &info)
            if scan.finding != BATCH_OK or scan.window.failed:
                break
            if info.max_timestamp >= timestamp and info.base_offset + info.last_offset_delta >= offset:
                found = True
                break
            scan.position += info.size
    window_close(&scan.window)
    if scan.window.failed:
        raise unreadable(&scan)
    if scan.finding != BATCH_OK:
        raise StorageFailed(f"a damaged batch at byte {scan.position}: {REASONS.get(scan.finding, scan.finding)}")
    if not found:
        return None
    return FoundBatch(
        scan.position, info.size, info.base_offset, info.base_offset + info.last_offset_delta, info.max_timestamp,
        info.leader_epoch,
    )
