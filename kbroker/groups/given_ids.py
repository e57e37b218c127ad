"""Limits the member ids given to clients that have not joined with them yet (KIP-394), over all groups."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

from kbroker.errors import ErrorCode
from kbroker.groups.shard import GroupShard
from kbroker.rules.group_member import JoinAnswer

MOST_GIVEN_IDS = 10_000
MOST_GIVEN_IDS_OF_A_HOST = 1_000
"""Most ids that are kept in all, and for one host. A client that comes with an older id is given another one."""


class GivenId(NamedTuple):
    shard: GroupShard
    group_id: str
    member_id: str


class GivenIds:
    """The ids that were given last, whether they have been used since or not. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows; taken alone
        self._of_hosts: dict[str, deque[GivenId]] = {}
        """Ids by host; the host that was given its last id longest ago comes first."""
        self._count = 0

    def add(self, host: str, given: GivenId) -> GivenId | None:
        """Add an id. Returns the id that its group is to forget, if there are too many.

        If the host has too many, it is the host's oldest. If there are too many in all, it is the oldest of the host
        that was given its last id longest ago.
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
    """Return the member id that a JoinGroup answer gives to a new member; None if it gives none."""
    if isinstance(answer, JoinAnswer) and answer.error is ErrorCode.MEMBER_ID_REQUIRED:
        return answer.member_id
    return None
