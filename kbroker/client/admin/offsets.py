"""Offsets of partitions, and deleting the records before an offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.client.admin.items import call_leaders, value_or_error
from kbroker.client.admin.results import OffsetAndTimestamp
from kbroker.client.admin.topics import given_ms, waited_ms
from kbroker.client.errors import BrokerError, ClientError
from kbroker.client.network.cluster import Cluster
from kbroker.errors import ErrorCode
from kbroker.model import MAX_TIMESTAMP, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

READ_COMMITTED = 1
MAX_TIMESTAMP_SINCE = 7  #: the version of ListOffsets


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
        topics = [
            request.ListOffsetsTopic(
                name=topic,
                partitions=[
                    request.ListOffsetsPartition(partition_index=n, timestamp=at, max_num_offsets=1) for n in numbers
                ],
            )
            for topic, numbers in theirs.items()
        ]
        # Brokers that serve less than version 2 have no transactions.
        level = READ_COMMITTED if read_committed and version >= 2 else 0
        answer = await connection.call(request(replica_id=-1, topics=topics, isolation_level=level))
        found: dict[TopicPartition, OffsetAndTimestamp | ClientError] = {}
        for topic in answer.topics:
            for each in topic.partitions:
                where = TopicPartition(topic.name, each.partition_index)
                offset = each.offset if version else next(iter(each.old_style_offsets), -1)
                value = OffsetAndTimestamp(offset, each.timestamp, each.leader_epoch)
                found[where] = value_or_error(each.error_code, None, str(where), value)
        return found

    return await call_leaders(cluster, partitions, attempt)


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
