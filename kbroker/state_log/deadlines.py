"""The timer of a coordinator: one thread and one heap for all calls that are to happen at a time."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from kbroker.clock import Clock

LOG = logging.getLogger(__name__)


MOST_CANCELLED = 64
"""Cancelled calls that may stay in the heap. If there are more, and they are most of it, they are taken out."""


class Alarm:
    """A scheduled call."""

    __slots__ = ("_deadlines", "call")

    def __init__(self, deadlines: Deadlines, call: Callable[[], None]):
        self._deadlines = deadlines
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Cancel the call; no-op if it has happened."""
        self._deadlines.cancel(self)


class Deadlines:
    """Calls back at scheduled times, on one thread, which begins with the first scheduled call.

    Without `threaded` there is no thread: the owner calls `run_due`.
    """

    def __init__(self, name: str, clock: Clock, threaded: bool = True):
        self._threaded = threaded
        self._name = name
        self._clock = clock
        self._heap: list[tuple[int, int, Alarm]] = []
        self._cancelled = 0
        self._numbers = itertools.count()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False

    def now_ms(self) -> int:
        """The time that `schedule` counts in: monotonic milliseconds."""
        return int(self._clock.monotonic() * 1000)

    def soon(self, call: Callable[[], None]) -> Alarm:
        """Do what `schedule` does, as soon as the thread can."""
        return self.schedule(self.now_ms(), call)

    def schedule(self, due_ms: int, call: Callable[[], None]) -> Alarm:
        """Call `call` on the thread, once, not before `due_ms`. What it raises is logged."""
        alarm = Alarm(self, call)
        with self._wake:
            if self._stopping:
                return alarm
            is_next = not self._heap or due_ms < self._heap[0][0]
            heapq.heappush(self._heap, (due_ms, next(self._numbers), alarm))
            if self._thread is None and self._threaded:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif is_next:
                self._wake.notify()
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Cancel `alarm`; no-op if its call has happened."""
        with self._wake:
            if alarm.call is None:
                return
            alarm.call = None
            self._cancelled += 1
            if self._cancelled > max(MOST_CANCELLED, len(self._heap) // 2):
                self._heap = [entry for entry in self._heap if entry[2].call is not None]
                heapq.heapify(self._heap)
                self._cancelled = 0

    def every(self, interval_ms: int, call: Callable[[], object]) -> None:
        """Call `call` on the thread again and again, the first time after `interval_ms`."""

        def run() -> None:
            try:
                call()
            finally:
                self.every(interval_ms, call)

        self.schedule(self.now_ms() + interval_ms, run)

    def stop(self) -> None:
        """Drop all scheduled calls and end the thread."""
        with self._wake:
            self._stopping = True
            self._heap.clear()
            self._wake.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def run_due(self) -> int | None:
        """Make all calls that are due. Returns the time of the next one, or None."""
        while True:
            now_ms = self.now_ms()
            with self._wake:
                if not self._heap:
                    return None
                due_ms = self._heap[0][0]
                if due_ms > now_ms:
                    return due_ms
                alarm = heapq.heappop(self._heap)[2]
                call, alarm.call = alarm.call, None
                if call is None:
                    self._cancelled -= 1
                    continue
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
