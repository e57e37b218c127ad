"""The base class of assignors, which share a group's partitions among its members.

With the classic protocol (group.protocol=classic) the assignor runs in the consumer that leads the group.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kbroker.model import TopicPartition

EAGER, COOPERATIVE = "eager", "cooperative"
NO_GENERATION = -1


@dataclass(frozen=True)
class Member:
    """A member that wants partitions of `topics`.

    `owned` is what the member has now, since `generation` (-1: not known). `user_data` is what its assignor's
    `user_data` returned; the other fields are as the member has sent them.
    """

    member_id: str
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    user_data: bytes | None = None
    group_instance_id: str | None = None
    rack: str | None = None

    @property
    def place(self) -> tuple[bool, str]:
        """The key by which members are sorted: static members first, by their lasting instance ids (KIP-345)."""
        if self.group_instance_id is not None:
            return False, self.group_instance_id
        return True, self.member_id


@dataclass(frozen=True)
class Topics:
    """The number of partitions of each topic, and the racks that have a replica of each partition."""

    counts: Mapping[str, int]
    racks: Mapping[TopicPartition, frozenset[str]] = field(default_factory=dict)

    def of(self, names: Collection[str]) -> list[TopicPartition]:
        """Return all partitions of the named topics, sorted; a topic that does not exist has none."""
        return [TopicPartition(name, n) for name in sorted(names) for n in range(self.counts.get(name, 0))]


class Assignor(ABC):
    """Decides which member gets which partitions: make a subclass, and give an object of it in
    partition.assignment.strategy. Its methods are called on the client's thread."""

    name: str
    protocols: tuple[str, ...] = (EAGER,)
    """The rebalance protocols that this assignor supports.

    EAGER: members give up all partitions before each rebalance. COOPERATIVE: members keep their partitions meanwhile,
    and `assign` must not give a member what another one still owns (KIP-429).
    """

    @abstractmethod
    def assign(self, members: Collection[Member], topics: Topics) -> Mapping[str, Collection[TopicPartition]]:
        """Return the partitions of each member, by member id."""

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        """Return the bytes that this member sends to the leader's assignor, or None.

        `previous` are the partitions that the member was given last, in `generation`.
        """
        return None

    def as_told(self, member: Member) -> Member:
        """Return `member` with the `owned` and `generation` of its user data, for an assignor that keeps them there."""
        return member
