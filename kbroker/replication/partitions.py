"""The partitions of a member of a cluster: their roles, as the controller gives them, and their ISRs.

Control requests come one at a time. What they change is told to the log (its role), the fetchers and the listeners.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from kbroker.clock import Clock
from kbroker.model import TopicPartition
from kbroker.protocol.messages import Message
from kbroker.replication.surroundings import AskController, Fetchers, LogHost, Metadata, RoleListeners


class Role(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"
    """The log is in a failed directory."""


class Hosted(NamedTuple):
    """A partition that this broker has a replica of. A value: it does not change."""

    role: Role
    topic_id: UUID
    """NO_UUID if the controller has told none."""
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """The committed ISR, if this broker leads; else the ISR when the leader epoch began."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    is_pending: bool
    """Whether this broker leads and a change of its ISR is not settled yet."""


class ReplicatedPartitions:
    """The partitions of which this broker has a replica. Thread-safe; it has no thread of its own.

    `leader_and_isr`, `stop_replicas`, `update_metadata` and `directory_failed` wait for disks and for each other: one
    at a time. `tick`, `on_news` and answers of the controller wait for neither.
    """

    def __init__(
        self,
        node_id: int,
        logs: LogHost,
        fetchers: Fetchers,
        ask_controller: AskController,
        metadata: Metadata,
        clock: Clock,
        listeners: RoleListeners,
        *,
        max_lag_ms: int = 30_000,
    ): ...

    def leader_and_isr(self, request: Message, version: int) -> Message:
        """Carry out LeaderAndIsr and return its answer. Raises nothing."""
        raise NotImplementedError

    def stop_replicas(self, request: Message, version: int) -> Message:
        """Carry out StopReplica and return its answer."""
        raise NotImplementedError

    def update_metadata(self, request: Message, version: int) -> Message:
        """Carry out UpdateMetadata and return its answer."""
        raise NotImplementedError

    def directory_failed(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Note that these partitions' logs are in a directory that has failed: they go offline."""
        raise NotImplementedError

    def tick(self) -> int:
        """Do what is due: put replicas out that lag, ask the controller again. Returns milliseconds until the next."""
        raise NotImplementedError

    def on_news(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Let followers in that have caught up, in partitions whose logs say so (`ReplicaNews`)."""
        raise NotImplementedError

    def get(self, topic_partition: TopicPartition) -> Hosted | None:
        raise NotImplementedError

    def all(self) -> dict[TopicPartition, Hosted]:
        """Return every partition that this broker has a replica of."""
        raise NotImplementedError
