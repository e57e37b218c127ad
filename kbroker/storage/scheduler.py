"""One thread that runs short jobs: some at an interval, some once after a delay."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from kbroker.clock import Clock

logger = logging.getLogger("kbroker.storage")

Job = Callable[[], None]


class Scheduler:
    """Runs jobs one after the other. A job that fails is logged and, if it has an interval, runs again next time."""

    def __init__(self, clock: Clock, name: str):
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, float, Job]] = []
        self._numbers = itertools.count()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def every(self, interval_ms: int, job: Job) -> None:
        self._add(interval_ms / 1000, interval_ms / 1000, job)

    def once(self, delay_ms: int, job: Job) -> None:
        self._add(delay_ms / 1000, 0, job)

    def _add(self, delay_s: float, interval_s: float, job: Job) -> None:
        with self._changed:
            due = self._clock.monotonic() + delay_s
            heapq.heappush(self._queue, (due, next(self._numbers), interval_s, job))
            self._changed.notify()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for the running job to end. No other job is run; the waiting jobs and what they hold are released."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._queue.clear()

    def run_due(self) -> int:
        """Run the jobs that are due, on the caller's thread, and return how many those were."""
        count = 0
        while (job := self._take_due()) is not None:
            count += 1
            try:
                job()
            except Exception:
                logger.exception("a scheduled job has failed")
        return count

    def _take_due(self) -> Job | None:
        with self._changed:
            now = self._clock.monotonic()
            if self._is_stopping or not self._queue or self._queue[0][0] > now:
                return None
            _, _, interval_s, job = heapq.heappop(self._queue)
            if interval_s > 0:
                heapq.heappush(self._queue, (now + interval_s, next(self._numbers), interval_s, job))
            return job

    def _run(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                if self._is_stopping:
                    return
                wait_s = self._queue[0][0] - self._clock.monotonic() if self._queue else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
