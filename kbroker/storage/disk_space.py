"""Tells how much space the disks of the log directories have, and warns when it runs low."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

from kbroker._core.log.directory import LogDirectory

logger = logging.getLogger("kbroker.storage")

CHECK_INTERVAL_MS = 10_000
FULL_BELOW = 1 << 20
"""Bytes: a disk with less free space counts as full. A batch of the default largest size would not fit."""
_AGAIN_ABOVE = 1.1
"""Factor on the warning's share of free space: above it the warning is over, and the next one is logged again."""


class DiskSpace(NamedTuple):
    """The space of the file system that a directory is in, in bytes."""

    free: int
    """What this process may use: without the blocks reserved for the superuser."""
    total: int


def space_of(path: str) -> DiskSpace | None:
    """Return the space of the file system at `path`; None if the disk does not tell."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def is_full(directory: LogDirectory) -> bool:
    """Return whether appends would be refused for lack of space or by a quota. False if the directory is offline.

    If an append was refused and none has succeeded since, a file is made to see whether there is space again.
    """
    if directory.is_offline:
        return False
    space = space_of(directory.path)
    if space is not None and space.free < FULL_BELOW:
        return True
    if directory.is_full and _takes_a_file(directory.path):
        directory.find_space()
    return directory.is_full


def _takes_a_file(directory: str) -> bool:
    path = f"{directory}/space-probe.tmp"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, FULL_BELOW)
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108
    except OSError:
        return False
    return True


class SpaceWatch:
    """Warns about directories whose disk has less than `percent` of its space free; 0: never."""

    def __init__(self, percent: int):
        self._percent = percent
        self._low: set[str] = set()

    def check(self, directories: Iterable[LogDirectory]) -> None:
        """Log a line for each directory whose space has become low since the last call, or is not low any more."""
        for directory in directories:
            space = space_of(directory.path)
            if space is None or directory.is_offline or not space.total:
                continue
            share = 100 * space.free / space.total
            if share < self._percent and directory.path not in self._low:
                self._low.add(directory.path)
                logger.warning(
                    "log directory %s: %.1f %% of the disk is free (%d MiB), less than "
                    "kbroker.disk.free.warning.percent=%d; delete topics or lower their retention before it is full",
                    directory.path, share, space.free >> 20, self._percent,
                )  # fmt: skip
            elif share > self._percent * _AGAIN_ABOVE and directory.path in self._low:
                self._low.discard(directory.path)
                logger.info("log directory %s: %.1f %% of the disk is free again", directory.path, share)
