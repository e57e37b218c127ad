"""The internal topics for the coordinators that keep their state in them, and who leads these topics' partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbroker.errors import ProtocolError
from kbroker.model import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from kbroker.replication.acks import ReplicationWaits
from kbroker.replication.local_replica import LocalReplica
from kbroker.storage.log_manager import LogManager

if TYPE_CHECKING:
    from kbroker.cluster.cluster import Cluster
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.replication.hosted import Hosted
    from kbroker.replication.lead_checks import LeadChecks
    from kbroker.server.on_demand import OnDemand
    from kbroker.transactions.coordinator import TransactionCoordinator


class StateTopic:
    """An internal topic for the coordinator that keeps its state in it; a `state_log.topic.StateTopic`.

    `timeout_ms`: how long an append waits for followers. `hosted` tells the role of a partition on a member of a
    cluster, `lead_checks` asks the other members. Both are None for a broker that is alone: that one leads what the
    metadata says.
    """

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        logs: LogManager,
        waits: ReplicationWaits,
        default_partition_count: int,
        timeout_ms: int,
        hosted: Callable[[TopicPartition], Hosted | None] | None = None,
        lead_checks: LeadChecks | None = None,
    ):
        self._name = name
        self._cluster = cluster
        self._logs = logs
        self._waits = waits
        self._default_partition_count = default_partition_count
        self._timeout_ms = timeout_ms
        self._hosted = hosted
        self._lead_checks = lead_checks

    def ensure(self) -> None:
        """Create the topic unless it exists.

        Raises ProtocolError if it cannot be created now; with LEADER_NOT_AVAILABLE it is just being created.
        """
        (result,) = self._cluster.ensure([self._name])
        if isinstance(result, ProtocolError):
            raise result

    def partition_count(self) -> int | None:
        topic = self._cluster.image.topics.get(self._name)
        return None if topic is None else len(topic.partitions)

    def default_partition_count(self) -> int:
        return self._default_partition_count

    def led_partitions(self) -> Iterable[int]:
        topic = self._cluster.image.topic(self._name)
        if topic is None:
            return []
        if self._hosted is None:
            return [each.partition_id for each in topic.partitions if each.leader == self._cluster.node_id]
        return [partition_id for partition_id in range(len(topic.partitions)) if self._is_leader(partition_id)]

    def _is_leader(self, partition_id: int) -> bool:
        if self._hosted is None:
            partition = self._cluster.image.partition(TopicPartition(self._name, partition_id))
            return partition is not None and partition.leader == self._cluster.node_id
        hosted = self._hosted(TopicPartition(self._name, partition_id))
        return hosted is not None and hosted.is_leader

    def replica(self, partition_id: int) -> LocalReplica | None:
        if not self._is_leader(partition_id):
            return None
        log = self._logs.get(TopicPartition(self._name, partition_id))
        return None if log is None else LocalReplica(log, self._waits, self._timeout_ms, self._lead_checks)


class CoordinatorRoles:
    """Tells the coordinators which partitions of their topics a member leads; a `replication.RoleListeners`."""

    def __init__(self, groups: OnDemand[GroupCoordinator], transactions: OnDemand[TransactionCoordinator]):
        self._groups = groups
        self._transactions = transactions

    def leads(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Load the state in that partition; it is read in the background."""
        coordinator = self._of(topic_partition.topic)
        if coordinator is not None:
            coordinator.get().shards.lead(topic_partition.partition_id, leader_epoch)

    def follows(self, topic_partition: TopicPartition, leader_epoch: int) -> None:
        """Drop the state in that partition; who waits is answered with NOT_COORDINATOR."""
        coordinator = self._of(topic_partition.topic)
        if coordinator is not None and coordinator.made is not None:
            coordinator.made.shards.resign(topic_partition.partition_id, leader_epoch)

    def gone(self, topic_partition: TopicPartition) -> None:
        """Do what `follows` does, when the partition is deleted here or its log directory has failed."""
        coordinator = self._of(topic_partition.topic)
        if coordinator is not None and coordinator.made is not None:
            coordinator.made.shards.resign(topic_partition.partition_id)

    def _of(self, topic: str) -> OnDemand[GroupCoordinator] | OnDemand[TransactionCoordinator] | None:
        if topic == GROUP_OFFSETS_TOPIC:
            return self._groups
        return self._transactions if topic == TRANSACTION_STATE_TOPIC else None
