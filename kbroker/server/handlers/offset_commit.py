"""OffsetCommit, key 8, versions 0 to 9: store a group's offsets.

Leaves out: nothing.

v0  stored in the coordination store, as once in ZooKeeper, without group members: see `cluster/consumer_offsets.py`
v1  stored in `__consumer_offsets`; generation and member, and the time of each commit
v2  a retention time for the commit, which replaces the broker's
v3  throttle time
v4  as v3; the throttle is applied after the response
v5  no retention time any more (KIP-211)
v6  leader epoch (KIP-320)
v7  group instance id (KIP-345)
v8  flexible
v9  member epoch of the newer group protocol (KIP-848), in the field of the generation
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.groups.records import fits
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.group_offsets import NO_EXPIRY, CommittedOffset
from kbroker.server.handlers.shared.answering import answer

if TYPE_CHECKING:
    from kbroker._core.server.request import Request
    from kbroker.server.handlers.shared.services import Services

NO_RETENTION_TIME = -1
NO_COMMIT_TIMESTAMP = -1


def blocks(services: Services, request: Request, message: M.OffsetCommitRequest) -> bool:
    """Whether the request is of version 0, which waits for the coordination store."""
    return request.api_version == 0


def handle(services: Services, request: Request, message: M.OffsetCommitRequest) -> M.OffsetCommitResponse | None:
    """Answer the request once the offsets are stored, or at once if none of the partitions exists."""
    if request.api_version == 0:
        return _commit_to_store(services, message, request.connection.peer_host)
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
            timestamp_ms = partition.commit_timestamp
            if timestamp_ms == NO_COMMIT_TIMESTAMP:
                timestamp_ms = now_ms
            offsets[topic_partition] = CommittedOffset(
                partition.committed_offset, partition.committed_leader_epoch, metadata, timestamp_ms, expiry_ms
            )
    if not offsets:
        return _response(unknown, (), ErrorCode.NONE, frozenset())

    def committed(error: ErrorCode, too_long: frozenset[TopicPartition]) -> None:
        answer(request, _response(unknown, offsets, error, too_long), error)

    services.groups.offsets.commit(
        message.group_id,
        message.generation_id_or_member_epoch,
        message.member_id,
        message.group_instance_id,
        offsets,
        committed,
        request.api_version,
        f"/{request.connection.peer_host}",
    )
    return None


def _commit_to_store(services: Services, message: M.OffsetCommitRequest, client_host: str) -> M.OffsetCommitResponse:
    """Commit as in version 0, which has no coordinator, members or generations.

    A partition named twice gets its last offset.
    """
    image = services.cluster.image
    longest = services.config["offset.metadata.max.bytes"]
    offsets: dict[TopicPartition, int] = {}
    checked: list[tuple[TopicPartition, ErrorCode]] = []
    for topic in message.topics:
        for partition in topic.partitions:
            at = TopicPartition(topic.name, partition.partition_index)
            code = ErrorCode.NONE
            if image.partition(at) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not fits(partition.committed_metadata or "", longest):
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                offsets[at] = partition.committed_offset
            checked.append((at, code))
    stored = ErrorCode.NONE
    if offsets:
        try:
            services.consumer_offsets.commit(message.group_id, offsets, client_host)
        except KbrokerError as error:
            stored = error.code
    return _answer((at, code or stored) for at, code in checked)


def _response(
    unknown: list[TopicPartition],
    offsets: dict[TopicPartition, CommittedOffset] | tuple[()],
    error: ErrorCode,
    too_long: frozenset[TopicPartition],
) -> M.OffsetCommitResponse:
    coded = [(at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for at in unknown]
    coded += [(at, ErrorCode.OFFSET_METADATA_TOO_LARGE if at in too_long else error) for at in offsets]
    return _answer(coded)


def _answer(coded: Iterable[tuple[TopicPartition, ErrorCode]]) -> M.OffsetCommitResponse:
    R = M.OffsetCommitResponse
    topics: dict[str, list[M.OffsetCommitResponse.OffsetCommitResponsePartition]] = {}
    for (name, partition_id), code in coded:
        partition = R.OffsetCommitResponsePartition(partition_index=partition_id, error_code=code)
        topics.setdefault(name, []).append(partition)
    return R(topics=[R.OffsetCommitResponseTopic(name=name, partitions=listed) for name, listed in topics.items()])
