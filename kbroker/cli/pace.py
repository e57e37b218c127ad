"""When messages are due: at a rate, whatever becomes of those before, or as soon as they can be sent."""

from __future__ import annotations

import math
import sys
import time


class Pace:
    """Of one load: it ends after so many messages (None: no limit) and so many seconds, whichever comes first.

    With a rate the message `n` is due `n / rate` seconds after the start, and one that is late is still due then: what
    a broker that stalls holds up counts as waiting (no coordinated omission).
    """

    def __init__(self, started_ns: int, messages: int | None, seconds: float | None, rate: float | None):
        self.started_ns = started_ns
        self._end_ns = None if seconds is None else started_ns + int(seconds * 1e9)
        self.interval_ns = None if rate is None else 1e9 / rate
        self._most = sys.maxsize if messages is None else messages
        if rate is not None and seconds is not None:
            self._most = min(self._most, math.ceil(rate * seconds))

    def due_ns(self, number: int) -> int:
        """When message `number` (from 0 on) is due, as time.perf_counter_ns has it. Without a rate: now."""
        if self.interval_ns is None:
            return time.perf_counter_ns()
        return self.started_ns + int(number * self.interval_ns)

    def await_due(self, sent: int, portion: int) -> int:
        """How many are due when `sent` have been sent, `portion` at most; 0: the load is over."""
        left = min(portion, self._most - sent)
        if left <= 0 or (self._end_ns is not None and time.perf_counter_ns() >= self._end_ns):
            return 0
        if self.interval_ns is None:
            return left
        while (now := time.perf_counter_ns()) < self.due_ns(sent):
            time.sleep((self.due_ns(sent) - now) / 1e9)
        return max(1, min(left, self._due_at(now) - sent))

    def _due_at(self, now: int) -> int:
        return int((now - self.started_ns) / (self.interval_ns or 1)) + 1

    def not_sent(self, sent: int) -> int:
        """What is due and late, of a load with a rate."""
        if self.interval_ns is None:
            return 0
        return max(0, min(self._most, self._due_at(time.perf_counter_ns())) - sent)
