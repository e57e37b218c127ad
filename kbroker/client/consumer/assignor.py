"""What an assignor is: how a group's leader shares partitions among the members (the classic protocol)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kbroker.model import TopicPartition

EAGER, COOPERATIVE = "eager", "cooperative"
NO_GENERATION = -1


@dataclass(frozen=True)
class Member:
    """One who wants partitions. `owned` is what it has now, from `generation`; the rest is as it was told."""

    member_id: str
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    group_instance_id: str | None = None
    rack: str | None = None

    @property
    def place(self) -> tuple[bool, str]:
        """Where it stands in line: static members first, by their instance ids, which stay (KIP-345)."""
        if self.group_instance_id is not None:
            return False, self.group_instance_id
        return True, self.member_id


@dataclass(frozen=True)
class Topics:
    """How many partitions each topic has, and in which racks the replicas of a partition are."""

    counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)

    def of(self, names: Collection[str]) -> list[TopicPartition]:
        """All partitions of those that are there, sorted."""
        return [TopicPartition(name, n) for name in sorted(names) for n in range(self.counts.get(name, 0))]


class Assignor(ABC):
    """Make a subclass and give an object of it in partition.assignment.strategy. Called on the client's thread."""

    name: str
    protocols: tuple[str, ...] = (EAGER,)
    """EAGER: members give up all they have before each rebalance. COOPERATIVE: they keep it meanwhile, and `assign`
    must give nobody what another member still owns."""

    @abstractmethod
    def assign(self, members: Collection[Member], topics: Topics) -> Mapping[str, Collection[TopicPartition]]:
        """The partitions of each member, by member id."""

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        """What this member tells the leader's assignor; `previous` is what it was given in `generation`."""
        return None

    def as_told(self, member: Member) -> Member:
        """A member with `owned` and `generation` as its user data have them, where they count."""
        return member
