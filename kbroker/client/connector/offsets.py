"""Where a group stores its offsets: in ZooKeeper, with the brokers, or in both while the group migrates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kbroker.client.config.option import Options
from kbroker.client.connector.group_nodes import GroupNodes
from kbroker.client.consumer import group_offsets
from kbroker.client.network.cluster import Cluster
from kbroker.model import TopicPartition


class OffsetStorage:
    """The committed offsets of one group. For one thread at a time."""

    def __init__(self, options: Options, nodes: GroupNodes, cluster: Cluster):
        self._group: str = options["group.id"]
        self._in_brokers = options["offsets.storage"] == "kafka"
        self._in_zookeeper = not self._in_brokers or options["dual.commit.enabled"]
        self._nodes = nodes
        self._cluster = cluster
        self._stored: dict[TopicPartition, int] = {}  # offsets that are known to be stored

    def load(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets; the larger one where ZooKeeper and the brokers have different ones.

        A partition without a committed offset is left out.
        """
        found: dict[TopicPartition, int] = {}
        if self._in_zookeeper:
            found = self._nodes.offsets(partitions)
        if self._in_brokers:
            thread = self._cluster.network.thread
            asked = group_offsets.committed_offsets(self._cluster, self._group, partitions)
            for partition, offset in thread.call(asked).items():
                found[partition] = max(offset, found.get(partition, offset))
        self._stored.update(found)
        return found

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit the positions that are not stored yet."""
        changed = {
            partition: offset for partition, offset in positions.items() if self._stored.get(partition) != offset
        }
        if not changed:
            return
        if self._in_brokers:
            self._cluster.network.thread.call(group_offsets.commit_offsets(self._cluster, self._group, changed))
        if self._in_zookeeper:
            self._nodes.commit(changed)
        self._stored.update(changed)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what is stored for partitions, because other members may commit them from now on."""
        for partition in partitions:
            self._stored.pop(partition, None)
