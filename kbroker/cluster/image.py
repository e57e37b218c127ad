"""The cluster's metadata as immutable values. A change makes a new image, which replaces the old one as a whole.

A reader takes `Topics.image` once and works on it without a lock: it never changes. An image shares everything that has
not changed with the image before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from kbroker.model import INTERNAL_TOPICS, NO_UUID, Endpoint, TopicPartition

T = TypeVar("T")

NO_LEADER = -1


class Partition(NamedTuple):
    """One partition's metadata."""

    partition_id: int
    leader: int
    """Broker id, or NO_LEADER."""
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    """Replicas whose broker or log directory is offline."""
    state_version: int = 0
    """The version of the store's node with leader and ISR, which a change of them has to name."""


class Topic:
    """A topic, its partitions in the order of their ids, and its own configs; others come from the broker."""

    __slots__ = ("configs", "configs_given", "derived", "name", "partitions", "topic_id")

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
        """Whether the topic's own configs are known.

        False for a topic whose logs were found on disk; its records must not be deleted."""
        self.derived: dict[str, Any] = {}
        """A cache of what readers have made from this value, such as response parts. It lives as long as the value. Two
        readers may make the same entry at once; either is right."""

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas)

    @property
    def may_be_replicated(self) -> bool:
        """Whether some partition has more than one replica, or none is known yet."""
        return not self.partitions or any(len(partition.replicas) > 1 for partition in self.partitions)

    def changed(self, **values: Any) -> Topic:
        """A copy of this topic with other `values` and an empty cache."""
        return _copied(self, derived={}, **values)


class Broker(NamedTuple):
    """A live broker. `epoch` grows with each of its registrations."""

    node_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    epoch: int


class MetadataImage:
    """The whole metadata at one moment."""

    __slots__ = (
        "broker_configs", "brokers", "cluster_id", "controller_epoch", "controller_id", "derived", "group_configs",
        "names", "topics",
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
        self.controller_epoch = 0
        """The epoch of the controller that a member was told of; 0 for a broker that is alone."""
        self.brokers: Mapping[int, Broker] = {}
        self.topics = topics or {}
        self.names = names or {}
        """Topic names by id."""
        self.broker_configs = broker_configs or {}
        """Dynamic broker configs, by broker id as text or DEFAULT_ENTITY."""
        self.group_configs = group_configs or {}
        """Configs of single groups, by group id."""
        self.derived: dict[Any, Any] = {}
        """A cache of readers, as `Topic.derived`."""

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
        """A copy with the topics in `changed` added or replaced by name, and without the topics named in `removed`."""
        topics, names = dict(self.topics), dict(self.names)
        for name in removed:
            names.pop(topics.pop(name).topic_id, None)
        for topic in changed:
            topics[topic.name] = topic
            if topic.topic_id != NO_UUID:
                names[topic.topic_id] = topic.name
        return _copied(self, topics=topics, names=names, derived={})

    def with_controller(
        self, controller_id: int, controller_epoch: int, brokers: Mapping[int, Broker]
    ) -> MetadataImage:
        """A copy with this controller and with the brokers that it says are alive."""
        return _copied(
            self, controller_id=controller_id, controller_epoch=controller_epoch, brokers=brokers, derived={}
        )

    def with_broker_configs(self, entity: str, configs: Mapping[str, str]) -> MetadataImage:
        return _copied(self, broker_configs={**self.broker_configs, entity: configs}, derived={})

    def with_group_configs(self, group_id: str, configs: Mapping[str, str]) -> MetadataImage:
        others = {name: own for name, own in self.group_configs.items() if name != group_id}
        return _copied(self, group_configs={**others, group_id: configs} if configs else others)

    def with_brokers(
        self, brokers: Mapping[int, Broker], controller_id: int, failed: frozenset[tuple[int, TopicPartition]]
    ) -> MetadataImage:
        """A copy with these live brokers. `failed`: (broker id, partition) of replicas whose log directory failed."""
        topics = {name: _with_offline(topic, brokers, failed) for name, topic in self.topics.items()}
        return _copied(self, brokers=brokers, controller_id=controller_id, topics=topics, derived={})


def _copied(value: T, **values: Any) -> T:
    """A copy of `value` with other attributes `values`."""
    copied = copy(value)
    for name, each in values.items():
        setattr(copied, name, each)
    return copied


def _with_offline(topic: Topic, brokers: Mapping[int, Broker], failed: frozenset[tuple[int, TopicPartition]]) -> Topic:
    """The topic with its offline replicas marked, and without a leader (NO_LEADER) where the leader is offline.

    Returns the same object if nothing changes.
    """
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
