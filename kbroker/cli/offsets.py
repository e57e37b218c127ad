"""Asking leaders for offsets: by time, first, last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import LATEST_TIMESTAMP, TopicPartition
from kbroker.net.blocking_client import BlockingClient, raise_for
from kbroker.protocol import messages as M


def resolve_offsets(
    client: BlockingClient, partitions: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    """For each partition the first offset at or after `timestamp` (model.EARLIEST_TIMESTAMP, ... too), else its end."""

    def attempt() -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for node_id, led in partitions_by_leader(client, partitions).items():
            found |= _list_offsets(client, node_id, led, timestamp)
        return found

    found = client.retried(attempt)
    beyond = [partition for partition in partitions if found[partition] < 0]
    if beyond and timestamp != LATEST_TIMESTAMP:
        found.update(resolve_offsets(client, beyond, LATEST_TIMESTAMP))
    return {partition: found[partition] for partition in partitions}


def end_offsets(client: BlockingClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Where each partition ends; those of topics that are gone are left out."""
    found: dict[TopicPartition, int] = {}
    topics: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition)
    for named in topics.values():
        try:
            found.update(resolve_offsets(client, named, LATEST_TIMESTAMP))
        except ProtocolError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
    return found


def partitions_by_leader(
    client: BlockingClient, partitions: Sequence[TopicPartition]
) -> dict[int, list[TopicPartition]]:
    """`partitions` by the node that leads them. ProtocolError for one that does not exist."""
    by_leader: dict[int, list[TopicPartition]] = {}
    leaders = {topic: client.leaders(topic) for topic in {partition.topic for partition in partitions}}
    for partition in partitions:
        node_id = leaders[partition.topic].get(partition.partition_id)
        if node_id is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")
        by_leader.setdefault(node_id, []).append(partition)
    return by_leader


def _list_offsets(
    client: BlockingClient, node_id: int, partitions: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    request = M.ListOffsetsRequest
    topics: dict[str, list[M.ListOffsetsRequest.ListOffsetsPartition]] = {}
    for topic, partition_id in partitions:
        topics.setdefault(topic, []).append(
            request.ListOffsetsPartition(partition_index=partition_id, timestamp=timestamp)
        )
    answer = client.call(
        request(
            replica_id=-1,
            topics=[request.ListOffsetsTopic(name=name, partitions=asked) for name, asked in topics.items()],
        ),
        node_id,
    )
    found = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            raise_for(partition.error_code, None, f"{topic.name}-{partition.partition_index}")
            found[TopicPartition(topic.name, partition.partition_index)] = partition.offset
    return found
