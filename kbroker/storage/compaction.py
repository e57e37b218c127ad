"""Compaction of one log: what may be cleaned, in which groups of segments, and the cleaning (Kafka 3.9: Cleaner).

One thread cleans a log at a time. Reading and copying hold no lock; the swap at the end of each group holds the lock of
the log.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker._core.log.compaction.cleaned_transactions import LastBatches, Transactions
from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker._core.log.compaction.segment_copy import SegmentCopy, copy_segment, feed_map
from kbroker._core.log.scan.segment_scan import SegmentScan, SegmentWalk, find_batch
from kbroker._core.wire.record_batch import FINDINGS, InvalidBatch
from kbroker.errors import DiskDamaged
from kbroker.fs import read_file, write_all, write_file
from kbroker.protocol.compression import deflate, inflate_shared
from kbroker.protocol.records import INFLATED_LIMIT
from kbroker.storage import file_names
from kbroker.storage.failures import CleaningAborted
from kbroker.storage.index_entries import (
    ABORTED_TRANSACTION,
    INDEX_ENTRY,
    TIME_INDEX_ENTRY,
    AbortedTransaction,
    aborted_transactions,
)
from kbroker.storage.segment import changed_ms, largest_timestamp, write_indexes
from kbroker.storage.segment_swap import discard_cleaned

if TYPE_CHECKING:
    from kbroker.storage.log import Log

_INT32_MAX = (1 << 31) - 1
_WRITEBACK = 8 << 20


class CleanableSegment(NamedTuple):
    """What compaction needs to know of a segment that takes no more messages."""

    base_offset: int
    end_offset: int
    """Base offset of the next segment."""
    size: int
    index_size: int
    time_index_size: int


class Cleaned(NamedTuple):
    """The result of a cleaning."""

    next_dirty_offset: int
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    map_bytes_read: int = 0
    map_s: float = 0.0
    """Seconds that it took to fill the map."""
    elapsed_s: float = 0.0
    map_utilization: float = 0.0


def cleanable_segments(log: Log, first_dirty_offset: int = 0) -> list[CleanableSegment]:
    """Return the segments that may be cleaned, from the log's first one on.

    A segment may be cleaned if it is closed and flushed, if every transaction in it is decided (KIP-98), and if it is
    older than min.compaction.lag.ms. The first segment that may not be cleaned ends the list.
    """
    segments = log.state.segments()
    bound = min(log.recovery_point, log.last_stable_offset, log.state.first_undecided_offset)
    lag_ms = log.options.min_compaction_lag_ms
    newest_ms = log.context.clock.wall_ms() - lag_ms
    found = []
    for at, behind in itertools.pairwise(segments):
        end_offset = behind.base_offset
        if end_offset > bound:
            break
        if lag_ms > 0 and end_offset > first_dirty_offset:
            path = log.path_of(at.base_offset, file_names.LOG)
            if largest_timestamp(path, at.max_timestamp) > newest_ms:
                break
        index_size = at.index_count * INDEX_ENTRY.size
        time_index_size = at.time_index_count * TIME_INDEX_ENTRY.size
        found.append(CleanableSegment(at.base_offset, end_offset, at.size, index_size, time_index_size))
    return found


def dirty_ratio(segments: Sequence[CleanableSegment], first_dirty_offset: int) -> float:
    """Return the share of the bytes that no cleaning has seen; 0 if there is nothing to clean."""
    size = sum(at.size for at in segments)
    return sum(at.size for at in segments if at.end_offset > first_dirty_offset) / size if size else 0.0


def groups_of(
    segments: Sequence[CleanableSegment], segment_bytes: int, index_max_bytes: int
) -> list[list[CleanableSegment]]:
    """Group neighbouring segments that fit into one segment even if compaction removes nothing from them."""
    groups: list[list[CleanableSegment]] = []
    for at in segments:
        group = groups[-1] if groups else []
        if (
            group
            and sum(one.size for one in group) + at.size <= segment_bytes
            and sum(one.index_size for one in group) + at.index_size <= index_max_bytes
            and sum(one.time_index_size for one in group) + at.time_index_size <= index_max_bytes
            and at.end_offset - 1 - group[0].base_offset <= _INT32_MAX
        ):
            group.append(at)
        else:
            groups.append([at])
    return groups


Taken = Callable[[int], None]
"""Called with the number of bytes just read or written. It may wait, and raises CleaningAborted to end a cleaning."""


def clean_log(
    log: Log, offset_map: DedupeMap, first_dirty_offset: int, io_size: int, on_io: Taken = lambda size: None
) -> Cleaned:
    """Clean a log, up to the offset at which the map is full.

    Raises DiskDamaged (with file and position), OSError, StorageFailed, CleaningAborted. Segments that were swapped in
    before an error stay; the rest of the log is unchanged.
    """
    return _Cleaning(log, offset_map, first_dirty_offset, io_size, on_io).run()


class _Cleaning:
    def __init__(self, log: Log, offset_map: DedupeMap, first_dirty_offset: int, io_size: int, on_io: Taken):
        self._log = log
        self._fs = log.context.fs
        self._map = offset_map
        self._first_dirty_offset = first_dirty_offset
        self._buffer = _Buffer(io_size)
        self._copy = SegmentCopy()
        self._on_io = on_io
        self._now_ms = log.context.clock.wall_ms()
        self._options = log.options
        self._history = log.history
        self._segments = cleanable_segments(log, first_dirty_offset)
        self._aborted = _aborted_transactions(log)
        self._inflated_limit = max(INFLATED_LIMIT, log.options.max_inflated_size)
        self._map_bytes_read = self._bytes_read = self._bytes_written = self._records_read = self._records_kept = 0

    def _inflate(self, codec: int, data: memoryview, magic: int = 2) -> memoryview:
        return inflate_shared(codec, data, self._inflated_limit, magic=magic)

    def run(self) -> Cleaned:
        try:
            return self._run()
        except (DiskDamaged, FileNotFoundError) as damage:
            if self._log.history != self._history:
                raise CleaningAborted("it was truncated") from damage
            raise

    def _run(self) -> Cleaned:
        started_s = self._log.context.clock.monotonic()
        self._fill_map()
        map_s = self._log.context.clock.monotonic() - started_s
        end_offset = max(self._map.latest_offset + 1, self._first_dirty_offset)
        if self._map.latest_offset >= 0:
            # One for all groups: a transaction may begin in one and end in another.
            transactions = Transactions(self._aborted)
            behind = self._legacy_horizon_ms()
            producers = _last_batches(self._log)
            # The earlier batches of a producer go because its last one is kept: that one must be durable before.
            self._log.flush()
            cleaned = [at for at in self._segments if at.base_offset < end_offset]
            for group in groups_of(cleaned, self._options.segment_bytes, self._options.index_max_bytes):
                self._clean_group(group, transactions, producers, behind)
        if self._log.history != self._history:
            raise CleaningAborted("it was truncated")
        return Cleaned(
            end_offset,
            self._bytes_read,
            self._bytes_written,
            self._records_read,
            self._records_kept,
            self._map_bytes_read,
            map_s,
            self._log.context.clock.monotonic() - started_s,
            len(self._map) / self._map.capacity,
        )

    def _fill_map(self) -> None:
        dirty = [at for at in self._segments if at.end_offset > self._first_dirty_offset]
        self._map.clear(for_many=sum(at.size for at in dirty) > self._map.size)
        if not dirty:
            return
        # A transaction whose marker is before the dirty segments ended before them.
        transactions = Transactions(entry for entry in self._aborted if entry.last_offset >= dirty[0].base_offset)
        for at in dirty:
            for chunk in _Chunks(self._log, at, self._buffer, self._on_io):
                with chunk:
                    chunk.taken, _, is_full = feed_map(
                        chunk.data, self._map, inflate=self._inflate, start_offset=self._first_dirty_offset,
                        transactions=transactions,
                    )  # fmt: skip
                self._map_bytes_read += chunk.taken
                if is_full:
                    return
            # Offsets that are missing at the segment's end are done with too.
            self._map.latest_offset = max(self._map.latest_offset, at.end_offset - 1)

    def _legacy_horizon_ms(self) -> int:
        """Return the time of change up to which a segment loses its tombstones of magic 0 and 1.

        Kafka: legacyDeleteHorizonMs.
        """
        clean = [at for at in self._segments if at.base_offset < self._first_dirty_offset]
        if not clean:
            return 0
        return changed_ms(self._log.path_of(clean[-1].base_offset, file_names.LOG)) - self._options.delete_retention_ms

    def _clean_group(
        self,
        group: Sequence[CleanableSegment],
        transactions: Transactions,
        producers: LastBatches,
        legacy_horizon_ms: int,
    ) -> None:
        log, fs = self._log, self._fs
        base_offset = group[0].base_offset
        known = len(transactions.kept)
        path = log.path_of(base_offset, file_names.LOG)
        changed_ns = os.stat(log.path_of(group[-1].base_offset, file_names.LOG)).st_mtime_ns  # noqa: PTH116
        try:
            scan = self._copy_group(group, path + file_names.CLEANED, transactions, producers, legacy_horizon_ms)
            segment = write_indexes(fs, log.path, base_offset, scan, file_names.CLEANED)
            has_index = any(_is_there(log.path_of(at.base_offset, file_names.TRANSACTION_INDEX)) for at in group)
            if has_index:
                # Written even if it is empty, so that a restart in the middle of the swap can tell new from old.
                entries = [ABORTED_TRANSACTION.pack(0, *entry) for entry in transactions.kept[known:]]
                segment.aborted_count = len(entries)
                aborted_path = log.path_of(base_offset, file_names.TRANSACTION_INDEX) + file_names.CLEANED
                write_file(fs, aborted_path, b"".join(entries))
            # As in Kafka, the new segment keeps the old one's time of change: when its messages were written.
            os.utime(path + file_names.CLEANED, ns=(changed_ns, changed_ns))
        except BaseException:
            discard_cleaned(fs, log.path, base_offset)
            raise
        if not log.replace_segments(segment, group[-1].end_offset, self._history):
            raise CleaningAborted("its segments are others now")

    def _copy_group(
        self,
        group: Sequence[CleanableSegment],
        path: str,
        transactions: Transactions,
        producers: LastBatches,
        legacy_horizon_ms: int,
    ) -> SegmentScan:
        walk = SegmentWalk(group[0].base_offset, index_interval_bytes=self._options.index_interval_bytes)
        fd = self._fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        written = handed_over = 0
        try:
            for at in group:
                retain = changed_ms(self._log.path_of(at.base_offset, file_names.LOG)) > legacy_horizon_ms
                for chunk in _Chunks(self._log, at, self._buffer, self._on_io):
                    with chunk:
                        copy = copy_segment(
                            chunk.data, self._map, inflate=self._inflate, deflate=_deflate, now_ms=self._now_ms,
                            delete_retention_ms=self._options.delete_retention_ms, retain_old_tombstones=retain,
                            transactions=transactions, producers=producers, into=self._copy,
                        )  # fmt: skip
                    chunk.taken = copy.taken
                    walk.add(copy.output)
                    write_all(self._fs, fd, copy.output, written)
                    self._on_io(len(copy.output))
                    written += len(copy.output)
                    if written - handed_over >= _WRITEBACK:
                        # The disk writes while the next batches are copied, instead of everything at the sync.
                        self._fs.start_writeback(fd, written - handed_over, handed_over)
                        handed_over = written
                    self._bytes_read += copy.taken
                    self._records_read += copy.records_read
                    self._records_kept += copy.records_kept
            self._fs.fdatasync(fd)
        finally:
            self._fs.close(fd)
        self._bytes_written += written
        return walk.scanned()


class _Chunk:
    def __init__(self, path: str, position: int, data: memoryview):
        self.path = path
        self.position = position
        self.data = data
        self.taken = 0
        """How many bytes of the chunk its reader took; the reader sets it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        """Turn an InvalidBatch into DiskDamaged with the file and the position in it."""
        if isinstance(error, InvalidBatch):
            what = FINDINGS[error.finding][2] if error.__cause__ is None else str(error.__cause__)
            raise DiskDamaged(self.path, self.position + error.position, what) from error


