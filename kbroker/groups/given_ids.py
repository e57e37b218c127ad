"""Member ids that were given away to clients that have not come back with them yet (KIP-394), over all groups."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.groups.shard import GroupShard
from kbroker.rules.group_member import JoinAnswer

MOST_GIVEN_IDS = 10_000
"""Whoever comes with an older one gets another."""


class GivenId(NamedTuple):
    shard: GroupShard
    group_id: str
    member_id: str


class GivenIds:
    """The last ids that were given away, used since or not. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _given; taken alone
        self._given: deque[GivenId] = deque()

    def add(self, given: GivenId) -> GivenId | None:
        """One more; the one that is not to be waited for any longer, if there are too many."""
        with self._lock:
            self._given.append(given)
            return self._given.popleft() if len(self._given) > MOST_GIVEN_IDS else None


def id_given_by(answer: object) -> str | None:
    """The member id that an answer gives away."""
    if isinstance(answer, JoinAnswer) and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
        return answer.member_id
    return None
