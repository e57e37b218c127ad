"""What the logs of one broker share, and how errors of their disks are handled."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker._core.log.directory import LogDirectory
from kbroker._core.log.segment_list import SegmentHandle
from kbroker.clock import Clock
from kbroker.errors import StorageFailed
from kbroker.fs import FileSystem
from kbroker.model import TopicPartition

if TYPE_CHECKING:
    from kbroker.storage.log import Log

logger = logging.getLogger("kbroker.storage")

#: Errors of a broken disk: after one, no write to it can be trusted.
DISK_ERRORS = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EUCLEAN})

#: Errors of a disk that has no more space.
DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


class CleaningAborted(Exception):
    """A cleaning was given up because the log is deleted or changed or the broker stops. Nothing is wrong."""


class AppendResult(NamedTuple):
    """Where a batch was appended."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    must_wait: bool
    """The flush policy asks for a flush before this is acknowledged."""


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers, as DescribeProducers describes it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1: no sequence of this epoch is known."""
    last_timestamp: int
    coordinator_epoch: int
    """The coordinator epoch of the last marker; -1: no marker."""
    transaction_start_offset: int
    """-1: the producer has no open transaction."""


class LogContext:
    """What the logs of one broker share."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        randomness: random.Random,
        on_segment_opened: Callable[[Log, int], None],
        on_log_start_moved: Callable[[Log], None],
        remove_later: Callable[[Log, list[SegmentHandle], list[str]], None],
        producer_id_expiration_ms: int = 86_400_000,
        on_recovery_point_lowered: Callable[[Log], None] = lambda log: None,
    ):
        self.fs = fs
        self.clock = clock
        self.random = randomness
        self.on_segment_opened = on_segment_opened
        """Called when a closed segment has got descriptors. Others may be closed for it."""
        self.on_log_start_moved = on_log_start_moved
        """Makes the log start offsets of the directory durable."""
        self.remove_later = remove_later
        """Unlinks files after file.delete.delay.ms, when nobody reads them any more."""
        self.producer_id_expiration_ms = producer_id_expiration_ms
        """An idempotent producer that has been silent for so long is forgotten. May be changed at any time."""
        self.on_recovery_point_lowered = on_recovery_point_lowered
        """Makes the recovery points of the directory durable."""


class StorageErrors:
    """A context manager around what a log asks of its disk.

    It logs an OSError and raises it as StorageFailed. An error of a broken disk takes the log directory offline.
    """

    __slots__ = ("_directory", "_name", "told")

    def __init__(self, name: TopicPartition, directory: LogDirectory):
        self._name = name
        self._directory = directory
        self.told = ""
        """The last error that was logged."""

    def tell(self, what: str) -> None:
        """Log an error, unless it is the one that was logged last: requests meet the same error again and again."""
        if what != self.told:
            self.told = what
            logger.error("%s: %s", self._name, what)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            if error.errno in DISK_ERRORS:
                self._directory.fail(f"{self._name}: {error}")
            elif error.errno in DISK_FULL_ERRORS:
                self._directory.tell_full(str(self._name))
            else:
                self.tell(str(error))
            raise StorageFailed(f"{self._name}: {error}") from error
