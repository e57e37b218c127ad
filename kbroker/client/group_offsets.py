"""Offsets that a group has committed to the brokers, for who is no member of it. For the client's thread."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

from kbroker.client.cluster import GROUP, Cluster
from kbroker.client.errors import raise_for
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

_MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


async def committed_offsets(
    cluster: Cluster, group: str, partitions: Collection[TopicPartition], *, timeout_s: float | None = None
) -> dict[TopicPartition, int]:
    """What is committed of these; partitions of which nothing is are left out."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in partitions:
        numbers[topic].append(number)
    R = M.OffsetFetchRequest

    async def attempt() -> dict[TopicPartition, int]:
        connection = await cluster.connection(await cluster.coordinator(group))
        if connection.version_of(ApiKey.OFFSET_FETCH) >= 8:
            rows = [R.OffsetFetchRequestTopics(name=name, partition_indexes=each) for name, each in numbers.items()]
            asked = R(groups=[R.OffsetFetchRequestGroup(group_id=group, topics=rows)])
            (answer,) = (await cluster.call_coordinator(asked, group)).groups
        else:
            topics = [R.OffsetFetchRequestTopic(name=name, partition_indexes=each) for name, each in numbers.items()]
            answer = await cluster.call_coordinator(R(group_id=group, topics=topics), group)
        _check(cluster, group, answer.error_code, f"group {group!r}")
        found = {}
        for topic in answer.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                _check(cluster, group, each.error_code, f"group {group!r}, {partition}")
                if each.committed_offset >= 0:
                    found[partition] = int(each.committed_offset)
        return found

    return await cluster.retried(attempt, timeout_s=timeout_s)


async def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], *, timeout_s: float | None = None
) -> None:
    """The next records to read. BrokerError while the group has members, which commit themselves."""
    R = M.OffsetCommitRequest
    rows: dict[str, list[M.OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, number), offset in offsets.items():
        rows[topic].append(R.OffsetCommitRequestPartition(partition_index=number, committed_offset=offset))
    topics = [R.OffsetCommitRequestTopic(name=name, partitions=each) for name, each in rows.items()]

    async def attempt() -> None:
        answer = await cluster.call_coordinator(R(group_id=group, topics=topics), group)
        for topic in answer.topics:
            for each in topic.partitions:
                what = f"group {group!r}, {TopicPartition(topic.name, each.partition_index)}"
                _check(cluster, group, each.error_code, what)

    await cluster.retried(attempt, timeout_s=timeout_s)


def _check(cluster: Cluster, group: str, error_code: int, what: str) -> None:
    if error_code in _MOVED:
        cluster.forget_coordinator(group, GROUP)
    raise_for(error_code, None, what)
