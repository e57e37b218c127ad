"""The clock of one machine: it drifts, and somebody may set it."""

from __future__ import annotations

from tests.simulation.scheduler import Scheduler

EPOCH_MS = 1_700_000_000_000


class DriftingClock:
    """A `kbroker.clock.Clock` over virtual time. It runs at a rate of about 1."""

    def __init__(self, scheduler: Scheduler):
        self._scheduler = scheduler
        self._rate = 1.0
        self._base_us = 0
        self._since = 0
        self.set_by_ms = 0
        """How far the wall clock was set. The monotonic clock is not affected."""

    def drift(self, rate: float) -> None:
        self._base_us, self._since, self._rate = self._now_us(), self._scheduler.now, rate

    def _now_us(self) -> int:
        return self._base_us + int((self._scheduler.now - self._since) * self._rate)

    def wall_ms(self) -> int:
        return EPOCH_MS + self.set_by_ms + self._now_us() // 1000

    def monotonic(self) -> float:
        return self._now_us() / 1_000_000

    def monotonic_ms(self) -> int:
        return self._now_us() // 1000
