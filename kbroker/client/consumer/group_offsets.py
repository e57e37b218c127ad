"""Committed offsets of a group, read and written without being a member. For the client's thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kbroker.client.consumer import offsets as group
from kbroker.client.consumer.coordinator import Coordinator
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from kbroker.client.network.cluster import Cluster
from kbroker.model import TopicPartition


async def committed_offsets(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the group's committed offsets of these partitions. A partition without one is left out."""
    coordinator = Coordinator(cluster, group_id)
    found = await cluster.retried(lambda: group.fetch(coordinator, partitions))
    return {partition: each.offset for partition, each in found.items()}


async def commit_offsets(cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group, each the next record to read.

    Raises CommitFailed while the group has members, which commit themselves.
    """
    coordinator, nobody = Coordinator(cluster, group_id), ConsumerGroupMetadata(group_id)
    given = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
    await cluster.retried(lambda: group.commit(coordinator, nobody, given))
