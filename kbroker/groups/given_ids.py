"""Member ids that were given away to clients that have not come back with them yet (KIP-394), over all groups."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.groups.shard import GroupShard
from kbroker.rules.group_member import JoinAnswer

MOST_GIVEN_IDS = 10_000
MOST_GIVEN_IDS_OF_A_HOST = 1_000
"""Whoever comes with an older one gets another."""


class GivenId(NamedTuple):
    shard: GroupShard
    group_id: str
    member_id: str


class GivenIds:
    """The last ids that were given away, used since or not. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows; taken alone
        self._of_hosts: dict[str, deque[GivenId]] = {}
        """By host; the host that was given none for longest is first."""
        self._count = 0

    def add(self, host: str, given: GivenId) -> GivenId | None:
        """One more; the one that is not to be waited for any longer, if there are too many.

        A host that has too many loses its own. With too many of all, the host that was given none for longest does.
        """
        with self._lock:
            own = self._of_hosts.pop(host, None) or deque()
            self._of_hosts[host] = own
            own.append(given)
            self._count += 1
            if len(own) > MOST_GIVEN_IDS_OF_A_HOST:
                loser = host
            elif self._count > MOST_GIVEN_IDS:
                loser = next(iter(self._of_hosts))
            else:
                return None
            self._count -= 1
            oldest = self._of_hosts[loser].popleft()
            if not self._of_hosts[loser]:
                del self._of_hosts[loser]
            return oldest


def id_given_by(answer: object) -> str | None:
    """The member id that an answer gives away."""
    if isinstance(answer, JoinAnswer) and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
        return answer.member_id
    return None
