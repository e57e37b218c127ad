"""DescribeProducers, key 61, version 0: the active producers of partitions, and their open transactions (KIP-664).

Any broker with a replica answers, with what that replica knows.
Leaves out: nothing.

v0  first
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kbroker._core.wire.codec import lazily
from kbroker.errors import ErrorCode, client_text
from kbroker.model import TopicPartition, number_key
from kbroker.protocol import messages as M
from kbroker.rules.topic_names import topic_name_problem

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

_Response = M.DescribeProducersResponse


def handle(services: Services, request: Request, message: M.DescribeProducersRequest) -> M.DescribeProducersResponse:
    """Answer the request at once, unless a log has to be opened first."""
    once: dict[str, dict[bytes, int]] = {}
    for topic in message.topics:
        once.setdefault(topic.name, {}).update((number_key(each), each) for each in topic.partition_indexes)
    return _Response(topics=lazily(len(once), (_topic(services, name, ids.values()) for name, ids in once.items())))


def _topic(services: Services, name: str, partition_ids: Collection[int]) -> M.DescribeProducersResponse.TopicResponse:
    """A topic's response. Its partitions are made one at a time while it is encoded: together they may be too large."""
    problem = topic_name_problem(name)
    if problem is not None:
        refused = (ErrorCode.INVALID_TOPIC_EXCEPTION, client_text(problem))
        partitions = (_refused(partition_id, *refused) for partition_id in partition_ids)
    else:
        partitions = (_describe(services, TopicPartition(name, partition_id)) for partition_id in partition_ids)
    return _Response.TopicResponse(name=name, partitions=lazily(len(partition_ids), partitions))


def _describe(services: Services, at: TopicPartition) -> M.DescribeProducersResponse.PartitionResponse:
    if services.cluster.image.partition(at) is None:
        is_topic = at.topic in services.cluster.image.topics
        text = None if is_topic else "This server does not host this topic-partition."
        return _refused(at.partition_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    log = services.logs.get(at)
    if log is None:
        return _refused(at.partition_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    producers = log.active_producers()
    states = (
        _Response.ProducerState(
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            last_sequence=each.last_sequence,
            last_timestamp=each.last_timestamp,
            coordinator_epoch=each.coordinator_epoch,
            current_txn_start_offset=each.transaction_start_offset,
        )
        for each in producers
    )
    return _Response.PartitionResponse(partition_index=at.partition_id, active_producers=lazily(len(producers), states))


def _refused(
    partition_id: int, error: ErrorCode, text: str | None = None
) -> M.DescribeProducersResponse.PartitionResponse:
    return _Response.PartitionResponse(partition_index=partition_id, error_code=error, error_message=text)