class _Buffer:
    """The memory that a cleaning reads into. It grows until the largest batch fits."""

    def __init__(self, size: int):
        self.view = memoryview(bytearray(size))

    def grow(self) -> None:
        grown = memoryview(bytearray(2 * len(self.view)))
        grown[: len(self.view)] = self.view
        self.view = grown


class _Chunks:
    """Reads a segment's bytes, a buffer at a time.

    Bytes that the reader of a chunk does not take begin the next chunk.
    """

    def __init__(self, log: Log, segment: CleanableSegment, buffer: _Buffer, on_io: Taken):
        self._fs = log.context.fs
        self._path = log.path_of(segment.base_offset, file_names.LOG)
        self._size = segment.size
        self._buffer = buffer
        self._on_io = on_io

    def __iter__(self) -> Iterator[_Chunk]:
        fd = self._fs.open(self._path, os.O_RDONLY)
        try:
            position = held = 0
            while position < self._size:
                view, left = self._buffer.view, self._size - position
                size = self._read(fd, view[held : min(len(view), left)], position + held)
                self._on_io(size)
                held += size
                chunk = _Chunk(self._path, position, view[:held])
                yield chunk
                if chunk.taken == 0:
                    if held < min(len(view), left) or held == left:
                        raise DiskDamaged(self._path, position, "a batch cut off")
                    self._buffer.grow()
                else:
                    held -= chunk.taken
                    view[:held] = view[chunk.taken : chunk.taken + held]
                    position += chunk.taken
        finally:
            self._fs.close(fd)

    @staticmethod
    def _read(fd: int, into: memoryview, position: int) -> int:
        """Fill `into` from the file at `position`; return how many bytes there were."""
        done = 0
        while done < len(into) and (got := os.preadv(fd, [into[done:]], position + done)):
            done += got
        return done


