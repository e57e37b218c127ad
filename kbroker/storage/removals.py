"""Removing the files of deleted segments and logs, after a delay and once nobody reads them any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

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
        self._remove_later(delay_ms, handles, lambda: self._unlink(paths))

    def remove_directory_later(self, delay_ms: int, handles: Sequence[SegmentHandle], path: str) -> None:
        """Remove a log's directory after a delay."""
        self._remove_later(delay_ms, handles, lambda: self._remove_directory(path))

    def _remove_later(self, delay_ms: int, handles: Sequence[SegmentHandle], remove: Callable[[], None]) -> None:
        """Call `remove` after a delay, and then only once nobody reads the segments any more."""

        def remove_or_wait() -> None:
            if any(handle.in_use for handle in handles):
                self._remove_later(_READERS_WAIT_MS, handles, remove)
            else:
                remove()

        self._scheduler.once(delay_ms, remove_or_wait)

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._fs.unlink(path)
            except FileNotFoundError:
                pass

    def _remove_directory(self, path: str) -> None:
        try:
            directories.remove_partition_directory(self._fs, path)
        except OSError as error:
            # The next start tries again to remove what is left.
            logger.error("%s cannot be removed: %s", path, directories.reason_of(error))
