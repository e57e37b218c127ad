"""Room on the disk that the embedded store holds before it needs it, so that topics can be deleted where none is left.

It is in two places. SQLite's write-ahead log has on the disk what the largest change needs, from the start. And the
database has free pages, so that what moves there from the write-ahead log does not make it longer. SQLite removes its
write-ahead log when it is closed: a second name keeps the room for the next start.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

LEAST_FREE_PAGES = 16
"""Of the database; the mark of a deletion, or a setting, takes one or two."""
FREE_PAGES = 64
"""What it has again when there are fewer, once it is as large itself."""
FIRST_FREE_PAGES = 24
"""Before: each page is written while a new broker starts."""
LOG_SIZE = 2 << 20
"""Bytes of the write-ahead log, and as many more as the database has: a change may touch all of it."""
CHECKPOINT_PAGES = 250
"""Pages in the write-ahead log after which SQLite moves them, about half of `LOG_SIZE`."""
FULL_BELOW = 1 << 20
"""Bytes left on the disk; with less only changes that may free some are taken, for they live on what is held here."""

_HEADER_SIZE = 32  # of a write-ahead log; without it SQLite takes nothing from the file
_FILLER = "INSERT INTO node VALUES ('', zeroblob(?))"  # no node has this path


class StoreReserve:
    """That of the database at `path`. Called by one thread at a time."""

    def __init__(self, path: str):
        self._path = path
        self._log_path = f"{path}-wal"
        self._kept_path = f"{path}-reserve"
        self._fd = -1
        self._size = 0
        self._is_closed = False

    def take_up(self) -> None:
        """Before the database is opened: what the last stop has kept is its write-ahead log."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.exists(self._log_path):  # noqa: PTH110 (pathlib is slower, and this is part of each start)
                os.unlink(self._kept_path)  # noqa: PTH108 (the stop was cut short: it is a second name of the same)
            else:
                self._void()
                os.rename(self._kept_path, self._log_path)  # noqa: PTH104

    def hold_pages(self, database: sqlite3.Connection) -> None:
        """In a transaction: the database has free pages enough when that is done."""
        free = database.execute("PRAGMA freelist_count").fetchone()[0]
        if free < LEAST_FREE_PAGES:
            page_size, page_count = (
                database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count")
            )
            wanted = FREE_PAGES if page_count >= FREE_PAGES else FIRST_FREE_PAGES
            # Free pages are taken first: so many more have to be asked for.
            database.execute(_FILLER, ((free + wanted) * page_size,))
            database.execute("DELETE FROM node WHERE path = ''")

    def hold_log(self) -> None:
        """Once the database is open: its write-ahead log is as long as it may become. OSError without room."""
        wanted = LOG_SIZE + os.stat(self._path).st_size  # noqa: PTH116
        if wanted > self._size:
            if self._fd < 0:
                self._fd = os.open(self._log_path, os.O_RDWR | os.O_CLOEXEC)
            os.posix_fallocate(self._fd, 0, wanted)
            self._size = wanted

    def is_needed(self) -> bool:
        """Whether the disk is full, or nearly."""
        try:
            disk = os.statvfs(self._path)
        except OSError:  # the change itself will tell
            return False
        return disk.f_bavail * disk.f_frsize < FULL_BELOW

    def close(self, database: sqlite3.Connection) -> None:
        """Close the database, and keep the room of its write-ahead log if the file system lets files have two names."""
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
                # It could not be moved into the database, and is needed.
                os.unlink(self._kept_path)  # noqa: PTH108
            else:
                self._void()

    def _void(self) -> None:
        fd = os.open(self._kept_path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, bytes(_HEADER_SIZE), 0)
        finally:
            os.close(fd)
