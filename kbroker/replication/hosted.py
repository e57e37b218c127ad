"""What a member of a cluster knows of a partition that it has a replica of."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple
from uuid import UUID

from kbroker.rules import in_sync


class Role(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"
    """Neither: the log's directory has failed, the disk has refused the role, or the replica has declined it."""


class Hosted(NamedTuple):
    """A partition that this broker has a replica of. A value: it does not change."""

    role: Role
    topic_id: UUID
    """NO_UUID if the controller has told none."""
    leader: int
    """Broker id; -1 if there is none."""
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """The committed ISR, if this broker leads; else the ISR when the leader epoch began."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    proposed: tuple[int, ...] | None = None
    """The ISR that the controller was asked for, if this broker leads and that change is not settled yet."""

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def maximal_isr(self) -> frozenset[int]:
        """Every replica that may be in the ISR by the controller, and so may be elected."""
        return in_sync.maximal_isr(self.isr, self.proposed)

    @property
    def is_under_replicated(self) -> bool:
        """Whether the ISR lacks replicas. Those that a reassignment adds are not missed before they are there."""
        return len(self.isr) < len(set(self.replicas) - set(self.adding))
