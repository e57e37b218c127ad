"""What the logs of one broker share, and how the errors of their disks are taken."""

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

#: Errors of the disk, after which nothing that it holds can be trusted to be written.
DISK_ERRORS = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EUCLEAN})

#: Errors of a disk that has no more room.
DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


class CleaningAborted(Exception):
    """The log is not to be cleaned now: it goes, it changes, or the broker stops. Nothing is wrong."""


class AppendResult(NamedTuple):
    """Where a batch went."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    must_wait: bool
    """The flush policy asks for a flush before this is acknowledged."""


class ActiveProducer(NamedTuple):
    """A producer that a partition remembers, as DescribeProducers tells of it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    """-1: none is known of this epoch."""
    last_timestamp: int
    coordinator_epoch: int
    """Of the last marker, -1 without one."""
    transaction_start_offset: int
    """-1: it has no open transaction."""


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
        """A closed segment has got descriptors; the LRU may close others."""
        self.on_log_start_moved = on_log_start_moved
        """Makes the log start offsets of the directory durable."""
        self.remove_later = remove_later
        """Unlinks files after file.delete.delay.ms, when nobody reads them any more."""
        self.producer_id_expiration_ms = producer_id_expiration_ms
        """Idempotent producers that are silent for so long are forgotten. May be changed at any time."""
        self.on_recovery_point_lowered = on_recovery_point_lowered
        """Makes the recovery points of the directory durable."""


class StorageErrors:
    """Around what a log asks of its disk: an OSError becomes StorageFailed and is told. One that means a broken disk
    takes the log directory offline."""

    __slots__ = ("_directory", "_name", "told")

    def __init__(self, name: TopicPartition, directory: LogDirectory):
        self._name = name
        self._directory = directory
        self.told = ""
        """What has last been told."""

    def tell(self, what: str) -> None:
        """One line about an error that keeps the log from what it is asked for, not again for each request."""
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
