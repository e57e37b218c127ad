"""Keeps descriptors and maps of closed segments: a limited number, of which the least used are closed first."""

from __future__ import annotations

import resource
import threading
from typing import Protocol
from weakref import ReferenceType, ref

from kbroker._core.log.partition_state import PartitionState

_LOOKED_AT = 64
_SHARE = 6
"""A segment may take three descriptors, and all together at most half of the process's: one segment for six."""


class SegmentOwner(Protocol):
    """A log, as far as its segments are closed for those of others."""

    @property
    def state(self) -> PartitionState: ...


class OpenSegments:
    """The closed segments whose files are open, as a clock (second-chance) cache.

    The oldest segment is closed first, unless it is being read, is unflushed, or was used since its last turn.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._lock = threading.Lock()
        self._opened: dict[tuple[ReferenceType[SegmentOwner], int], None] = {}

    def _allowed(self) -> int:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return self._limit if descriptors == resource.RLIM_INFINITY else max(1, min(self._limit, descriptors // _SHARE))

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, log: SegmentOwner, base_offset: int) -> None:
        """Add a segment that was opened, or is not the active one any more. Others may be closed for it."""
        key = ref(log), base_offset
        with self._lock:
            self._opened.pop(key, None)
            self._close_down_to(self._allowed() - 1)
            self._opened[key] = None

    def trim(self) -> None:
        """Close segments beyond the limit that could not be closed at their turn, as they were unflushed or in use."""
        allowed = self._allowed()
        if len(self._opened) > allowed:
            with self._lock:
                self._close_down_to(allowed)

    def _close_down_to(self, limit: int) -> None:
        # The search is bounded: if all segments are in use, there are more than the limit.
        for _ in range(min(2 * len(self._opened), _LOOKED_AT)):
            if len(self._opened) <= limit:
                break
            oldest = next(iter(self._opened))
            del self._opened[oldest]
            owner = oldest[0]()
            if owner is not None and not owner.state.close_segment(oldest[1]):
                self._opened[oldest] = None
