"""Directories that are made and removed by the thousand."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.fs import RealFileSystem


def memory_directory() -> str | None:
    """The directory of files in memory, or None."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def quick_directory() -> Iterator[Path]:
    """Yield a new directory, in memory if possible."""
    path = Path(tempfile.mkdtemp(prefix="kbroker-crash-", dir=memory_directory()))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class UnsyncedFileSystem(RealFileSystem):
    """The real file system, without waiting for the device."""

    passthrough = False

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass
