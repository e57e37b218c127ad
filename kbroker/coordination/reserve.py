"""Disk space that the embedded store reserves in advance, so that topics can be deleted when the disk is full.

The reserve is in two places. SQLite's write-ahead log has its largest size on disk from the start. And the database has
free pages, so that it does not grow when pages move there from the write-ahead log. SQLite removes the write-ahead log
when it closes it; a hard link keeps its space for the next start.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

LEAST_FREE_PAGES = 16
"""If the database has fewer free pages than this, it gets new ones. A mark of deletion or a config takes one or two."""
FREE_PAGES = 64
"""The number of free pages that it gets, once it has as many pages itself."""
FIRST_FREE_PAGES = 24
"""The number of free pages that a smaller database gets: fewer, as a new broker writes each page during its start."""
LOG_SIZE = 2 << 20
"""Bytes of the write-ahead log, plus the size of the database, since one change may touch all of it."""
CHECKPOINT_PAGES = 250
"""Pages in the write-ahead log after which SQLite moves them to the database: about half of `LOG_SIZE`."""
FULL_BELOW = 1 << 20
"""Free bytes of the disk. With less, only changes that may use the reserve are accepted."""

_HEADER_SIZE = 32  # bytes of a write-ahead log's header; if it is zero, SQLite ignores the file's contents
_FILLER = "INSERT INTO node VALUES ('', zeroblob(?))"  # no node has this path


class StoreReserve:
    """The reserve of the database at `path`. Used by one thread at a time."""

    def __init__(self, path: str):
        self._path = path
        self._log_path = f"{path}-wal"
        self._kept_path = f"{path}-reserve"
        self._fd = -1
        self._size = 0
        self._is_closed = False

    def take_up(self) -> None:
        """Make the file that the last stop has kept the write-ahead log. Called before the database is opened."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.exists(self._log_path):  # noqa: PTH110 (pathlib is slower, and this is part of each start)
                os.unlink(self._kept_path)  # noqa: PTH108 (the stop was cut short: both are names of the same file)
            else:
                self._void()
                os.rename(self._kept_path, self._log_path)  # noqa: PTH104

    def hold_pages(self, database: sqlite3.Connection) -> None:
        """Give the database enough free pages. Called in a transaction."""
        free = database.execute("PRAGMA freelist_count").fetchone()[0]
        if free < LEAST_FREE_PAGES:
            page_size, page_count = (
                database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count")
            )
            wanted = FREE_PAGES if page_count >= FREE_PAGES else FIRST_FREE_PAGES
            # The filler takes the present free pages first, so its size is these and the wanted ones.
            database.execute(_FILLER, ((free + wanted) * page_size,))
            database.execute("DELETE FROM node WHERE path = ''")

    def hold_log(self) -> None:
        """Give the write-ahead log its largest size. Called when the database is open. Raises OSError without space."""
        wanted = LOG_SIZE + os.stat(self._path).st_size  # noqa: PTH116
        if wanted > self._size:
            if self._fd < 0:
                self._fd = os.open(self._log_path, os.O_RDWR | os.O_CLOEXEC)
            os.posix_fallocate(self._fd, 0, wanted)
            self._size = wanted

    def is_needed(self) -> bool:
        """Whether the disk is full or nearly full."""
        try:
            disk = os.statvfs(self._path)
        except OSError:  # the change itself will fail and say why
            return False
        return disk.f_bavail * disk.f_frsize < FULL_BELOW

    def close(self, database: sqlite3.Connection) -> None:
        """Close the database, and keep the space of its write-ahead log if the file system has hard links."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(OSError):
            os.link(self._log_path, self._kept_path)
        database.close()
        if self._fd >= 0:
            os.close(self._fd)
        with contextlib.suppress(OSError):
            if os.path.exists(self._log_path):  # noqa: PTH110
                # SQLite could not move it into the database: it is needed as it is.
                os.unlink(self._kept_path)  # noqa: PTH108
            else:
                self._void()

    def _void(self) -> None:
        fd = os.open(self._kept_path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, bytes(_HEADER_SIZE), 0)
        finally:
            os.close(fd)
