"""How many of something are kept, in all and of one host: whoever makes names up would fill the memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kbroker.clock import Clock

LOG = logging.getLogger(__name__)

SILENT_S = 60.0
"""Between two lines about what was refused."""


class Room:
    """Whether there is room for more. Thread-safe.

    There are at most `most`, and one host makes at most half of them, so that there is room for the others whatever it
    does. What was there before the broker's start is no host's. `setting` says how many: who needs more than half of
    them for one host raises it.
    """

    __slots__ = ("_clock", "_count", "_lock", "_most", "_most_of_host", "_of_hosts", "_setting", "_told_s")

    def __init__(self, setting: str, most: int, count: Callable[[], int], clock: Clock):
        """`count`: how many there are, whoever made them."""
        self._setting = setting
        self._most = most
        self._most_of_host = (most + 1) // 2
        self._count = count
        self._clock = clock
        self._lock = threading.Lock()
        """Guards the two below; taken alone."""
        self._of_hosts: dict[str, int] = {}
        """How many a host has made that are there; hosts without any are not in it."""
        self._told_s: float | None = None

    def has_room(self, host: str, count: int = 1) -> bool:
        """Whether the host may make so many more; what others make meanwhile is not counted. Else the log says so."""
        with self._lock:
            own = self._of_hosts.get(host, 0)
        if own + count > self._most_of_host:
            self._tell("%s has made %d, half of what %s allows", host, own, self._setting)
            return False
        if (total := self._count()) + count > self._most:
            self._tell("there are %d, %s allows %d: %s is refused", total, self._setting, self._most, host)
            return False
        return True

    def made(self, host: str, count: int = 1) -> None:
        """The host has made so many."""
        self._add(host, count)

    def gone(self, host: str, count: int = 1) -> None:
        """So many that the host had made are there no longer."""
        self._add(host, -count)

    def _add(self, host: str, count: int) -> None:
        with self._lock:
            left = self._of_hosts.pop(host, 0) + count
            assert left >= 0, (host, left)
            if left:
                self._of_hosts[host] = left

    def _tell(self, line: str, *values: object) -> None:
        now_s = self._clock.monotonic()
        with self._lock:
            if self._told_s is not None and now_s - self._told_s < SILENT_S:
                return
            self._told_s = now_s
        LOG.warning(line, *values)
