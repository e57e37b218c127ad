"""What this broker knows of the cluster, as immutable values. A change makes a new image, which replaces the old whole.

Readers take `Topics.image` once and work on it; no lock, and nothing moves under them. An image shares whatever did not
change with the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from kbroker.model import INTERNAL_TOPICS, Endpoint, TopicPartition

T = TypeVar("T")

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


class Topic:
    """A topic, its partitions by id, and its own configs (what is not in them comes from the broker)."""

    __slots__ = ("configs", "configs_given", "name", "partitions", "prepared", "topic_id")

    def __init__(
        self,
        name: str,
        topic_id: UUID,
        partitions: tuple[Partition, ...],
        configs: Mapping[str, str],
        *,
        configs_given: bool = True,
    ):
        self.name = name
        self.topic_id = topic_id
        self.partitions = partitions
        self.configs = configs
        self.configs_given = configs_given
        """False for a topic whose logs were found on disk: nobody knows what its configs were; nothing of it may go."""
        self.prepared: dict[str, Any] = {}
        """What readers have made of this value and want to find again: responses ready to encode. Dies with it. Two
        readers may make the same thing at once; either is right."""

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)

    def changed(self, **values: Any) -> Topic:
        """This topic with other `values`, nothing prepared."""
        return _copied(self, prepared={}, **values)


class Broker(NamedTuple):
    """A broker that is alive. `epoch` grows with each of its registrations."""

    node_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    epoch: int


class MetadataImage:
    """Everything at one moment."""

    __slots__ = (
        "broker_configs", "brokers", "cluster_id", "controller_id", "group_configs", "names", "prepared", "topics",
    )  # fmt: skip

    def __init__(
        self,
        cluster_id: str,
        *,
        topics: Mapping[str, Topic] | None = None,
        names: Mapping[UUID, str] | None = None,
        broker_configs: Mapping[str, Mapping[str, str]] | None = None,
        group_configs: Mapping[str, Mapping[str, str]] | None = None,
    ):
        self.cluster_id = cluster_id
        self.controller_id = -1
        self.brokers: Mapping[int, Broker] = {}
        self.topics = topics or {}
        self.names = names or {}
        """Topic names by id."""
        self.broker_configs = broker_configs or {}
        """Dynamic broker configs, by broker id as text or DEFAULT_ENTITY."""
        self.group_configs = group_configs or {}
        """What was set for single groups, by group id."""
        self.prepared: dict[Any, Any] = {}
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
        return _copied(self, topics=topics, names=names, prepared={})

    def with_broker_configs(self, entity: str, configs: Mapping[str, str]) -> MetadataImage:
        return _copied(self, broker_configs={**self.broker_configs, entity: configs}, prepared={})

    def with_group_configs(self, group_id: str, configs: Mapping[str, str]) -> MetadataImage:
        others = {name: own for name, own in self.group_configs.items() if name != group_id}
        return _copied(self, group_configs={**others, group_id: configs} if configs else others)

    def with_brokers(
        self, brokers: Mapping[int, Broker], controller_id: int, failed: frozenset[tuple[int, TopicPartition]]
    ) -> MetadataImage:
        """Other brokers alive, or replicas `failed` (broker, partition) with their log directory."""
        topics = {name: _with_offline(topic, brokers, failed) for name, topic in self.topics.items()}
        return _copied(self, brokers=brokers, controller_id=controller_id, topics=topics, prepared={})


def _copied(value: T, **values: Any) -> T:
    """The same with other `values`."""
    copied = copy(value)
    for name, each in values.items():
        setattr(copied, name, each)
    return copied


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
