"""What the controller knows and decides about one partition and one broker, as values."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from kbroker.model import NO_UUID, Endpoint

NO_LEADER = -1
LEADER_DURING_DELETE = -2
"""The leader that UpdateMetadata tells for a partition whose topic is being deleted: brokers forget it."""
EPOCH_DURING_DELETE = -2
"""The leader epoch that StopReplica tells for such a partition: it is higher than all others."""
NO_EPOCH = -1

RECOVERED = 0
RECOVERING = 1
"""The leader was elected out of the ISR, and may lack records (KIP-704)."""


class Broker(NamedTuple):
    """A registered broker. `epoch` is the creation id of its registration."""

    broker_id: int
    epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the address of a listener by its name; None if the broker has no such listener."""
        return next((each for each in self.endpoints if each.listener == listener), None)


class Assignment(NamedTuple):
    """The replicas of a partition, the preferred leader first.

    During a reassignment (KIP-455) `replicas` has those of the target first, then others of the original assignment.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_changing(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        return tuple(each for each in self.replicas if each not in self.adding)

    def changed_to(self, target: Iterable[int]) -> Assignment:
        """Return the assignment at the begin of a reassignment to `target`, in place of one that may be under way."""
        wanted = dict.fromkeys(target)
        original = self.original
        replicas = tuple(dict.fromkeys((*wanted, *original)))
        return Assignment(
            replicas,
            tuple(each for each in replicas if each not in original),
            tuple(each for each in replicas if each not in wanted),
        )

    def without(self, broker_id: int) -> Assignment:
        return Assignment(*(tuple(each for each in part if each != broker_id) for part in self))


HIGHEST_EPOCH = 2**31 - 2
"""The highest leader epoch that is written: one that a number of 32 bits can follow is believed when it is read."""
LAST_VERSION = 2**31 - 1
"""The highest version of a node. ZooKeeper begins again below 0 after it, where a version can mean "any"."""


class PartitionState(NamedTuple):
    """Leader and ISR of a partition, as they are in the store."""

    leader: int
    """Broker id, or NO_LEADER."""
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    """The epoch of the controller that has written this."""
    recovery: int = RECOVERED
    partition_epoch: int = 0
    """The version of the node; a change has to name it."""

    @property
    def end(self) -> str | None:
        """Why no state with a new leader epoch can follow this one; None if one can.

        So many elections do not happen: somebody has written the node who is no controller.
        """
        if self.leader_epoch >= HIGHEST_EPOCH:
            return f"its leader epoch is {self.leader_epoch}, and no higher leader epoch can follow"
        return self.end_of_node

    @property
    def end_of_node(self) -> str | None:
        """Why nothing can be written into the node any more; None if something can."""
        return "its node was written as often as it can be" if self.partition_epoch >= LAST_VERSION else None


class Topic(NamedTuple):
    """A topic as its node in the store has it."""

    topic_id: UUID
    partitions: dict[int, Assignment]

    @property
    def has_id(self) -> bool:
        return self.topic_id != NO_UUID


class PartitionStatus(Enum):
    """Where a partition is in its life."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    """It has replicas, but no leader has ever been written."""
    ONLINE = "online"
    OFFLINE = "offline"


class ReplicaStatus(Enum):
    """Where a replica of a partition is in its life."""

    NON_EXISTENT = "non-existent"
    NEW = "new"
    ONLINE = "online"
    OFFLINE = "offline"
    DELETION_STARTED = "deletion started"
    DELETION_SUCCESSFUL = "deletion successful"
    DELETION_INELIGIBLE = "deletion ineligible"
    """It cannot be deleted now: its broker is dead, or has refused."""


PARTITION_CHANGES = {
    PartitionStatus.NEW: frozenset({PartitionStatus.NON_EXISTENT}),
    PartitionStatus.ONLINE: frozenset({PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE}),
    PartitionStatus.OFFLINE: frozenset({PartitionStatus.NEW, PartitionStatus.ONLINE, PartitionStatus.OFFLINE}),
    PartitionStatus.NON_EXISTENT: frozenset({PartitionStatus.OFFLINE}),
}
"""By the status that a partition is to get, those that it may have before."""

_ALIVE = frozenset({ReplicaStatus.NEW, ReplicaStatus.ONLINE, ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_INELIGIBLE})
REPLICA_CHANGES = {
    ReplicaStatus.NEW: frozenset({ReplicaStatus.NON_EXISTENT}),
    ReplicaStatus.ONLINE: _ALIVE,
    ReplicaStatus.OFFLINE: _ALIVE,
    ReplicaStatus.DELETION_STARTED: frozenset({ReplicaStatus.OFFLINE}),
    ReplicaStatus.DELETION_SUCCESSFUL: frozenset({ReplicaStatus.DELETION_STARTED}),
    ReplicaStatus.DELETION_INELIGIBLE: frozenset({ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_STARTED}),
    ReplicaStatus.NON_EXISTENT: frozenset({ReplicaStatus.DELETION_SUCCESSFUL}),
}
"""By the status that a replica is to get, those that it may have before."""
