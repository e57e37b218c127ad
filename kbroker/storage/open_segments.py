"""Which closed segments have descriptors and maps: as many as allowed, the least used lose theirs first."""

from __future__ import annotations

import resource
import threading
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

if TYPE_CHECKING:
    from kbroker.storage.log import Log

_LOOKED_AT = 64
_SHARE = 6
"""Each may take three descriptors: half of those that the process may have, where that is less than the limit."""


class OpenSegments:
    """A clock: the oldest is closed, unless it is read, unflushed, or was used since it was last looked at."""

    def __init__(self, limit: int):
        self._limit = limit
        self._lock = threading.Lock()
        self._opened: dict[tuple[ReferenceType[Log], int], None] = {}

    def _allowed(self) -> int:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self._limit if descriptors == resource.RLIM_INFINITY else max(1, min(self._limit, descriptors // _SHARE))

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, log: Log, base_offset: int) -> None:
        """The segment was opened, or is no longer the active one. It is not closed by this call."""
        key = ref(log), base_offset
        with self._lock:
            self._opened.pop(key, None)
            self._close_down_to(self._allowed() - 1)
            self._opened[key] = None

    def trim(self) -> None:
        """Close what was unflushed when its turn came."""
        allowed = self._allowed()
        if len(self._opened) > allowed:
            with self._lock:
                self._close_down_to(allowed)

    def _close_down_to(self, limit: int) -> None:
        # A bounded search: when all are in use the limit gives way.
        for _ in range(min(2 * len(self._opened), _LOOKED_AT)):
            if len(self._opened) <= limit:
                break
            oldest = next(iter(self._opened))
            del self._opened[oldest]
            owner = oldest[0]()
            if owner is not None and not owner.state.close_segment(oldest[1]):
                self._opened[oldest] = None
