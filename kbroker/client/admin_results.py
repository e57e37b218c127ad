"""What an AdminClient returns: frozen, typed, without anything of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.client.errors import ClientError
from kbroker.model import TopicPartition


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be. -1: the broker's default (Kafka 2.4 and later). `assignments` instead of both numbers: the brokers
    of partition 0, of partition 1, ..."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, object] = field(default_factory=dict)
    assignments: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker, and where it is advertised."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """`controller_id` -1: none is known."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class Features:
    """What brokers can do beyond versions of APIs: `supported` has (lowest, highest) level by name, `finalized` the one
    that is in force. `epoch` -1: none are."""

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """Of one replica in a log directory, in bytes; `lag`: how many offsets it is behind."""

    size: int
    lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory. `error`: why it is offline. `total_bytes` and `usable_bytes` -1: the broker does not tell."""

    path: str
    error: ClientError | None
    replicas: Mapping[TopicPartition, ReplicaSize]
    total_bytes: int
    usable_bytes: int


class TopicPartitionReplica(NamedTuple):
    """A partition as one broker has it."""

    topic: str
    partition_id: int
    node_id: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition_id} of broker {self.node_id}"


@dataclass(frozen=True, slots=True)
class ReplicaLogDir:
    """Where a replica is, and where it is being moved to: None while it is not. Lags in offsets."""

    path: str | None
    offset_lag: int
    future_path: str | None
    future_offset_lag: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """`leader` -1: it has none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """`topic_id` is zeros where the broker is older than topic ids."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. `value` None: not set, or secret. `source`: where it comes from, in Kafka's words."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group of one of the coordinators. `state` and `group_type` are empty where the broker does not tell."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group. `instance_id` None: it is not static. `target`: what it is to have once others have let go,
    and `epoch`: both of groups of type "consumer" only."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None = None
    epoch: int = -1
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group. `assignor`: how partitions are shared; empty while it has no members. `state` "Dead": there is none."""

    group_id: str
    state: str
    group_type: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...]
    epoch: int = -1
    assignment_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """Where a partition begins, ends, or has its first record of a time. `timestamp` -1: not asked for by time."""

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition's leader knows of a producer. `transaction_start` -1: it has no transaction open there."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id, the producer that has it, and the broker that coordinates it."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """`started_ms` since 1970, -1 while none is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]
    coordinator: int
