"""Log directories: which replicas are in them, and moving replicas between those of a broker (KIP-113)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from kbroker.client.admin.items import call_all_nodes, call_for_each, call_nodes, value_or_error
from kbroker.client.admin.results import LogDirDescription, ReplicaLogDir, ReplicaSize, TopicPartitionReplica
from kbroker.client.errors import ClientError, raise_for, refusal
from kbroker.client.network.cluster import Cluster
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M


async def describe(cluster: Cluster, node_ids: Collection[int] | None) -> dict[int, tuple[LogDirDescription, ...]]:
    async def ask(node_id: int) -> tuple[LogDirDescription, ...]:
        answer = await cluster.call(M.DescribeLogDirsRequest(topics=None), node_id)
        raise_for(answer.error_code, None, f"log directories of broker {node_id}")
        return tuple(
            LogDirDescription(
                each.log_dir,
                refusal(each.error_code, None, each.log_dir) if each.error_code else None,
                {
                    TopicPartition(topic.name, one.partition_index): ReplicaSize(
                        one.partition_size, one.offset_lag, bool(one.is_future_key)
                    )
                    for topic in each.topics
                    for one in topic.partitions
                },
                each.total_bytes,
                each.usable_bytes,
            )
            for each in answer.results
        )

    return await (call_all_nodes(cluster, ask) if node_ids is None else call_nodes(cluster, node_ids, ask))


async def describe_replicas(
    cluster: Cluster, replicas: Iterable[TopicPartitionReplica]
) -> dict[TopicPartitionReplica, ReplicaLogDir]:
    async def attempt(left: list[TopicPartitionReplica]) -> dict[TopicPartitionReplica, ReplicaLogDir | ClientError]:
        there = await describe(cluster, {each.node_id for each in left})
        return {each: _place_of(each, there[each.node_id]) for each in left}

    return await call_for_each(cluster, replicas, attempt)


def _place_of(replica: TopicPartitionReplica, directories: Iterable[LogDirDescription]) -> ReplicaLogDir | ClientError:
    here = TopicPartition(replica.topic, replica.partition_id)
    found = [(directory.path, directory.replicas[here]) for directory in directories if here in directory.replicas]
    if not found:
        return refusal(ErrorCode.REPLICA_NOT_AVAILABLE, None, str(replica))
    now = next(((path, size.lag) for path, size in found if not size.is_future), (None, -1))
    later = next(((path, size.lag) for path, size in found if size.is_future), (None, -1))
    return ReplicaLogDir(*now, *later)


async def move(cluster: Cluster, wanted: Mapping[TopicPartitionReplica, str]) -> None:
    row = M.AlterReplicaLogDirsRequest

    async def attempt(left: list[TopicPartitionReplica]) -> dict[TopicPartitionReplica, ClientError | None]:
        rows: dict[int, dict[str, dict[str, list[int]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        for each in left:
            rows[each.node_id][wanted[each]][each.topic].append(each.partition_id)
        found: dict[TopicPartitionReplica, ClientError | None] = {}
        for node_id, paths in rows.items():
            directories = [
                row.AlterReplicaLogDir(
                    path=path,
                    topics=[row.AlterReplicaLogDirTopic(name=name, partitions=ids) for name, ids in topics.items()],
                )
                for path, topics in paths.items()
            ]
            answer = await cluster.call(row(dirs=directories), node_id)
            for topic in answer.results:
                for one in topic.partitions:
                    replica = TopicPartitionReplica(topic.topic_name, one.partition_index, node_id)
                    found[replica] = value_or_error(one.error_code, None, str(replica), None)
        return found

    await call_for_each(cluster, wanted, attempt)
