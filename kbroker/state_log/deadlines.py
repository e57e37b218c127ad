"""One thread and one heap for everything in a coordinator that happens by itself at a time."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from kbroker.clock import Clock

LOG = logging.getLogger(__name__)


class Deadlines:
    """Calls back when a time has come. The thread begins with the first call that is scheduled.

    Nothing is ever taken out of the heap: who no longer wants to be called ignores the call. Without `threaded`
    somebody else calls `run_due`.
    """

    def __init__(self, name: str, clock: Clock, threaded: bool = True):
        self._threaded = threaded
        self._name = name
        self._clock = clock
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def now_ms(self) -> int:
        """Monotonic milliseconds, the time that `schedule` counts in."""
        return int(self._clock.monotonic() * 1000)

    def schedule(self, due_ms: int, call: Callable[[], None]) -> None:
        """Calls `call` on the thread, once, not before `due_ms`."""
        with self._wake:
            if self._stopping:
                return
            is_next = not self._heap or due_ms < self._heap[0][0]
            heapq.heappush(self._heap, (due_ms, next(self._numbers), call))
            if self._thread is None and self._threaded:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif is_next:
                self._wake.notify()

    def every(self, interval_ms: int, call: Callable[[], object]) -> None:
        """Calls `call` on the thread, again and again, the first time in `interval_ms`."""

        def run() -> None:
            try:
                call()
            finally:
                self.every(interval_ms, call)

        self.schedule(self.now_ms() + interval_ms, run)

    def stop(self) -> None:
        """Forgets everything that is scheduled and ends the thread."""
        with self._wake:
            self._stopping = True
            self._heap.clear()
            self._wake.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def run_due(self) -> int | None:
        """Calls everything that is due; returns when the next one is, or None."""
        while True:
            now_ms = self.now_ms()
            with self._wake:
                if not self._heap:
                    return None
                due_ms = self._heap[0][0]
                if due_ms > now_ms:
                    return due_ms
                call = heapq.heappop(self._heap)[2]
            try:
                call()
            except Exception:
                LOG.exception("%s: something that was due failed", self._name)

    def _run(self) -> None:
        while True:
            next_ms = self.run_due()
            with self._wake:
                if self._stopping:
                    return
                if self._heap and self._heap[0][0] != next_ms:
                    continue  # something earlier was scheduled meanwhile
                self._wake.wait(None if next_ms is None else max(next_ms - self.now_ms(), 1) / 1000)
