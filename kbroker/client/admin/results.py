"""What an AdminClient returns: frozen dataclasses that do not depend on the protocol's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.client.errors import ClientError
from kbroker.model import TopicPartition


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. The numbers are -1 for the broker's default (Kafka 2.4 and later).

    `assignments` replaces both numbers: the node ids of the replicas of partition 0, of partition 1, and so on.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, object] = field(default_factory=dict)
    assignments: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker, with the address that it advertises."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster and its brokers. `controller_id` is -1 when no controller is known."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class Features:
    """The brokers' features (KIP-584).

    `supported`: (lowest, highest) level that the broker supports, by name. `finalized`: the level in force, by name.
    `epoch`: of the finalized levels; -1 when there are none.
    """

    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """One replica in a log directory.

    `size` is in bytes. `lag`: how many offsets the replica is behind. `is_future`: it is a copy that is being moved
    here.
    """

    size: int
    lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker. `error`: why it is offline, or None.

    `total_bytes` and `usable_bytes` of its disk are -1 when the broker does not tell them.
    """

    path: str
    error: ClientError | None
    replicas: Mapping[TopicPartition, ReplicaSize]
    total_bytes: int
    usable_bytes: int


class TopicPartitionReplica(NamedTuple):
    """One replica: a partition, and the broker that has it."""

    topic: str
    partition_id: int
    node_id: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition_id} of broker {self.node_id}"


@dataclass(frozen=True, slots=True)
class ReplicaLogDir:
    """The log directory that a replica is in, and the one that it is being moved to.

    `future_path` is None while it is not being moved. Lags are in offsets; -1 where there is no replica.
    """

    path: str | None
    offset_lag: int
    future_path: str | None
    future_offset_lag: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition; `replicas` and `in_sync` are node ids. `leader` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions. `topic_id` is 16 zero bytes where the broker is older than topic ids."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition's replicas while they move: all node ids that have one or get one, those added, and those removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Record batches of one replica as they are in its log. The last one may be cut off.

    `high_watermark` and `log_start_offset` are as that replica knows them.
    """

    data: bytes
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. `value` is None when it is not set, or secret. `source` is where it comes from, by Kafka's name."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a listing. `state` and `group_type` are empty where the broker does not tell them."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group, with the partitions that it has. `instance_id` is None when it is not a static member.

    Only groups of type "consumer" have `target`, the partitions it gets once other members have given them up, and
    `epoch`.
    """

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
    """A group and its members; `coordinator` is a node id. `state` is "Dead" when the group does not exist.

    `assignor`: the name of the assignor that shares its partitions; empty while it has no members.
    """

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
    """The answer of `list_offsets` for one partition. `timestamp` is the record's, in milliseconds since 1970.

    `timestamp` is -1 for EARLIEST and LATEST; `leader_epoch` is -1 when it is not known.
    """

    offset: int
    timestamp: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition's leader knows about one producer.

    `transaction_start` is the first offset of its open transaction in the partition; -1 when none is open there.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id, with the id of its producer and the node id of its coordinator."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id and its current transaction, with the partitions that are in it.

    `started_ms` is in milliseconds since 1970; -1 while no transaction is open.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]
    coordinator: int
