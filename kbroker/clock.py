"""The injected clock (DESIGN D7).

Ages, intervals and deadlines come from `monotonic`: it does not notice that somebody sets the clock. `wall_ms` is for
what the log or the protocol tells in wall time: timestamps of records, and what is held against them (retention,
compaction lags, expiry of offsets, producers and transactional ids). What is loaded from a log has its age by the wall
clock once, at the load, and goes on by the monotonic one.
"""

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
