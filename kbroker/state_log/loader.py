"""The thread that replays partitions in the background, so that a start does not wait for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

LOG = logging.getLogger(__name__)


class Loader:
    """Runs loads one after the other on a thread, which exists only while there are loads."""

    def __init__(self, name: str):
        self._name = name
        self._lock = threading.Lock()
        self._queue: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def submit(self, load: Callable[[], None]) -> None:
        """Run `load` on the thread; what it raises is logged. Ignored after `stop`."""
        with self._lock:
            if self._stopping:
                return
            self._queue.append(load)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Drop the loads that have not begun, and wait for the running one.

        A load has to notice by itself that it should end: this does not interrupt it.
        """
        with self._lock:
            self._stopping = True
            self._queue.clear()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                load = self._queue.popleft()
            try:
                load()
            except Exception:
                LOG.exception("%s: a load failed", self._name)
