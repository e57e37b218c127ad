"""Member ids that a group has given to clients and that have not joined yet (KIP-394), with their deadlines."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from kbroker.rules.group_state import NEVER

STALE_KEPT = 64
"""Deadlines of removed ids may stay in the heap; they are dropped when they are more than this and most of it."""


class PendingIds:
    """The deadlines of the ids. Calls look at all of them only rarely. Not thread-safe."""

    __slots__ = ("_due_ms", "_order")

    def __init__(self) -> None:
        self._due_ms: dict[str, int] = {}
        self._order: list[tuple[int, str]] = []
        """A heap of (deadline, id). It may have deadlines of ids that are removed."""

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._due_ms

    def __len__(self) -> int:
        return len(self._due_ms)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Ids and deadlines, in the order in which they were added."""
        return iter(self._due_ms.items())

    @property
    def next_ms(self) -> int:
        """The next deadline; NEVER if there is none."""
        self._drop_stale()
        return self._order[0][0] if self._order else NEVER

    def add(self, member_id: str, due_ms: int) -> None:
        """Add an id that was given to a client."""
        self._due_ms[member_id] = due_ms
        heapq.heappush(self._order, (due_ms, member_id))

    def discard(self, member_id: str) -> bool:
        """Remove an id. Returns whether it was there."""
        if self._due_ms.pop(member_id, None) is None:
            return False
        if len(self._order) > max(STALE_KEPT, 2 * len(self._due_ms)):
            self._order = [(due_ms, known) for known, due_ms in self._due_ms.items()]
            heapq.heapify(self._order)
        return True

    def take_due(self, now_ms: int) -> int:
        """Remove the ids whose deadline has passed. Returns how many."""
        count = 0
        while self.next_ms <= now_ms:
            del self._due_ms[heapq.heappop(self._order)[1]]
            count += 1
        return count

    def _drop_stale(self) -> None:
        while self._order and self._due_ms.get(self._order[0][1]) != self._order[0][0]:
            heapq.heappop(self._order)
