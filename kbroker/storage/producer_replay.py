"""A log's producers as recovery finds them: from the newest good snapshot and the batches behind it."""

from __future__ import annotations

from kbroker._core.log.producer_table import ProducerTable
from kbroker.fs import FileSystem
from kbroker.storage import file_names
from kbroker.storage.producer_state import load_snapshot
from kbroker.storage.segment import Progress, Segment, scan_loaded


class ProducerReplay:
    """Follows the producers through a log while it is loaded, and settles which snapshots stay.

    `files` has the suffixes of the files in the directory, by base offset. `segments` has the segments that are loaded
    already, ascending. The loader changes both.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        files: dict[int, set[str]],
        segments: list[Segment],
        progress: Progress | None,
    ):
        self._fs = fs
        self._directory = directory
        self._files = files
        self._segments = segments
        self._progress = progress
        self.producers: ProducerTable | None = None
        """None: not known yet."""
        self.replayed_to = -1
        """The offset up to which the batches were applied to the producers."""
        self._snapshot_offset = -1
        """The offset of the snapshot from which the producers were loaded."""

    def forget(self) -> None:
        """Forget the producers: the log was lost."""
        self.producers, self.replayed_to = None, -1

    def advance(self, base_offset: int) -> None:
        """Bring the producers up to the start of a segment that is read next, if a snapshot makes that cheap."""
        if self.producers is None and not self._load_snapshot(base_offset):
            if self._segments or base_offset:
                return  # a snapshot in the middle of a segment may spare reading the whole log: see `finish`
            self.producers = ProducerTable()
        if self.producers is not None:
            self._replay(self.producers, base_offset)

    def begin_anew(self, end_offset: int) -> ProducerTable:
        """Return the producers at `end_offset`, the last loaded segment's end, from all loaded segments."""
        self.producers = ProducerTable()
        self._replay(self.producers, end_offset)
        return self.producers

    def finish(self, log_end_offset: int) -> ProducerTable:
        """Return the producers at the log's end."""
        self._settle_snapshots(log_end_offset)
        if self.producers is None:
            self._load_snapshot(log_end_offset)
        producers = self.producers if self.producers is not None else ProducerTable()
        self._replay(producers, log_end_offset)
        return producers

    def _load_snapshot(self, newest: int) -> bool:
        """Load the newest good snapshot that is not above `newest`. False if there is none. Removes damaged ones."""
        for offset in self._snapshots():
            if self._oldest_snapshot(newest) <= offset <= newest:
                self.producers = load_snapshot(self._fs, self._directory, offset)
                if self.producers is not None:
                    self.replayed_to = self._snapshot_offset = offset
                    return True
                self._drop_snapshot(offset)
        return False

    def _settle_snapshots(self, log_end_offset: int) -> None:
        """Remove snapshots except, as in Kafka, that of each segment and the newest of all."""
        beyond = [offset for offset in self._snapshots() if offset > log_end_offset]
        before = [offset for offset in self._snapshots() if offset < self._oldest_snapshot(log_end_offset)]
        for offset in beyond + before:
            self._drop_snapshot(offset)
        bases = {at.base_offset for at in self._segments}
        for offset in self._snapshots()[1:]:
            # The snapshot that was loaded stays, even if it is no segment's: the next recovery may need it too.
            if offset not in bases and offset != self._snapshot_offset:
                self._drop_snapshot(offset)
        if beyond:
            # Durably: other records will take the offsets below it, and a snapshot that came back would be wrong.
            self._fs.sync_directory(self._directory)

    def _oldest_snapshot(self, end_offset: int) -> int:
        """Return the first segment's base offset: a snapshot below it is of no use.

        Transactions may have ended between such a snapshot and the log.
        """
        return self._segments[0].base_offset if self._segments else end_offset

    def _drop_snapshot(self, offset: int) -> None:
        self._fs.unlink(file_names.path_of(self._directory, offset, file_names.SNAPSHOT))
        self._files[offset].discard(file_names.SNAPSHOT)

    def _snapshots(self) -> list[int]:
        """Return the offsets of the snapshots, newest first."""
        kept = (offset for offset, suffixes in self._files.items() if file_names.SNAPSHOT in suffixes)
        return sorted(kept, reverse=True)

    def _replay(self, producers: ProducerTable, end_offset: int) -> None:
        """Apply the batches from `replayed_to` to `end_offset`, the last loaded segment's end, to the producers."""
        for number, loaded in enumerate(self._segments, start=1):
            end = self._segments[number].base_offset if number < len(self._segments) else end_offset
            if self.replayed_to < end:
                scan_loaded(self._fs, self._directory, loaded, self._progress, producers, self.replayed_to)
        self.replayed_to = end_offset
