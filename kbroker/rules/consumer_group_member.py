"""The values of the state machine of a consumer group (KIP-848): requests, answers, members and changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from kbroker.errors import ErrorCode
from kbroker.rules.group_member import JoinAnswer, Token

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
LEAVING_STATIC_EPOCH = -2
"""A static member leaves and will come back: its partitions stay reserved until its session ends."""
UNCHANGED = -1
"""The rebalance timeout in a request that does not change it."""

Assignment: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""
Claimed: TypeAlias = Mapping[bytes, Collection[int]]
"""The partitions that a member says it has, by topic id. The numbers may be anything, so no set is made of them."""
EpochsByPartition: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id, each with the epoch it was assigned in (KIP-1251)."""

NOTHING: Mapping[bytes, frozenset[int]] = {}
NO_PARTITIONS: Mapping[bytes, Mapping[int, int]] = {}


class MemberState(IntEnum):
    """How far a member is on its way to its target assignment. On disk. Do not renumber."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """The member has to give up partitions and has not confirmed yet that it has."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for partitions that other members still have."""
    UNKNOWN = 127
    """The record has a state of a later release."""


class ClassicMetadata(NamedTuple):
    """Additional data of a member that uses the classic protocol in a consumer group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) of each protocol, the preferred one first."""


class Subscription(NamedTuple):
    """A member's identity and the topics it is subscribed to."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Sorted, each once."""
    regex: str | None = ""
    """The pattern of topic names; empty: none."""
    rebalance_timeout_ms: int = UNCHANGED
    assignor: str | None = None
    classic: ClassicMetadata | None = None


class Current(NamedTuple):
    """A member's current epoch, the partitions that it has, and those that it is giving up."""

    member_epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: EpochsByPartition = NO_PARTITIONS
    revoking: EpochsByPartition = NO_PARTITIONS

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether the member has reached the target assignment of `epoch`."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def holds(self, topic_id: bytes, partition_id: int) -> int | None:
        """The epoch in which the partition was assigned; None if the member does not have it."""
        epoch = self.assigned.get(topic_id, {}).get(partition_id)
        return self.revoking.get(topic_id, {}).get(partition_id) if epoch is None else epoch


class ConsumerMember(NamedTuple):
    """One member, as an immutable value: a change makes a new one."""

    member_id: str
    subscription: Subscription = Subscription()
    current: Current = Current()


class ResolvedRegex(NamedTuple):
    """The topics that a pattern has been found to match."""

    topics: frozenset[str] = frozenset()
    version: int = 0
    """Grows each time that the group's patterns are matched with the topics."""
    timestamp_ms: int = 0


class Beat(NamedTuple):
    """The fields of a ConsumerGroupHeartbeat.

    One that is None or UNCHANGED has not changed since the last heartbeat.
    """

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
        """Whether the heartbeat has all fields, like the first one of a member and the first one after an error."""
        return (
            self.rebalance_timeout_ms != UNCHANGED
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


class BeatAnswer(NamedTuple):
    """The answer to a ConsumerGroupHeartbeat. `assignment` None: not changed."""

    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: EpochsByPartition | None = None

    def failed(self, error: ErrorCode) -> BeatAnswer:
        """Return the answer that is given in place of this one if the changes could not be stored."""
        return BeatAnswer(error)


# --- changes: each is one record; applied in their order they make the group -------------------------------
class SubscriptionChange(NamedTuple):
    """A member has joined or changed its subscription; None: the member is removed."""

    member_id: str
    subscription: Subscription | None


class CurrentChange(NamedTuple):
    """A member's epoch or partitions have changed; None: the member is removed."""

    member_id: str
    current: Current | None


class TargetChange(NamedTuple):
    """A member's target assignment; None: the member is removed."""

    member_id: str
    assignment: Assignment | None


class TargetEpochChange(NamedTuple):
    """The epoch of the target assignment; None: the group is removed."""

    epoch: int | None
    timestamp_ms: int = 0


class EpochChange(NamedTuple):
    """The group's epoch; None: the group is removed."""

    epoch: int | None
    metadata_hash: int = 0


class RegexChange(NamedTuple):
    """The topics that a pattern matches; None: no member is subscribed to it any more."""

    regex: str
    resolved: ResolvedRegex | None


class PartitionMetadataChange(NamedTuple):
    """A record that Kafka 3.9 and 4.0 wrote in place of the hash in `EpochChange`. It is only ever deleted."""

    is_there: bool


class ClassicGroupGone(NamedTuple):
    """Deletes the record of the classic group that this group was before."""


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
    """Changes to be written as one batch.

    They are applied once the log has them. Their request is answered once they are durable.
    """

    __slots__ = ("answer", "changes", "is_done", "token")

    def __init__(
        self, changes: list[Change], token: Token | None = None, answer: BeatAnswer | JoinAnswer | None = None
    ):
        self.changes = changes
        self.token = token
        self.answer = answer
        self.is_done = False
        """Whether the changes are applied, or never will be."""


class TopicView(Protocol):
    """The cluster's topics at one moment. When they change there is a new object."""

    def find(self, name: str) -> tuple[bytes, int] | None:
        """The topic's id and number of partitions; None if it does not exist."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """The topic's name; None if it does not exist."""
        ...
