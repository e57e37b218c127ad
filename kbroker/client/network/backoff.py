"""Waits between attempts, and the random numbers of clients."""

from __future__ import annotations

import random
from typing import Final

from kbroker.client.config.option import Options

JITTER = 0.2  #: the share by which a wait is longer or shorter, so that clients do not come back all at once

chance: Final = random.SystemRandom()
"""The random numbers of clients. Those of `random` itself belong to the program, which may have seeded them."""


class Backoff:
    """Waits that double with each failure in a row."""

    def __init__(self, first_s: float, longest_s: float, failures: int = 0):
        self.first_s = first_s
        self.longest_s = longest_s
        self.failures = failures

    def next_s(self) -> float:
        """Return how many seconds to wait after one more failure."""
        wait_s = min(self.first_s * 2 ** min(self.failures, 30), self.longest_s)
        self.failures += 1
        return float(wait_s * chance.uniform(1 - JITTER, 1 + JITTER))


def retry_backoff(options: Options) -> Backoff:
    """Return the waits between attempts of a request: retry.backoff.ms to retry.backoff.max.ms."""
    return Backoff(options.seconds("retry.backoff.ms"), options.seconds("retry.backoff.max.ms"))
