"""The injected clock.

`monotonic` gives ages, intervals and deadlines, because it does not change when somebody sets the machine's clock.
`wall_ms` is for what the log or the protocol expresses in wall time: timestamps of records, and what is compared with
them (retention, compaction lags, expiry of offsets, of producers and of transactional ids). The age of something that
is loaded from a log is taken from the wall clock once, at the load; from then on it is measured by the monotonic clock.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The interface of a clock: what the broker needs of time."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. They never go back."""
        ...


class SystemClock:
    """The machine's clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
