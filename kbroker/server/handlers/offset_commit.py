"""OffsetCommit, key 8, versions 2 to 9: a group's offsets are stored.

Leaves out: v0, whose offsets are in ZooKeeper, and v1, whose commit timestamps come from the client.

v2  retention time of the commit, in place of the broker's
v3  throttle time
v4  as v3; the throttle is applied after the response
v5  no retention time any more (KIP-211)
v6  leader epoch (KIP-320)
v7  group instance id (KIP-345)
v8  flexible
v9  member epoch of the newer group protocol (KIP-848), in the place of the generation
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.group_offsets import NO_EXPIRY, CommittedOffset
from kbroker.server.answering import answer

if TYPE_CHECKING:
    from kbroker._core.request import Request
    from kbroker.server.services import Services

NO_RETENTION_TIME = -1


def handle(services: Services, request: Request, message: M.OffsetCommitRequest) -> M.OffsetCommitResponse | None:
    """Answers when the offsets are stored; at once when there is none whose partition exists."""
    now_ms = services.clock.wall_ms()
    retention_ms = message.retention_time_ms
    expiry_ms = NO_EXPIRY if retention_ms == NO_RETENTION_TIME else now_ms + retention_ms
    image = services.cluster.image
    unknown: list[TopicPartition] = []
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic in message.topics:
        name = topic.name
        for partition in topic.partitions:
            topic_partition = TopicPartition(name, partition.partition_index)
            if image.partition(topic_partition) is None:
                unknown.append(topic_partition)
                continue
            metadata = partition.committed_metadata or ""
            offsets[topic_partition] = CommittedOffset(
                partition.committed_offset, partition.committed_leader_epoch, metadata, now_ms, expiry_ms
            )
    if not offsets:
        return _response(unknown, (), ErrorCode.NONE, frozenset())

    def committed(error: ErrorCode, too_long: frozenset[TopicPartition]) -> None:
        answer(request, _response(unknown, offsets, error, too_long), error)

    services.groups.commit(
        message.group_id,
        message.generation_id_or_member_epoch,
        message.member_id,
        message.group_instance_id,
        offsets,
        committed,
    )
    return None


def _response(
    unknown: list[TopicPartition],
    offsets: dict[TopicPartition, CommittedOffset] | tuple[()],
    error: ErrorCode,
    too_long: frozenset[TopicPartition],
) -> M.OffsetCommitResponse:
    R = M.OffsetCommitResponse
    topics: dict[str, list[M.OffsetCommitResponse.OffsetCommitResponsePartition]] = {}
    for name, partition_id in unknown:
        partition = R.OffsetCommitResponsePartition(
            partition_index=partition_id, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        topics.setdefault(name, []).append(partition)
    for topic_partition in offsets:
        code = ErrorCode.OFFSET_METADATA_TOO_LARGE if topic_partition in too_long else error
        name, partition_id = topic_partition
        partition = R.OffsetCommitResponsePartition(partition_index=partition_id, error_code=code)
        topics.setdefault(name, []).append(partition)
    return R(topics=[R.OffsetCommitResponseTopic(name=name, partitions=listed) for name, listed in topics.items()])
