"""Checks of a log's small files against its batches.

Leader epochs, offset checkpoints and indexes have no check sum: a flipped bit changes a number unnoticed. Before
anything is deleted, fenced or cut because of such a number, it is compared with the batch that it describes.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from kbroker._core.log.producer_table import ProducerTable
from kbroker._core.log.scan.segment_scan import FoundBatch, find_batch
from kbroker._core.wire.crc import crc32c_of
from kbroker.errors import StorageFailed
from kbroker.fs import FileSystem, read_file
from kbroker.model import NO_LEADER_EPOCH
from kbroker.storage import file_names
from kbroker.storage.index_entries import INDEX_ENTRY
from kbroker.storage.leader_epochs import epoch_at
from kbroker.storage.producer_state import AbortedIndex, load_snapshot, vouched_index
from kbroker.storage.segment import Segment, scan_loaded

_WALKED = 1 << 16
"""A segment of up to this many bytes is searched from its start: that is one read."""


class Witness:
    """Finds batches in the files of a log: by an index if it leads to the batch, else from the segment's start."""

    def __init__(self, fs: FileSystem, directory: str):
        self._fs = fs
        self._directory = directory

    def header_at(self, base_offset: int, size: int, offset: int, fd: int = -1) -> FoundBatch | None:
        """Return the first batch of a segment with a record at or above `offset`; None if there is none.

        `base_offset` and `size` are the segment's; `fd` is its .log, if it is open. Raises OSError; StorageFailed if
        the segment is damaged before that batch.
        """
        is_open = fd >= 0
        if not is_open:
            fd = self._fs.open(self._path(base_offset, file_names.LOG), os.O_RDONLY)
        try:
            position = self._floor(base_offset, offset) if size > _WALKED else 0
            if not self._is_before(fd, size, position, offset):
                position = 0
            return find_batch(fd, size, position=position, offset=offset) if size else None
        finally:
            if not is_open:
                self._fs.close(fd)

    def _is_before(self, fd: int, size: int, position: int, offset: int) -> bool:
        if not 0 < position < size:
            return False
        try:
            found = find_batch(fd, size, position=position)
        except StorageFailed:
            return False
        return found is not None and found.base_offset <= offset

    def _floor(self, base_offset: int, offset: int) -> int:
        """Return the position that the .index has for the last entry not above `offset`; 0 if there is none."""
        try:
            fd = self._fs.open(self._path(base_offset, file_names.INDEX), os.O_RDONLY)
        except FileNotFoundError:
            return 0
        try:
            entry, position = INDEX_ENTRY, 0
            low, high = 0, self._fs.file_size(fd) // entry.size
            while low < high:
                middle = (low + high) // 2
                relative_offset, there = entry.unpack(self._fs.pread(fd, entry.size, middle * entry.size))
                if base_offset + relative_offset <= offset:
                    low, position = middle + 1, there
                else:
                    high = middle
            return position
        finally:
            self._fs.close(fd)

    def _path(self, base_offset: int, suffix: str) -> str:
        return file_names.path_of(self._directory, base_offset, suffix)

    def has_timestamp(self, at: Segment, fd: int = -1) -> bool:
        """Return whether a segment's largest timestamp is that of the batch that its time index names.

        A segment without timestamps (-1) is checked at its first batch.
        """
        try:
            offset = at.max_timestamp_offset if at.max_timestamp >= 0 else at.base_offset
            found = self.header_at(at.base_offset, at.size, offset, fd)
        except StorageFailed:
            return False
        return at.max_timestamp == (-1 if found is None else found.max_timestamp)

    def aborted_entries(self, base_offset: int, size: int, end_offset: int) -> bytes | None:
        """Return what a segment's .txnindex should hold, if it holds something else; None if it is right or unknown.

        The snapshot at the segment's end holds the check sum of the file. If the check sum is missing or differs, the
        segment is scanned. What the file should hold is unknown if no snapshot tells the transactions open at the
        segment's start, or if the segment has gaps from compaction.
        """
        try:
            data = read_file(self._fs, self._path(base_offset, file_names.TRANSACTION_INDEX))
        except FileNotFoundError:
            data = b""
        vouched = self._vouched(end_offset)
        if vouched == AbortedIndex(base_offset, len(data), crc32c_of(data)):
            return None
        producers = self._producers_at(base_offset)
        if producers is None:
            return None
        scan = scan_loaded(
            self._fs, self._directory, Segment(base_offset, size), producers=producers, producers_from=base_offset
        )
        return None if scan.gaps or scan.reason is not None or scan.aborted == data else scan.aborted

    def _vouched(self, offset: int) -> AbortedIndex | None:
        try:
            return vouched_index(read_file(self._fs, self._path(offset, file_names.SNAPSHOT)))
        except (FileNotFoundError, ValueError):
            return None

    def _producers_at(self, base_offset: int) -> ProducerTable | None:
        if base_offset == 0:
            return ProducerTable()
        try:
            return load_snapshot(self._fs, self._directory, base_offset)
        except FileNotFoundError:
            return None

    def against_epochs(
        self,
        entries: Sequence[tuple[int, int]],
        segments: Sequence[Segment],
        end_offset: int,
        seen: Iterable[tuple[int, int]],
    ) -> str | None:
        """Return how batches contradict leader epochs, as text; None if they do not.

        `entries` are `(epoch, start offset)`, ascending. The batches on both sides of each start offset are read, and
        the last one before `end_offset`. `seen` are offsets and epochs of batches that are known already.
        """
        known = {offset for offset, _ in seen}
        offsets = {start for _, start in entries} | {start - 1 for _, start in entries[1:]} | {end_offset - 1}
        for offset, epoch in (*seen, *self._epochs_at(sorted(offsets - known), segments)):
            expected = epoch_at(entries, offset)
            if expected == NO_LEADER_EPOCH:
                is_contradicted = bool(entries) and epoch > entries[0][0]
            else:
                is_contradicted = epoch not in (NO_LEADER_EPOCH, expected)
            if is_contradicted:
                return f"epoch {expected} at offset {offset}, where the batch has {epoch}"
        return None

    def epoch_before(self, end_offset: int, segments: Sequence[Segment]) -> int:
        """Return the leader epoch of the last batch before `end_offset`; -1 if there is none."""
        with_batches = [at for at in segments if at.size]
        return max((epoch for _, epoch in self._epochs_at([end_offset - 1], with_batches)), default=NO_LEADER_EPOCH)

    def _epochs_at(self, offsets: Iterable[int], segments: Sequence[Segment]) -> Iterable[tuple[int, int]]:
        bases = [at.base_offset for at in segments]
        for offset in offsets:
            at = bisect_right(bases, offset) - 1
            if at < 0:
                continue
            try:
                found = self.header_at(bases[at], segments[at].size, offset)
            except StorageFailed:
                continue
            if found is not None:
                yield max(found.base_offset, offset), found.leader_epoch
