"""A lock that tells a second loader at once that another one is at work.

Lakes are safe without it, on file systems without locks too: only the commit decides.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kbroker.spark.loader.errors import LakeTaken
from kbroker.spark.loader.lake.storage import HOME, Directory


@contextmanager
def locked(storage: Directory) -> Iterator[bool]:
    """Hold the lake's lock, and yield whether it is held: it is not where the file system has no locks.

    Raises LakeTaken when another process, which lives, holds it.
    """
    path = Path(storage.name) / HOME / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    held = True
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LakeTaken(f"{storage.name}: another loader is at work there; nothing was done") from None
        except OSError:
            held = False
        yield held
    finally:
        os.close(fd)
