"""The parts that a file of a log directory is shown as: entries, and problems with the byte at which they are."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

WHOLE_FILE = -1  #: position of a problem that concerns the file as a whole
LARGEST_FILE = 512 << 20  #: bytes: the largest file that is read in one piece; only logs are larger


class Entry(NamedTuple):
    """One entry of a file."""

    kind: str
    position: int
    fields: dict[str, Any]


class Problem(NamedTuple):
    """Something wrong in a file, and at which byte."""

    position: int
    what: str


class Finding(NamedTuple):
    """A problem and the file that has it."""

    path: str
    position: int
    what: str

    def __str__(self) -> str:
        place = f"byte {self.position}: " if self.position != WHOLE_FILE else ""
        return f"{self.path}: {place}{self.what}"


Found = Iterator[Entry | Problem]


def open_regular(path: str) -> int:
    """Open a file for reading and return its descriptor. Raises OSError, also if it is not a regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def read_whole(path: str) -> bytes:
    """Return the bytes of a file, up to its size now. Raises OSError, also if it is larger than LARGEST_FILE."""
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        if size > LARGEST_FILE:
            raise OSError(errno.EFBIG, f"{size} bytes, more than such a file has", path)
        parts = []
        position = 0
        while position < size and (part := os.pread(fd, size - position, position)):
            parts.append(part)
            position += len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def reason_of(error: OSError) -> str:
    """Return an error as text for people, without the file's name."""
    return (error.strerror or str(error)).lower()
