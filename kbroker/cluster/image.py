"""What this broker knows of the cluster, as immutable values. A change makes a new image, which replaces the old whole.

Readers take `Topics.image` once and work on it; no lock, and nothing moves under them. An image shares whatever did not
change with the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.model import INTERNAL_TOPICS, Endpoint, TopicPartition

NO_LEADER = -1


class Partition(NamedTuple):
    """One partition as the cluster has agreed on it."""

    partition_id: int
    leader: int
    """Broker id, or NO_LEADER."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    """Replicas whose broker or log directory is not there."""
    state_version: int = 0
    """Version of the node that holds leader and ISR; what a change of them expects."""


@dataclass(frozen=True, slots=True, eq=False)
class Topic:
    """A topic, its partitions by id, and its own configs (what is not in them comes from the broker)."""

    name: str
    topic_id: UUID
    partitions: tuple[Partition, ...]
    configs: Mapping[str, str] = field(default_factory=dict)
    configs_given: bool = True
    """False for a topic whose logs were found on disk: nobody knows what its configs were, so nothing of it may go."""
    prepared: dict[str, Any] = field(default_factory=dict, repr=False)
    """What readers have made of this value and want to find again: responses ready to encode. Dies with it. Two readers
    may make the same thing at once; either is right."""

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)

    def changed(self, **values: Any) -> Topic:
        """This topic with other `values`, nothing prepared."""
        return replace(self, prepared={}, **values)


class Broker(NamedTuple):
    """A broker that is alive. `epoch` grows with each of its registrations."""

    node_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class MetadataImage:
    """Everything at one moment."""

    cluster_id: str
    controller_id: int = -1
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    names: Mapping[UUID, str] = field(default_factory=dict)
    """Topic names by id."""
    broker_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic broker configs, by broker id as text or DEFAULT_ENTITY."""
    group_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What was set for single groups, by group id."""
    prepared: dict[Any, Any] = field(default_factory=dict, repr=False)
    """As in Topic."""

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_partition: TopicPartition) -> Partition | None:
        topic = self.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition_id < len(topic.partitions):
            return None
        return topic.partitions[topic_partition.partition_id]

    def with_topics(self, changed: Iterable[Topic], removed: Iterable[str] = ()) -> MetadataImage:
        """`changed` added or in place of those with their names, `removed` gone."""
        topics, names = dict(self.topics), dict(self.names)
        for name in removed:
            names.pop(topics.pop(name).topic_id, None)
        for topic in changed:
            topics[topic.name] = topic
            names[topic.topic_id] = topic.name
        return replace(self, topics=topics, names=names, prepared={})

    def with_broker_configs(self, entity: str, configs: Mapping[str, str]) -> MetadataImage:
        return replace(self, broker_configs={**self.broker_configs, entity: configs}, prepared={})

    def with_group_configs(self, group_id: str, configs: Mapping[str, str]) -> MetadataImage:
        others = {name: own for name, own in self.group_configs.items() if name != group_id}
        return replace(self, group_configs={**others, group_id: configs} if configs else others)

    def with_brokers(
        self, brokers: Mapping[int, Broker], controller_id: int, failed: frozenset[tuple[int, TopicPartition]]
    ) -> MetadataImage:
        """Other brokers alive, or replicas `failed` (broker, partition) with their log directory."""
        topics = {name: _with_offline(topic, brokers, failed) for name, topic in self.topics.items()}
        return replace(self, brokers=brokers, controller_id=controller_id, topics=topics, prepared={})


def _with_offline(topic: Topic, brokers: Mapping[int, Broker], failed: frozenset[tuple[int, TopicPartition]]) -> Topic:
    """The topic with its offline replicas, and without leaders that are among them; the same one if nothing changes."""
    partitions = []
    for partition in topic.partitions:
        offline = tuple(
            replica
            for replica in partition.replicas
            if replica not in brokers
            or (failed and (replica, TopicPartition(topic.name, partition.partition_id)) in failed)
        )
        leader = NO_LEADER if partition.leader in offline else partition.leader
        if offline != partition.offline or leader != partition.leader:
            partition = partition._replace(offline=offline, leader=leader)
        partitions.append(partition)
    if all(new is old for new, old in zip(partitions, topic.partitions, strict=True)):
        return topic
    return topic.changed(partitions=tuple(partitions))
