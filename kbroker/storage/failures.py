"""What goes wrong under a log: errors of its disk, and cleanings that are given up."""

from __future__ import annotations

import errno
import logging

from kbroker._core.log.directory import LogDirectory
from kbroker.errors import StorageFailed
from kbroker.model import TopicPartition

logger = logging.getLogger("kbroker.storage")

#: Errors of a broken disk: after one, no write to it can be trusted.
DISK_ERRORS = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EUCLEAN})

#: Errors of a disk that has no more space.
DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


class CleaningAborted(Exception):
    """A cleaning was given up because the log is deleted or changed or the broker stops. Nothing is wrong."""


class StorageErrors:
    """A context manager around the calls that a log makes to its disk.

    It logs an OSError and raises it as StorageFailed. An error of a broken disk takes the log directory offline.
    """

    __slots__ = ("_directory", "_name", "last_logged")

    def __init__(self, name: TopicPartition, directory: LogDirectory):
        self._name = name
        self._directory = directory
        self.last_logged = ""
        """The last error that was logged."""

    def log_once(self, what: str) -> None:
        """Log an error, unless the last one that was logged was the same: requests meet it again and again."""
        if what != self.last_logged:
            self.last_logged = what
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
                self.log_once(str(error))
            raise StorageFailed(f"{self._name}: {error}") from error
