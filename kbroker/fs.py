"""The file system calls of the log, injected so that tests can simulate a power cut at each of them.

With the real file system (`passthrough` is true) the compiled core writes, syncs and truncates file descriptors itself.
Otherwise it calls `pwrite`, `fdatasync` and `ftruncate` here.
"""

from __future__ import annotations

import errno
import os
from typing import Protocol

FALLOC_FL_KEEP_SIZE = 1  # <linux/falloc.h>
SYNC_FILE_RANGE_WRITE = 2  # <linux/fs.h>


class FileSystem(Protocol):
    """The interface of a file system: what the log needs. Its calls raise OSError, as those of the `os` module.

    Descriptors are real ones: code that only reads or maps files may use them directly.
    """

    passthrough: bool

    def open(self, path: str, flags: int, mode: int = 0o644) -> int: ...
    def close(self, fd: int) -> None: ...
    def pread(self, fd: int, size: int, position: int) -> bytes: ...
    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int: ...
    def fdatasync(self, fd: int) -> None: ...
    def ftruncate(self, fd: int, size: int) -> None: ...
    def allocate(self, fd: int, size: int) -> None:
        """Reserve disk space for the file's first `size` bytes, without changing its size.

        Does nothing where the file system cannot do that.
        """

    def start_writeback(self, fd: int, size: int, position: int) -> None:
        """Let the kernel begin to write that range to the disk, so that a later sync has less to do.

        It is a hint, and promises nothing.
        """

    def file_size(self, fd: int) -> int: ...
    def size_of(self, path: str) -> int: ...
    def rename(self, source: str, target: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def mkdir(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def list_directory(self, path: str) -> list[str]: ...
    def sync_directory(self, path: str) -> None: ...


def write_all(fs: FileSystem, fd: int, data: bytes | memoryview, position: int = 0) -> None:
    """Write the whole of `data`, going on after short writes. Raises OSError when nothing more can be written."""
    while data:
        written = fs.pwrite(fd, data, position)
        if written <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        position += written
        data = data[written:]


def read_file(fs: FileSystem, path: str) -> bytes:
    """Return the content of a (small) file."""
    fd = fs.open(path, os.O_RDONLY)
    try:
        data = b""
        while chunk := fs.pread(fd, 1 << 20, len(data)):
            data += chunk
        return data
    finally:
        fs.close(fd)


def write_file(fs: FileSystem, path: str, data: bytes, *, durable: bool = True) -> None:
    """Write a file's whole content. `durable`: sync the content to the device; the file's name is not synced."""
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fs, fd, data)
        if durable:
            fs.fdatasync(fd)
    finally:
        fs.close(fd)


def replace_file(fs: FileSystem, path: str, data: bytes, *, durable: bool = True) -> None:
    """Write `path` by way of `path`.tmp, so that a reader finds the old or the new content, never a part.

    `durable`: that holds after a power cut too.
    """
    temporary = path + ".tmp"
    write_file(fs, temporary, data, durable=durable)
    fs.rename(temporary, path)
    if durable:
        fs.sync_directory(os.path.dirname(path) or ".")  # noqa: PTH120


class RealFileSystem:
    """The operating system's file system."""

    passthrough = True

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        return os.pread(fd, size, position)

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        return os.pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        import ctypes  # the os module has no fallocate that keeps the size

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(fd, FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)):
            code = ctypes.get_errno()
            if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise OSError(code, os.strerror(code))

    def start_writeback(self, fd: int, size: int, position: int) -> None:
        import ctypes

        at, count = ctypes.c_int64(position), ctypes.c_int64(size)
        ctypes.CDLL(None).sync_file_range(fd, at, count, SYNC_FILE_RANGE_WRITE)

    def file_size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size  # noqa: PTH116

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)  # noqa: PTH104 (the log's calls stay one to one with the system's)

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def mkdir(self, path: str) -> None:
        os.mkdir(path)  # noqa: PTH102

    def rmdir(self, path: str) -> None:
        os.rmdir(path)  # noqa: PTH106

    def list_directory(self, path: str) -> list[str]:
        return os.listdir(path)  # noqa: PTH208

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
