"""The injected clock (DESIGN D7). Durations come from `monotonic`, timestamps of records from `wall_ms`."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the broker asks of time."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
