"""The names of threads as the system knows them, for debuggers, profilers and `top`. Python 3.14 gives them itself."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

LONGEST = 15
"""Bytes that the system keeps of a name."""


def name_thread(native_id: int | None, name: str) -> None:
    """Name one thread, which else bears the name of the thread that has started it. No-op if it has ended."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{native_id}/comm").write_text(name[:LONGEST])


def name_threads() -> None:
    """Give all threads that run their Python names; the main thread keeps the name of the program."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            name_thread(thread.native_id, thread.name)
