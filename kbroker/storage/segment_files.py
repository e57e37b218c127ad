"""The files of one log's segments: opening them for the compiled core, making, checking, cutting and syncing them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable

from kbroker._core.log.partition_state import PartitionState
from kbroker._core.log.segment_list import SegmentView
from kbroker._core.wire.crc import crc32c_of
from kbroker.fs import FileSystem, read_file
from kbroker.storage import file_names
from kbroker.storage.index_checks import IndexChecks
from kbroker.storage.producer_state import AbortedIndex, store_snapshot
from kbroker.storage.recovery import LoadedLog
from kbroker.storage.segment import create_segment, remove_segment

logger = logging.getLogger("kbroker.storage")


class SegmentFiles:
    """The files in a log's directory `path`; `state` knows which segments there are. The caller holds the log's lock.

    Methods raise OSError if the disk refuses.
    """

    def __init__(self, fs: FileSystem, path: str, state: PartitionState):
        self.path = path
        self._fs = fs
        self._state = state
        self._snapshot_offset = -1
        self._checks: IndexChecks | None = None
        """None: the log is not open yet."""

    def move(self, path: str) -> None:
        """Go on in another directory, which has the same records. No segment is open."""
        self.path = path
        self._snapshot_offset = -1
        self._checks = None

    def path_of(self, base_offset: int, suffix: str) -> str:
        return file_names.path_of(self.path, base_offset, suffix)

    @property
    def active(self) -> SegmentView:
        """The active segment of an open log."""
        active = self._state.segment()
        if active is None:
            raise AssertionError(f"{self.path} has no segments")
        return active

    @property
    def size(self) -> int:
        """Bytes of the .log files on disk, whether or not the log is open. Raises OSError."""
        size = 0
        for name in self._fs.list_directory(self.path):
            if name.endswith(file_names.LOG):
                with contextlib.suppress(FileNotFoundError):  # recovery has removed it meanwhile
                    size += self._fs.size_of(f"{self.path}/{name}")
        return size

    # --- opening files: the state owns the descriptors that it takes

    def open(self, loaded: LoadedLog, jitter_ms: Callable[[], int]) -> None:
        """Hand the loaded segments to the compiled core. The log serves from then on: others append at once.

        `jitter_ms` returns, for each segment, how many ms earlier than segment.ms it is rolled.
        """
        self._checks = IndexChecks(self._fs, self.path, self._state, loaded)
        active = loaded.segments[-1]
        fds = [self._fs.open(self.path_of(active.base_offset, file_names.LOG), os.O_RDWR)]
        try:
            self._state.open(
                [(at, fds[0] if at is active else -1, jitter_ms(), at is active) for at in loaded.segments],
                loaded.log_start_offset,
                loaded.log_end_offset,
                loaded.flushed_offset,
                loaded.producers,
            )
            fds = []
        finally:
            for fd in fds:
                self._fs.close(fd)

    def open_segment(self, base_offset: int) -> bool:
        """Open a closed segment's .log and .index. False if it is open already or gone."""
        at = self._state.segment(base_offset)
        if at is None or at.is_open:
            return False
        fds: list[int] = []
        try:
            fds.append(self._fs.open(self.path_of(base_offset, file_names.LOG), os.O_RDONLY))
            fds.append(self._fs.open(self.path_of(base_offset, file_names.INDEX), os.O_RDONLY))
            if self._state.open_segment(base_offset, fds[0], fds[1], at.index_count):
                fds = []
        finally:
            for fd in fds:
                self._fs.close(fd)
        return True

    def open_indexes(self, base_offset: int) -> None:
        """Open the active segment's indexes for writing. No-op if the segment is gone."""
        if self._state.segment(base_offset) is None:
            return
        fds: list[int] = []
        try:
            fds = [
                self._fs.open(self.path_of(base_offset, suffix), os.O_RDWR | os.O_CREAT)
                for suffix in (file_names.INDEX, file_names.TIME_INDEX)
            ]
            if self._state.set_index_files(base_offset, fds[0], fds[1]):
                fds = []
        finally:
            for fd in fds:
                self._fs.close(fd)

    def open_time_index(self, base_offset: int) -> None:
        if self._state.segment(base_offset):
            fd = self._fs.open(self.path_of(base_offset, file_names.TIME_INDEX), os.O_RDONLY)
            self._state.map_time_index(base_offset, fd)

    def open_aborted(self, base_offset: int) -> None:
        """Open a segment's .txnindex; make it if it is missing, for the segment's first aborted transaction.

        The first opening of a closed segment's file checks it against the log. No-op if the segment is gone.
        """
        if self._state.segment(base_offset) is None:
            return
        path = self.path_of(base_offset, file_names.TRANSACTION_INDEX)
        if self._checks is not None and self._checks.confirm_aborted(base_offset):
            return
        try:
            fd, is_new = self._fs.open(path, os.O_RDWR), False
        except FileNotFoundError:
            fd, is_new = self._fs.open(path, os.O_RDWR | os.O_CREAT), True
        self._state.set_aborted_file(base_offset, fd, is_new)

    # --- checking indexes against the log

    @property
    def unread(self) -> Collection[int]:
        """Base offsets of closed segments whose largest timestamp is known from the time index only."""
        return () if self._checks is None else self._checks.unread

    def confirm(self, bases: Iterable[int], index_interval_bytes: int) -> bool:
        """Check the largest timestamps of these segments against the log, once for each segment.

        Returns whether one was wrong; then the indexes of that segment were made anew.
        """
        return self._checks is not None and self._checks.confirm(bases, index_interval_bytes)

    # --- writing

    def begin(self, base_offset: int, allocated: int, jitter_ms: int) -> None:
        """Make a new active segment, with `allocated` bytes reserved. After an error the old one stays active."""
        fd = -1
        try:
            segment = create_segment(self._fs, self.path, base_offset, allocated)
            fd = self._fs.open(self.path_of(base_offset, file_names.LOG), os.O_RDWR)
            self._state.finish_roll(segment, fd, jitter_ms)
        except BaseException:
            # The old active segment may still take smaller batches: an empty segment here would end the log at it.
            if fd >= 0:
                self._fs.close(fd)
            self._snapshot_offset = -1
            remove_segment(self._fs, self.path, base_offset)
            raise

    def write_indexes(self, *, final: bool, sync: bool = False) -> None:
        """Write the entries that the active segment's indexes lack. `final`: it takes no more messages."""
        if not self._state.has_index_files:
            self.open_indexes(self.active.base_offset)
        if self._state.lacks_aborted_file:
            self.open_aborted(self.active.base_offset)
        self._state.write_indexes(final, sync)

    def store_snapshot(self) -> None:
        """Store a snapshot of the producers as they are now. An OSError is logged, not raised."""
        producers, offset = self._state.producers()
        if offset in (0, self._snapshot_offset):  # before the first record there are no producers
            return
        try:
            if self.active.size == 0 and self._has_snapshot(offset):
                return  # the roll's snapshot, which holds the check sum of the previous segment's .txnindex
            store_snapshot(self._fs, self.path, offset, producers, self._aborted_index())
            self._snapshot_offset = offset
        except OSError as error:
            # The snapshot is derived from the log: without it the next start reads a little more.
            logger.warning("%s: no producer snapshot: %s", self.path, error)

    def _has_snapshot(self, offset: int) -> bool:
        try:
            return self._fs.size_of(self.path_of(offset, file_names.SNAPSHOT)) > 0
        except FileNotFoundError:
            return False

    def _aborted_index(self) -> AbortedIndex | None:
        """Return size and check sum of the active segment's .txnindex; None if it has no entries."""
        if not self._state.aborted_count:
            return None
        base_offset = self.active.base_offset
        try:
            data = read_file(self._fs, self.path_of(base_offset, file_names.TRANSACTION_INDEX))
        except FileNotFoundError:
            return None
        return AbortedIndex(base_offset, len(data), crc32c_of(data))

    def sync_names(self, base_offset: int) -> None:
        """Make the names of a segment's files and of the log's directory durable."""
        self._fs.sync_directory(self.path)
        self._fs.sync_directory(self.path.rpartition("/")[0])
        self._state.set_entry_synced(base_offset)

    # --- cutting

    def truncate(self, bases: list[int], base_offset: int, position: int) -> None:
        """Remove, durably, the segments of `bases` behind `base_offset`, and cut the one at `base_offset`.

        It is cut at byte `position`.
        """
        for gone in reversed([at for at in bases if at > base_offset]):
            remove_segment(self._fs, self.path, gone)
        self._fs.sync_directory(self.path)
        if base_offset in bases:
            # Durably: what was cut off must not come back once another segment begins there.
            self.cut(base_offset, position, sync=True)

    def replace(self, bases: list[int], base_offset: int) -> None:
        """Remove the segments of `bases`, durably, and make an empty one that begins at `base_offset`."""
        for gone in reversed(bases):
            remove_segment(self._fs, self.path, gone)
        self._fs.sync_directory(self.path)
        create_segment(self._fs, self.path, base_offset)

    def cut(self, base_offset: int, size: int, *, sync: bool = False) -> None:
        """Cut the segment's .log to `size` bytes; blocks reserved behind them are released. `sync` makes it durable."""
        fd = self._fs.open(self.path_of(base_offset, file_names.LOG), os.O_RDWR)
        try:
            self._fs.ftruncate(fd, size)
            if sync:
                self._fs.fdatasync(fd)
        finally:
            self._fs.close(fd)
