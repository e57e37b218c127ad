"""Which closed segments have descriptors and maps: as many as allowed, the least used lose theirs first."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

if TYPE_CHECKING:
    from kbroker.storage.log import Log


class OpenSegments:
    """A clock: the oldest is closed, unless it is read, unflushed, or was used since it was last looked at."""

    def __init__(self, limit: int):
        self._limit = limit
        self._lock = threading.Lock()
        self._opened: deque[tuple[ReferenceType[Log], int]] = deque()

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, log: Log, base_offset: int) -> None:
        """The segment was opened, or is no longer the active one."""
        with self._lock:
            self._opened.append((ref(log), base_offset))
            # A bounded search: when all are in use the limit gives way.
            for _ in range(min(len(self._opened), 64)):
                if len(self._opened) <= self._limit:
                    return
                log_ref, oldest = self._opened.popleft()
                owner = log_ref()
                if owner is not None and not owner.state.close_segment(oldest):
                    self._opened.append((log_ref, oldest))
