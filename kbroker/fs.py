"""The file system calls of the log, injected so that tests can cut the power at every one of them (DESIGN D7).

The compiled core writes, syncs and truncates through file descriptors itself when the file system is the real one
(`passthrough` is true); otherwise it calls `pwrite`, `fdatasync` and `ftruncate` here.
"""

from __future__ import annotations

import os
from typing import Protocol


class FileSystem(Protocol):
    """What the log asks of a file system. Errors are `OSError`, as from the `os` module."""

    passthrough: bool

    def open(self, path: str, flags: int, mode: int = 0o644) -> int: ...
    def close(self, fd: int) -> None: ...
    def pwrite(self, fd: int, data: bytes, position: int) -> int: ...
    def fdatasync(self, fd: int) -> None: ...
    def ftruncate(self, fd: int, size: int) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def mkdir(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def sync_directory(self, path: str) -> None: ...


class RealFileSystem:
    """The operating system's file system."""

    passthrough = True

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        return os.pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)  # noqa: PTH104 (the log's calls stay one to one with the system's)

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def mkdir(self, path: str) -> None:
        os.mkdir(path)  # noqa: PTH102

    def rmdir(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
