"""A log whose files are not open: what is known of it all the same, and how they are loaded."""

from __future__ import annotations

import logging

from kbroker.fs import FileSystem
from kbroker.model import TopicPartition
from kbroker.storage.checkpoints import RECOVERY_POINTS
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.options import LogOptions
from kbroker.storage.recovery import LoadedLog, LogLoader, LogRefused, Progress

logger = logging.getLogger("kbroker.storage")


class ClosedLog:
    """What the checkpoints have said of a log, or it itself when it was closed. The log's lock guards changes."""

    __slots__ = ("_may_have_gaps", "_progress", "is_clean", "recovery_point", "refusal", "start_offset")

    def __init__(
        self,
        *,
        is_clean: bool,
        recovery_point: int,
        start_offset: int,
        progress: Progress | None,
        may_have_gaps: bool,
    ):
        self.is_clean = is_clean
        """Whether its files may be taken as they are."""
        self.recovery_point = recovery_point
        self.start_offset = start_offset
        self.refusal = ""
        """Why it is not loaded, for good: it would lose what it has."""
        self._progress = progress
        self._may_have_gaps = may_have_gaps

    def load(
        self,
        name: TopicPartition,
        fs: FileSystem,
        path: str,
        options: LogOptions,
        epochs: LeaderEpochs,
        leader_epoch: int,
    ) -> LoadedLog:
        """Its files, recovered if need be. Raises OSError, StorageFailed and LogRefused."""
        loader = LogLoader(
            fs,
            path,
            options,
            epochs,
            is_clean=self.is_clean,
            recovery_point=self.recovery_point,
            log_start_offset=self.start_offset,
            progress=self._progress,
            may_have_gaps=self._may_have_gaps,
            leader_epoch=leader_epoch,
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

    def opened(self) -> None:
        """The files are open: they need no recovery for as long as nothing is cut."""
        self.is_clean = True
        self._may_have_gaps = False

    def cut(self, offset: int) -> None:
        """The log is to end at `offset`: indexes, epochs and producers are made from what is left, however much that
        is. A gap that was served is not its end."""
        self.is_clean = False
        self._may_have_gaps = True
        self.start_offset = min(self.start_offset, offset)
