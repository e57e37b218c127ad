"""Limits of how many things of a kind clients may create, in all and from one host.

Without a limit a client that makes up names could fill the memory.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kbroker.clock import Clock

LOG = logging.getLogger(__name__)

SILENT_S = 60.0
"""The shortest time between two log lines about refusals."""


class Room:
    """Counts the things of one kind, and says whether there is room for more. Thread-safe.

    There may be at most `most` things, and one host may create at most half of them: so there is always room for other
    hosts. Things from before the broker's start belong to no host. `setting` is the name of the setting that gives
    `most`; it has to be raised where one host needs more than half.
    """

    __slots__ = ("_clock", "_count", "_lock", "_most", "_most_of_host", "_of_hosts", "_setting", "_told_s")

    def __init__(self, setting: str, most: int, count: Callable[[], int], clock: Clock):
        """`count()` returns how many things there are, whoever created them."""
        self._setting = setting
        self._most = most
        self._most_of_host = (most + 1) // 2
        self._count = count
        self._clock = clock
        self._lock = threading.Lock()
        """Guards `_of_hosts` and `_told_s`. No other lock is taken while it is held."""
        self._of_hosts: dict[str, int] = {}
        """How many things each host has created that still exist; a host without any is left out."""
        self._told_s: float | None = None

    def has_room(self, host: str, count: int = 1) -> bool:
        """Return whether the host may create `count` more things. A refusal is logged, at most once in SILENT_S.

        Things that others create between this call and `made` are not counted.
        """
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
        """Note that the host has created `count` things."""
        self._add(host, count)

    def gone(self, host: str, count: int = 1) -> None:
        """Note that `count` things which the host had created no longer exist."""
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
