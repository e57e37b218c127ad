"""DescribeTopicPartitions, key 75, version 0: partitions of topics, a limited number per response (KIP-966).

Topics come in the order of their names. The cursor in a response says where the next request goes on. A request without
topics asks for all topics. A partition whose leader is not alive, or lacks the client's listener, has no leader and no
error code, as in Kafka's KRaft mode.
Leaves out: eligible leader replicas, which only KRaft clusters have (Kafka 3.9 leaves them empty too).

v0  first
"""

from __future__ import annotations

from kbroker._core.server.request import Request
from kbroker.cluster.image import NO_LEADER, MetadataImage, Partition, Topic
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import INTERNAL_TOPICS
from kbroker.protocol import messages as M
from kbroker.rules.topic_names import missing_topic_error
from kbroker.server.handlers.shared import authorized_operations
from kbroker.server.handlers.shared.naming import in_order
from kbroker.server.handlers.shared.reachable_brokers import reachable_brokers
from kbroker.server.handlers.shared.services import Services

R = M.DescribeTopicPartitionsResponse
TopicPart = M.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


def handle(
    services: Services, request: Request, message: M.DescribeTopicPartitionsRequest
) -> M.DescribeTopicPartitionsResponse:
    untold = services.cluster.untold
    image = services.cluster.image
    reachable = _reachable(services, image, request)
    names = in_order(topic.name for topic in message.topics) if message.topics else sorted(image.topics)
    first_partition_id = 0
    cursor = message.cursor
    if cursor is not None:
        if cursor.partition_index < 0:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"the cursor's partition is {cursor.partition_index}")
        names = [name for name in names if name >= cursor.topic_name]
        if message.topics and names[:1] != [cursor.topic_name]:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"the cursor's topic {cursor.topic_name} is not asked for")
        if names[:1] == [cursor.topic_name]:
            first_partition_id = cursor.partition_index
    left = max(1, min(message.response_partition_limit, services.config["max.request.partition.size.limit"]))
    response = R()
    for name in names:
        topic = image.topic(name)
        if topic is None:
            response.topics.append(_unknown(name, is_untold=name in untold))
            continue
        if left == 0:
            response.next_cursor = R.Cursor(topic_name=name, partition_index=0)
            break
        response.topics.append(_part(topic, first_partition_id, first_partition_id + left, reachable))
        left -= len(response.topics[-1].partitions)
        next_partition_id = first_partition_id + len(response.topics[-1].partitions)
        if next_partition_id < len(topic.partitions) and left == 0:
            response.next_cursor = R.Cursor(topic_name=name, partition_index=next_partition_id)
            break
        first_partition_id = 0
    return response


def _unknown(name: str, *, is_untold: bool) -> TopicPart:
    return TopicPart(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if is_untold else missing_topic_error(name),
        name=name,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=authorized_operations.ON_TOPIC,
    )


def _reachable(services: Services, image: MetadataImage, request: Request) -> frozenset[int] | None:
    """Return the brokers that the client reaches; None for a broker that is alone: whoever asks reaches it."""
    if services.cluster.is_alone:
        return None
    return frozenset(each.node_id for each in reachable_brokers(services, image, request.connection))


def _part(topic: Topic, first: int, end: int, reachable: frozenset[int] | None) -> TopicPart:
    return TopicPart(
        name=topic.name,
        topic_id=topic.topic_id.bytes,
        is_internal=topic.is_internal,
        partitions=[_partition(each, reachable) for each in topic.partitions[first:end]],
        topic_authorized_operations=authorized_operations.ON_TOPIC,
    )


def _partition(partition: Partition, reachable: frozenset[int] | None) -> R.DescribeTopicPartitionsResponsePartition:
    leader, offline = partition.leader, partition.offline
    if reachable is not None:
        leader = leader if leader in reachable else NO_LEADER
        offline = tuple(each for each in partition.replicas if each in offline or each not in reachable)
    return R.DescribeTopicPartitionsResponsePartition(
        partition_index=partition.partition_id,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=list(offline),
    )
