"""Offsets of partitions, and deleting the records before an offset."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from kbroker.client.admin.controller import given_ms, waited_ms
from kbroker.client.admin.items import (
    answers_of_nodes,
    call_leaders,
    missing_answer,
    numbers_by_topic,
    results_of,
    value_or_error,
)
from kbroker.client.admin.results import OffsetAndTimestamp, TopicPartitionReplica
from kbroker.client.errors import BrokerError, ClientError
from kbroker.client.network.cluster import Cluster
from kbroker.errors import ErrorCode
from kbroker.model import LATEST_TIMESTAMP, MAX_TIMESTAMP, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

READ_COMMITTED = 1
MAX_TIMESTAMP_SINCE = 7  #: the version of ListOffsets
DEBUGGING_REPLICA_ID = -2  #: whoever names this id may ask followers too, and is told of what is not committed yet


async def listing(
    cluster: Cluster, partitions: Iterable[TopicPartition], at: int, read_committed: bool
) -> dict[TopicPartition, OffsetAndTimestamp]:
    request = M.ListOffsetsRequest

    async def attempt(
        node_id: int, theirs: dict[str, list[int]]
    ) -> dict[TopicPartition, OffsetAndTimestamp | ClientError]:
        connection = await cluster.connection(node_id)
        version = connection.version_of(ApiKey.LIST_OFFSETS)
        if at <= MAX_TIMESTAMP and version < MAX_TIMESTAMP_SINCE:
            raise BrokerError(
                f"{connection.address} serves ListOffsets up to version {version} only, and cannot be asked for {at}",
                code=ErrorCode.UNSUPPORTED_VERSION,
            )
        # Brokers that serve less than version 2 have no transactions.
        level = READ_COMMITTED if read_committed and version >= 2 else 0
        answer = await connection.call(request(replica_id=-1, topics=_asked(theirs, at), isolation_level=level))
        found: dict[TopicPartition, OffsetAndTimestamp | ClientError] = {}
        for topic in answer.topics:
            for each in topic.partitions:
                where = TopicPartition(topic.name, each.partition_index)
                value = OffsetAndTimestamp(_offset_in(each, version), each.timestamp, each.leader_epoch)
                found[where] = value_or_error(each.error_code, None, str(where), value)
        return found

    return await call_leaders(cluster, partitions, attempt)


def _asked(wanted: Mapping[str, list[int]], at: int) -> list[M.ListOffsetsRequest.ListOffsetsTopic]:
    request = M.ListOffsetsRequest
    return [
        request.ListOffsetsTopic(
            name=topic,
            partitions=[
                request.ListOffsetsPartition(partition_index=n, timestamp=at, max_num_offsets=1) for n in numbers
            ],
        )
        for topic, numbers in wanted.items()
    ]


def _offset_in(each: M.ListOffsetsResponse.ListOffsetsPartitionResponse, version: int) -> int:
    return each.offset if version else next(iter(each.old_style_offsets), -1)


async def log_ends(cluster: Cluster, replicas: Iterable[TopicPartitionReplica]) -> dict[TopicPartitionReplica, int]:
    """Ask each broker once: which ones are asked is the caller's choice, so no error is mended by newer metadata."""
    by_node: dict[int, list[TopicPartition]] = defaultdict(list)
    for each in replicas:
        by_node[each.node_id].append(TopicPartition(each.topic, each.partition_id))

    async def ask(node_id: int) -> dict[TopicPartitionReplica, int | ClientError]:
        return await offsets_on(cluster, node_id, by_node[node_id], LATEST_TIMESTAMP)

    found: dict[TopicPartitionReplica, int | ClientError] = {}
    for node_id, answered in (await answers_of_nodes(cluster, by_node, ask)).items():
        theirs = [TopicPartitionReplica(*at, node_id) for at in by_node[node_id]]
        told = dict.fromkeys(theirs, answered) if isinstance(answered, ClientError) else answered
        found |= {replica: told.get(replica, missing_answer(replica)) for replica in theirs}
    return results_of(found)


async def offsets_on(
    cluster: Cluster, node_id: int, partitions: Iterable[TopicPartition], at: int
) -> dict[TopicPartitionReplica, int | ClientError]:
    """Return the first or the last offset (`at`) of each partition's replica on a broker, leader or follower."""
    connection = await cluster.connection(node_id)
    version = connection.version_of(ApiKey.LIST_OFFSETS)
    asked = _asked(numbers_by_topic(partitions), at)
    answer = await connection.call(M.ListOffsetsRequest(replica_id=DEBUGGING_REPLICA_ID, topics=asked))
    found: dict[TopicPartitionReplica, int | ClientError] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            where = TopicPartitionReplica(topic.name, each.partition_index, node_id)
            found[where] = value_or_error(each.error_code, None, str(where), _offset_in(each, version))
    return found


async def delete_before(cluster: Cluster, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    request = M.DeleteRecordsRequest

    async def attempt(node_id: int, theirs: dict[str, list[int]]) -> dict[TopicPartition, int | ClientError]:
        topics = [
            request.DeleteRecordsTopic(
                name=topic,
                partitions=[
                    request.DeleteRecordsPartition(partition_index=n, offset=wanted[TopicPartition(topic, n)])
                    for n in numbers
                ],
            )
            for topic, numbers in theirs.items()
        ]
        message = request(topics=topics, timeout_ms=given_ms(cluster))
        answer = await cluster.call(message, node_id, timeout_ms=waited_ms(cluster))
        found: dict[TopicPartition, int | ClientError] = {}
        for topic in answer.topics:
            for each in topic.partitions:
                where = TopicPartition(topic.name, each.partition_index)
                found[where] = value_or_error(each.error_code, None, str(where), each.low_watermark)
        return found

    return await call_leaders(cluster, wanted, attempt)
