"""Reports in the broker's log how far the opening of its partitions' logs has come."""

from __future__ import annotations

import logging
import threading
import time

logger = logging.getLogger("kbroker.storage")


class RecoveryProgress:
    """Logs how far recovery has come, at most every few seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._done = 0
        self._read_bytes = 0
        self._began = self._logged_at = time.monotonic()

    def found(self, count: int) -> None:
        """Log that `count` logs need no recovery: they can serve."""
        if count:
            logger.info("Loaded %d logs in %d ms, stopped cleanly; each is opened by its first use", count, self._ms())

    def begin(self, count: int) -> None:
        with self._lock:
            self._total += count

    def done(self) -> None:
        with self._lock:
            self._done += 1
            self._maybe_log(is_last=self._done == self._total)

    def read(self, size: int) -> None:
        with self._lock:
            self._read_bytes += size
            self._maybe_log(is_last=False)

    def _maybe_log(self, *, is_last: bool) -> None:
        now = time.monotonic()
        if is_last or now - self._logged_at > 5:
            self._logged_at = now
            logger.info("recovery: %d of %d logs, %.1f GB read", self._done, self._total, self._read_bytes / 1e9)
        if is_last:
            logger.info("Loaded %d logs in %d ms, recovered", self._total, self._ms())

    def _ms(self) -> int:
        """Return the ms since the directories were opened, as Kafka counts in its line "Loaded ... logs in ... ms"."""
        return int((time.monotonic() - self._began) * 1000)
