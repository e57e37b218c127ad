"""Removing the files of deleted segments and logs, after a delay and once nobody reads them any more."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kbroker._core.log.segment_list import SegmentHandle
from kbroker.fs import FileSystem
from kbroker.storage import directory as directories
from kbroker.storage.scheduler import Scheduler

logger = logging.getLogger("kbroker.storage")

_READERS_WAIT_MS = 1000


class Removals:
    """Removes files as jobs of a scheduler. The handles of segments tell whether the segments are still read."""

    def __init__(self, fs: FileSystem, scheduler: Scheduler):
        self._fs = fs
        self._scheduler = scheduler

    def remove_files_later(self, delay_ms: int, handles: Sequence[SegmentHandle], paths: Sequence[str]) -> None:
        """Unlink files after a delay."""
        self._scheduler.once(delay_ms, lambda: self._remove_files(handles, paths))

    def remove_directory_later(self, delay_ms: int, handles: Sequence[SegmentHandle], path: str) -> None:
        """Remove a log's directory after a delay."""
        self._scheduler.once(delay_ms, lambda: self._remove_directory(handles, path))

    def _remove_files(self, handles: Sequence[SegmentHandle], paths: Sequence[str]) -> None:
        if any(handle.in_use for handle in handles):
            self.remove_files_later(_READERS_WAIT_MS, handles, paths)
            return
        for path in paths:
            try:
                self._fs.unlink(path)
            except FileNotFoundError:
                pass

    def _remove_directory(self, handles: Sequence[SegmentHandle], path: str) -> None:
        if any(handle.in_use for handle in handles):
            self.remove_directory_later(_READERS_WAIT_MS, handles, path)
            return
        try:
            directories.remove_partition_directory(self._fs, path)
        except OSError as error:
            # The next start tries again to remove what is left.
            logger.error("%s cannot be removed: %s", path, directories.reason_of(error))
