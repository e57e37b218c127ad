"""Compaction of one log: what it may clean, in which groups of segments, and the cleaning itself (Kafka 3.9: Cleaner).

One thread cleans a log at a time. Reading and copying hold no lock; only the swap at the end of each group does.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker._core.dedupe_map import DedupeMap
from kbroker._core.segment_copy import LastBatches, Transactions, copy_segment, feed_map
from kbroker.errors import DiskDamaged
from kbroker.fs import read_file, write_all
from kbroker.protocol.compression import deflate, inflate_shared
from kbroker.storage import segment as names

if TYPE_CHECKING:
    from kbroker.storage.log import Log

_INFLATED_LIMIT = 128 << 20
_INT32_MAX = (1 << 31) - 1
_ABORTED = struct.Struct(">hqqqq")  # version, producer id, first offset, last offset, last stable offset


@dataclass(frozen=True, slots=True)
class CleanableSegment:
    """A segment that takes no more messages, as compaction sees it."""

    base_offset: int
    end_offset: int
    """Base offset of the next segment."""
    size: int
    index_size: int
    time_index_size: int


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a cleaning did."""

    next_dirty_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int


def cleanable_segments(log: Log) -> list[CleanableSegment]:
    """The segments that may be cleaned: closed, flushed and decided, from the log's start on."""
    segments = log.state.segments()
    bound = min(log.recovery_point, log.last_stable_offset)
    found = []
    for at, behind in itertools.pairwise(segments):
        if behind[0] > bound:
            break
        found.append(
            CleanableSegment(
                at[0], behind[0], at[1], at[6] * names.INDEX_ENTRY.size, at[7] * names.TIME_INDEX_ENTRY.size
            )
        )
    return found


def dirty_ratio(segments: Sequence[CleanableSegment], first_dirty_offset: int) -> float:
    """Share of the bytes that no cleaning has seen; 0 where there is nothing to clean."""
    size = sum(at.size for at in segments)
    return sum(at.size for at in segments if at.end_offset > first_dirty_offset) / size if size else 0.0


def groups_of(
    segments: Sequence[CleanableSegment], segment_bytes: int, index_max_bytes: int
) -> list[list[CleanableSegment]]:
    """Neighbours that fit into one segment even if nothing of them goes."""
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


def clean_log(
    log: Log, offset_map: DedupeMap, first_dirty_offset: int, delete_retention_ms: int, io_size: int
) -> Cleaned:
    """Clean a log as far as the map goes. Raises InvalidBatch or DiskDamaged, OSError, StorageFailed."""
    offset_map.clear()
    segments = cleanable_segments(log)
    aborted = _aborted_transactions(log)
    transactions = Transactions(aborted)
    for at in segments:
        if at.end_offset > first_dirty_offset and _feed(log, at, offset_map, first_dirty_offset, transactions, io_size):
            break
    end_offset = max(offset_map.latest_offset + 1, first_dirty_offset)
    counts = [0, 0, 0, 0]
    if offset_map.latest_offset >= 0:
        now_ms = log.context.clock.wall_ms()
        cleaned = [at for at in segments if at.base_offset < end_offset]
        for group in groups_of(cleaned, log.options.segment_bytes, log.options.index_max_bytes):
            done = _clean_group(log, group, offset_map, Transactions(aborted), now_ms, delete_retention_ms, io_size)
            counts = [before + more for before, more in zip(counts, done, strict=True)]
    return Cleaned(end_offset, *counts)


def _feed(
    log: Log, at: CleanableSegment, offset_map: DedupeMap, start_offset: int, transactions: Transactions, io_size: int
) -> bool:
    """Whether the map is full."""
    for chunk in _Chunks(log, at, io_size):
        chunk.taken, _, is_full = feed_map(
            chunk.data, offset_map, inflate=_inflate, start_offset=start_offset, transactions=transactions
        )
        if is_full:
            return True
    # Offsets that are missing at its end are behind us too.
    offset_map.latest_offset = max(offset_map.latest_offset, at.end_offset - 1)
    return False


def _clean_group(
    log: Log,
    group: Sequence[CleanableSegment],
    offset_map: DedupeMap,
    transactions: Transactions,
    now_ms: int,
    delete_retention_ms: int,
    io_size: int,
) -> tuple[int, int, int, int]:
    fs = log.context.fs
    base_offset = group[0].base_offset
    producers = _last_batches(log)
    path = log.path_of(base_offset, names.LOG) + names.CLEANED
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    bytes_read = written = records_read = records_kept = 0
    try:
        for at in group:
            for chunk in _Chunks(log, at, io_size):
                copy = copy_segment(
                    chunk.data, offset_map, inflate=_inflate, deflate=deflate, now_ms=now_ms,
                    delete_retention_ms=delete_retention_ms, transactions=transactions, producers=producers,
                )  # fmt: skip
                chunk.taken = copy.taken
                write_all(fs, fd, copy.output, written)
                bytes_read += copy.taken
                written += len(copy.output)
                records_read += copy.records_read
                records_kept += copy.records_kept
        fs.fdatasync(fd)
    except BaseException:
        fs.unlink(path)
        raise
    finally:
        fs.close(fd)
    log.replace_segments(base_offset, group[-1].end_offset)
    return bytes_read, written, records_read, records_kept


@dataclass(slots=True)
class _Chunk:
    data: bytes
    taken: int = 0
    """Whoever reads it says how many bytes he took."""


class _Chunks:
    """A segment's bytes, a buffer at a time; a batch that does not fit into one gets a larger one."""

    def __init__(self, log: Log, segment: CleanableSegment, io_size: int):
        self._fs = log.context.fs
        self._path = log.path_of(segment.base_offset, names.LOG)
        self._size = segment.size
        self._io_size = io_size

    def __iter__(self) -> Iterator[_Chunk]:
        fd = self._fs.open(self._path, os.O_RDONLY)
        try:
            position, size = 0, self._io_size
            while position < self._size:
                chunk = _Chunk(self._fs.pread(fd, min(size, self._size - position), position))
                yield chunk
                if chunk.taken == 0 and size >= self._size - position:
                    raise DiskDamaged(self._path, position, "a batch cut off")
                size = self._io_size if chunk.taken else size * 2
                position += chunk.taken
        finally:
            self._fs.close(fd)


def _inflate(codec: int, data: memoryview) -> memoryview:
    return inflate_shared(codec, data, _INFLATED_LIMIT)


def _last_batches(log: Log) -> LastBatches:
    producers, _ = log.state.producers()
    return LastBatches(
        (producer_id, max((batch[2] for batch in batches), default=-1), epoch)
        for producer_id, epoch, _, _, _, batches in producers.export()
    )


def _aborted_transactions(log: Log) -> list[tuple[int, int, int, int]]:
    """The entries of every .txnindex: (producer id, first offset, last offset, last stable offset)."""
    found = []
    for at in log.state.segments():
        try:
            data = read_file(log.context.fs, log.path_of(at[0], names.TRANSACTION_INDEX))
        except FileNotFoundError:
            continue
        whole = len(data) - len(data) % _ABORTED.size
        found += [entry[1:] for entry in _ABORTED.iter_unpack(data[:whole])]
    return found
