"""What a client knows about a cluster at one time. Views are immutable; a new one shares what has not changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kbroker.errors import ErrorCode

NO_ID = bytes(16)


@dataclass(frozen=True, slots=True)
class Node:
    """A broker, with the address that it advertises."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition. `leader_id` is -1 while it has no leader; `replicas` and `in_sync` are node ids."""

    partition_id: int
    leader_id: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    in_sync: tuple[int, ...] = ()
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic. `topic_id` is NO_ID where the broker does not tell it; `error_code` says why there are no partitions."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionView]
    is_internal: bool = False
    error_code: int = 0


@dataclass(frozen=True)
class ClusterView:
    """What is known of a cluster. `topics` has the topics that metadata were asked for.

    Topics that the broker refused are among them.
    """

    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicView] = field(default_factory=dict)

    def partition(self, topic: str, partition_id: int) -> PartitionView | None:
        found = self.topics.get(topic)
        return found.partitions.get(partition_id) if found is not None else None

    def with_answer(self, answer: Any, asked: frozenset[str] | None) -> ClusterView:
        """Return the view after a MetadataResponse to a request for the topics `asked`; None: for all topics."""
        nodes = {each.node_id: Node(each.node_id, each.host, each.port, each.rack) for each in answer.brokers}
        topics = {} if asked is None else {name: topic for name, topic in self.topics.items() if name not in asked}
        for each in answer.topics:
            if each.name is not None:
                topics[each.name] = _topic(each, self.topics.get(each.name))
        # A broker that has just started may answer without any brokers: the known ones stay.
        return ClusterView(answer.cluster_id, answer.controller_id, nodes or self.nodes, topics)

    def with_node(self, node: Node) -> ClusterView:
        known = self.nodes.get(node.node_id)
        if known is not None and (known.host, known.port) == (node.host, node.port):
            return self
        return replace(self, nodes={**self.nodes, node.node_id: node})

    def with_leader(
        self, topic: str, partition_id: int, leader_id: int, leader_epoch: int, nodes: Iterable[Node]
    ) -> ClusterView:
        """Return the view after a response has named a leader (KIP-951).

        Returns self when the view knows a leader of that epoch or later, or does not know the partition or the node.
        """
        known = self.partition(topic, partition_id)
        if known is None or leader_epoch <= known.leader_epoch:
            return self
        view = self
        for node in nodes:
            view = view.with_node(node)
        if leader_id not in view.nodes:
            return self
        changed = replace(known, leader_id=leader_id, leader_epoch=leader_epoch, error_code=0)
        there = self.topics[topic]
        partitions = {**there.partitions, partition_id: changed}
        return replace(view, topics={**view.topics, topic: replace(there, partitions=partitions)})


def _topic(each: Any, before: TopicView | None) -> TopicView:
    topic_id = each.topic_id or NO_ID
    same = before is not None and before.topic_id == topic_id
    partitions = {}
    for found in each.partitions:
        made = PartitionView(
            found.partition_index,
            found.leader_id,
            found.leader_epoch,
            tuple(found.replica_nodes),
            tuple(found.isr_nodes),
            found.error_code if found.error_code != ErrorCode.REPLICA_NOT_AVAILABLE else 0,
        )
        known = before.partitions.get(found.partition_index) if before is not None and same else None
        # The answer of a broker that lags behind may name an older leader: the newer one stays (KIP-320).
        newer = known is not None and 0 <= made.leader_epoch < known.leader_epoch
        partitions[found.partition_index] = known if known is not None and newer else made
    return TopicView(each.name, topic_id, partitions, bool(each.is_internal), each.error_code)
