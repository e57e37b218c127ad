"""Says when messages are due: at a rate, even if earlier messages are late, or as soon as they can be sent."""

from __future__ import annotations

import math
import sys
import time


class Pace:
    """The pace of one load. It ends after `messages` or `seconds`, whichever comes first; None: no limit.

    With a rate, message `n` is due `n / rate` seconds after the start, even if it is sent later: time that a broker
    holds it up counts as latency (no coordinated omission).
    """

    def __init__(self, started_ns: int, messages: int | None, seconds: float | None, rate: float | None):
        self.started_ns = started_ns
        self._end_ns = None if seconds is None else started_ns + int(seconds * 1e9)
        self.interval_ns = None if rate is None else 1e9 / rate
        self._most = sys.maxsize if messages is None else messages
        if rate is not None and seconds is not None:
            self._most = min(self._most, math.ceil(rate * seconds))

    def due_ns(self, number: int) -> int:
        """Return when message `number` (from 0 on) is due, in time.perf_counter_ns. Without a rate: now."""
        if self.interval_ns is None:
            return time.perf_counter_ns()
        return self.started_ns + int(number * self.interval_ns)

    def await_due(self, sent: int, portion: int) -> int:
        """Wait until a message is due, and return how many are due then, at most `portion`; 0: the load is over.

        `sent` is how many have been sent.
        """
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
        """Return how many messages are due and not sent; 0 without a rate."""
        if self.interval_ns is None:
            return 0
        return max(0, min(self._most, self._due_at(time.perf_counter_ns())) - sent)
