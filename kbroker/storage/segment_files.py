"""Files of one log's segments: opened for the compiled core, which reads and writes them, begun, cut, made durable."""

from __future__ import annotations

import contextlib
import logging
import os

from kbroker._core.partition_state import PartitionState
from kbroker.fs import FileSystem
from kbroker.storage import segment as names
from kbroker.storage.producer_state import store_snapshot
from kbroker.storage.recovery import create_segment, remove_segment

logger = logging.getLogger("kbroker.storage")


class SegmentFiles:
    """The files in a log's directory `path`; `state` knows which segments there are. Who calls has the log's lock."""

    def __init__(self, fs: FileSystem, path: str, state: PartitionState):
        self.path = path
        self._fs = fs
        self._state = state
        self._snapshot_offset = -1

    def path_of(self, base_offset: int, suffix: str) -> str:
        return f"{self.path}/{names.file_name(base_offset, suffix)}"

    @property
    def active(self) -> tuple[int, ...]:
        """The active segment of an open log: base offset, size, ..."""
        active = self._state.segment()
        if active is None:
            raise AssertionError(f"{self.path} has no segments")
        return active

    @property
    def size(self) -> int:
        """Bytes of the messages on disk, whether or not the log is open. Raises OSError."""
        size = 0
        for name in self._fs.list_directory(self.path):
            if name.endswith(names.LOG):
                with contextlib.suppress(FileNotFoundError):  # recovery has removed it meanwhile
                    size += self._fs.size_of(f"{self.path}/{name}")
        return size

    # --- opened: the state owns the descriptors that it takes

    def open_segment(self, base_offset: int) -> bool:
        """A closed segment's messages and offsets. False where it is open already, or gone."""
        at = self._state.segment(base_offset)
        if at is None or at[8]:
            return False
        fds: list[int] = []
        try:
            fds.append(self._fs.open(self.path_of(base_offset, names.LOG), os.O_RDONLY))
            fds.append(self._fs.open(self.path_of(base_offset, names.INDEX), os.O_RDONLY))
            if self._state.open_segment(base_offset, fds[0], fds[1], at[6]):
                fds = []
        finally:
            for fd in fds:
                self._fs.close(fd)
        return True

    def open_indexes(self, base_offset: int) -> None:
        """The active segment's, to be written. No-op where the segment is gone."""
        if self._state.segment(base_offset) is None:
            return
        fds: list[int] = []
        try:
            fds = [
                self._fs.open(self.path_of(base_offset, suffix), os.O_RDWR | os.O_CREAT)
                for suffix in (names.INDEX, names.TIME_INDEX)
            ]
            if self._state.set_index_files(base_offset, fds[0], fds[1]):
                fds = []
        finally:
            for fd in fds:
                self._fs.close(fd)

    def open_time_index(self, base_offset: int) -> None:
        if self._state.segment(base_offset):
            fd = self._fs.open(self.path_of(base_offset, names.TIME_INDEX), os.O_RDONLY)
            self._state.map_time_index(base_offset, fd)

    def open_aborted(self, base_offset: int) -> None:
        """A segment's .txnindex; made where the first transaction is being aborted in it. No-op where that is gone."""
        if self._state.segment(base_offset) is None:
            return
        path = self.path_of(base_offset, names.TRANSACTION_INDEX)
        try:
            fd, is_new = self._fs.open(path, os.O_RDWR), False
        except FileNotFoundError:
            fd, is_new = self._fs.open(path, os.O_RDWR | os.O_CREAT), True
        self._state.set_aborted_file(base_offset, fd, is_new)

    # --- written

    def begin(self, base_offset: int, allocated: int, jitter_ms: int) -> None:
        """A new active segment."""
        fd = -1
        try:
            segment = create_segment(self._fs, self.path, base_offset, allocated)
            fd = self._fs.open(self.path_of(base_offset, names.LOG), os.O_RDWR)
            self._state.finish_roll(segment, fd, jitter_ms)
        except BaseException:
            # The active segment may take smaller batches still: an empty one at this offset would end the log here.
            if fd >= 0:
                self._fs.close(fd)
            self._snapshot_offset = -1
            remove_segment(self._fs, self.path, base_offset)
            raise

    def write_indexes(self, *, final: bool, sync: bool = False) -> None:
        """What the active segment's indexes lack; `final` where it takes no more messages."""
        if not self._state.has_index_files:
            self.open_indexes(self.active[0])
        if self._state.lacks_aborted_file:
            self.open_aborted(self.active[0])
        self._state.write_indexes(final, sync)

    def store_snapshot(self) -> None:
        """The producers as they are now."""
        producers, offset = self._state.producers()
        if offset in (0, self._snapshot_offset):  # before the first record there are no producers
            return
        try:
            store_snapshot(self._fs, self.path, offset, producers)
            self._snapshot_offset = offset
        except OSError as error:
            # Derived state: without it the next start reads a little more.
            logger.warning("%s: no producer snapshot: %s", self.path, error)

    def sync_names(self, base_offset: int) -> None:
        """The names of a segment's files, and the log's own, survive from here on."""
        self._fs.sync_directory(self.path)
        self._fs.sync_directory(self.path.rpartition("/")[0])
        self._state.set_entry_synced(base_offset)

    # --- cut

    def truncate(self, bases: list[int], base_offset: int, position: int) -> None:
        """Durably gone: of the segments at `bases` those behind `base_offset`, of that one what follows `position`."""
        for gone in reversed([at for at in bases if at > base_offset]):
            remove_segment(self._fs, self.path, gone)
        self._fs.sync_directory(self.path)
        if base_offset in bases:
            # Durably: what was cut off must not come back beneath a segment that begins there.
            self.cut(base_offset, position, sync=True)

    def cut(self, base_offset: int, size: int, *, sync: bool = False) -> None:
        """The segment's file has `size` bytes, and no blocks behind them."""
        fd = self._fs.open(self.path_of(base_offset, names.LOG), os.O_RDWR)
        try:
            self._fs.ftruncate(fd, size)
            if sync:
                self._fs.fdatasync(fd)
        finally:
            self._fs.close(fd)
