"""The temporary directory of a broker: removed when the broker is closed, or by a later run of tests.

The later run removes what is left of a run that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "kbroker-testing-"
OWNER = "owner.lock"


class Folder:
    """A temporary directory; `path` exists until `remove`. Its owner is the process that locks a file in it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path / OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the directory and all that is in it, and release its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_ownerless() -> None:
    """Remove the directories that test runs have left when they were killed: nobody holds their lock."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is another user's, has no lock file yet, or its lock is held
            lock = os.open(path / OWNER, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
