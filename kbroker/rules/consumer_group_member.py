"""What a group of the consumer protocol (KIP-848) is told, what it answers, and what it keeps of one member."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from kbroker.errors import ErrorCode
from kbroker.rules.group_member import JoinAnswer, Token

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
LEAVING_STATIC_EPOCH = -2
"""A static member goes and will be back: nobody gets its partitions before its session ends."""
UNCHANGED = -1
"""A rebalance timeout that the request does not tell."""

Assignment: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""
Claimed: TypeAlias = Mapping[bytes, Collection[int]]
"""What a member says that it has: any numbers, so they are looked up, and no table is made of them."""
EpochsByPartition: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id, each with the epoch it was assigned in (KIP-1251)."""

NOTHING: Mapping[bytes, frozenset[int]] = {}
NO_PARTITIONS: Mapping[bytes, Mapping[int, int]] = {}


class MemberState(IntEnum):
    """How far a member is on its way to the target assignment. On disk. Do not renumber."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has to give up partitions and has not said yet that it has."""
    UNRELEASED_PARTITIONS = 2
    """Partitions that it is to have are still with others."""
    UNKNOWN = 127
    """Written by a broker that knows more states."""


class ClassicMetadata(NamedTuple):
    """What is kept of a member that speaks the classic protocol in a group of the newer one."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, the preferred one first."""


class Subscription(NamedTuple):
    """Who a member is and what it wants."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Sorted, each once."""
    regex: str | None = ""
    """Empty: none."""
    rebalance_timeout_ms: int = UNCHANGED
    assignor: str | None = None
    classic: ClassicMetadata | None = None


class Current(NamedTuple):
    """Where a member stands."""

    member_epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: EpochsByPartition = NO_PARTITIONS
    revoking: EpochsByPartition = NO_PARTITIONS

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether there is nothing left to do for the target assignment of `epoch`."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def holds(self, topic_id: bytes, partition_id: int) -> int | None:
        """The epoch that the partition was assigned in; None when it is not this member's."""
        epoch = self.assigned.get(topic_id, {}).get(partition_id)
        return self.revoking.get(topic_id, {}).get(partition_id) if epoch is None else epoch


class ConsumerMember(NamedTuple):
    """One member, as a value: a change makes another one."""

    member_id: str
    subscription: Subscription = Subscription()
    current: Current = Current()


class ResolvedRegex(NamedTuple):
    """The topics that a pattern has been found to match."""

    topics: frozenset[str] = frozenset()
    version: int = 0
    """Grows with each resolution of the group."""
    timestamp_ms: int = 0


class Beat(NamedTuple):
    """A ConsumerGroupHeartbeat. None: as it was at the last heartbeat."""

    member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED
    topics: tuple[str, ...] | None = None
    """Sorted, each once."""
    regex: str | None = None
    assignor: str | None = None
    owned: Claimed | None = None

    @property
    def is_full(self) -> bool:
        """Whether it tells everything, as the first one does and the first after an error."""
        return (
            self.rebalance_timeout_ms != UNCHANGED
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


class BeatAnswer(NamedTuple):
    """The answer to a ConsumerGroupHeartbeat. `assignment` None: as before."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: EpochsByPartition | None = None

    def failed(self, error: ErrorCode) -> BeatAnswer:
        """The answer when what it says could not be stored."""
        return BeatAnswer(error)


# --- changes: each is one record, and applying them all in their order makes the group ---------------------
class SubscriptionChange(NamedTuple):
    """A member is new or another; None: it is no more."""

    member_id: str
    subscription: Subscription | None


class CurrentChange(NamedTuple):
    """A member has got on; None: it is no more."""

    member_id: str
    current: Current | None


class TargetChange(NamedTuple):
    """What a member is to have; None: it is no more."""

    member_id: str
    assignment: Assignment | None


class TargetEpochChange(NamedTuple):
    """The epoch that the targets are of; None: the group is no more."""

    epoch: int | None
    timestamp_ms: int = 0


class EpochChange(NamedTuple):
    """The group's epoch; None: the group is no more."""

    epoch: int | None
    metadata_hash: int = 0


class RegexChange(NamedTuple):
    """The topics of a pattern; None: nobody is subscribed to it any more."""

    regex: str
    resolved: ResolvedRegex | None


class PartitionMetadataChange(NamedTuple):
    """What 3.9 and 4.0 wrote where `EpochChange` now has a hash; all that is done with it is to delete it."""

    is_there: bool


class ClassicGroupGone(NamedTuple):
    """The record of the classic group that this group was is to be deleted."""


Change: TypeAlias = (
    SubscriptionChange
    | CurrentChange
    | TargetChange
    | TargetEpochChange
    | EpochChange
    | RegexChange
    | PartitionMetadataChange
    | ClassicGroupGone
)


class StoreChanges:
    """Changes to be written as one batch. They are made once the log has them, and answered once that is safe."""

    __slots__ = ("answer", "changes", "is_done", "token")

    def __init__(
        self, changes: list[Change], token: Token | None = None, answer: BeatAnswer | JoinAnswer | None = None
    ):
        self.changes = changes
        self.token = token
        self.answer = answer
        self.is_done = False
        """The changes are made, or never will be."""


class TopicView(Protocol):
    """The cluster's topics at one moment. Another moment is another object."""

    def find(self, name: str) -> tuple[bytes, int] | None:
        """Id and number of partitions."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that exists."""
        ...