def _deflate(codec: int, data: bytes, magic: int = 2) -> bytes:
    return deflate(codec, data, magic=magic)


def _last_batches(log: Log) -> LastBatches:
    producers, _ = log.state.producers()
    return LastBatches(
        (at.producer_id, max((batch.last_offset for batch in at.batches), default=-1), at.producer_epoch)
        for at in producers.export()
    )


def _aborted_transactions(log: Log) -> list[AbortedTransaction]:
    """Return the entries of every .txnindex.

    Segments that cannot be cleaned yet are included: a transaction aborted in one may have begun in an earlier one.
    """
    found: list[AbortedTransaction] = []
    for at in log.state.segments():
        try:
            data = read_file(log.context.fs, log.path_of(at.base_offset, file_names.TRANSACTION_INDEX))
        except FileNotFoundError:
            continue
        found += aborted_transactions(data)
    return found


def first_timestamps(log: Log, first_dirty_offset: int) -> list[int]:
    """Return the largest timestamp of the first batch of each closed segment that was not cleaned yet; -1 if empty."""
    found = []
    for at, behind in itertools.pairwise(log.state.segments()):
        if behind.base_offset > first_dirty_offset:
            fd = log.context.fs.open(log.path_of(at.base_offset, file_names.LOG), os.O_RDONLY)
            try:
                first = find_batch(fd, at.size) if at.size else None
            finally:
                log.context.fs.close(fd)
            found.append(first.max_timestamp if first else -1)
    return found


def _is_there(path: str) -> bool:
    return os.path.exists(path)  # noqa: PTH110
