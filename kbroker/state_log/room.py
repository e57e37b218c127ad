"""How many of something a coordinator keeps: whoever makes names up would fill the memory."""

from __future__ import annotations

import logging
from collections.abc import Callable

LOG = logging.getLogger(__name__)


class Room:
    """Whether there is room for one more. What others make meanwhile is not counted. `setting` says how many."""

    __slots__ = ("_count", "_is_full", "_most", "_setting")

    def __init__(self, setting: str, most: int, count: Callable[[], int]):
        self._setting = setting
        self._most = most
        self._count = count
        self._is_full = False

    def has_room(self) -> bool:
        """False, and a line in the log the first time, when there are as many as there may be."""
        was_full, self._is_full = self._is_full, self._count() >= self._most
        if self._is_full and not was_full:
            LOG.warning("there are %d, as many as %s allows", self._most, self._setting)
        return not self._is_full
