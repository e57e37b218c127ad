"""A log whose files are not open: what is known about it, and how its files are loaded."""

from __future__ import annotations

import logging

from kbroker.fs import FileSystem
from kbroker.model import TopicPartition
from kbroker.storage.checkpoints import RECOVERY_POINTS
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.options import NEVER, LogOptions
from kbroker.storage.recovery import LoadedLog, LogLoader, LogRefused
from kbroker.storage.segment import Progress

logger = logging.getLogger("kbroker.storage")


class ClosedLog:
    """What is known about a log while it is closed: from the checkpoints, or from the log when it was closed.

    The log's lock guards changes.
    """

    __slots__ = ("_gaps_below", "_known_epoch", "_progress", "is_clean", "recovery_point", "refusal", "start_offset")

    def __init__(
        self,
        *,
        is_clean: bool,
        recovery_point: int,
        start_offset: int,
        progress: Progress | None,
        gaps_below: int,
        known_epoch: int,
    ):
        self.is_clean = is_clean
        """Whether the files may be taken as they are, without recovery."""
        self.recovery_point = recovery_point
        self.start_offset = start_offset
        self.refusal = ""
        """Why the log is never loaded: recovery would lose records of a clean stop. Empty: it may be loaded."""
        self._progress = progress
        self._gaps_below = gaps_below
        self._known_epoch = known_epoch

    def load(
        self,
        name: TopicPartition,
        fs: FileSystem,
        path: str,
        options: LogOptions,
        epochs: LeaderEpochs,
        leader_epoch: int,
    ) -> LoadedLog:
        """Load the log's files, recovered if need be. Raises OSError, StorageFailed and LogRefused."""
        loader = LogLoader(
            fs,
            path,
            options,
            epochs,
            is_clean=self.is_clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.start_offset,
            progress=self._progress,
            gaps_below=self._gaps_below,
            leader_epoch=max(leader_epoch, self._known_epoch),
        )
        try:
            loaded = loader.load()
        except LogRefused as refused:
            self.refusal = str(refused)
            raise
        if loaded.cut_bytes:
            logger.warning(
                "%s: recovery cut %d bytes, the log ends at offset %d", name, loaded.cut_bytes, loaded.log_end_offset
            )
        if self.is_clean and loaded.flushed_offset < self.recovery_point:
            logger.error(
                "%s was stopped cleanly at offset %d by %s, and its files end at %d: records are lost, or that file is"
                " wrong", name, self.recovery_point, RECOVERY_POINTS, loaded.flushed_offset,
            )  # fmt: skip
        return loaded

    def allow_cut(self) -> None:
        """Let a log be loaded that was refused: the next load cuts it."""
        if self.refusal:
            self.refusal = ""
            self.is_clean = False

    def opened(self) -> None:
        """Note that the files were opened: they need no recovery until something is cut off."""
        self.is_clean = True
        self._gaps_below = 0

    def cut(self, offset: int) -> None:
        """Note that the log is cut at `offset`.

        The next load makes indexes, epochs and producers from all that is left. It does not end the log at a gap: the
        records behind the gap were being served.
        """
        self.is_clean = False
        self._gaps_below = NEVER
        self.start_offset = min(self.start_offset, offset)
