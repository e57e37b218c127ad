"""Committing and fetching the offsets of a group."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from kbroker._core.client.consumer.fetch import FetchEngine
from kbroker.client.assignors.group_protocol import by_topic
from kbroker.client.consumer.coordinator import Coordinator
from kbroker.client.consumer.group_metadata import ConsumerGroupMetadata, OffsetAndMetadata
from kbroker.client.errors import CommitFailed, error_of, refusal
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey

NOT_A_MEMBER = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)


def positions_of(engine: FetchEngine, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the positions behind the records that polls have handed out, for partitions that have one."""
    found = {}
    for key in partitions:
        with suppress(KeyError):  # removed meanwhile
            position, epoch, _, _ = engine.epochs(*key)
            if position >= 0:
                found[TopicPartition(*key)] = OffsetAndMetadata(position, "", epoch)
    return found


async def commit(
    coordinator: Coordinator, who: ConsumerGroupMetadata, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Commit offsets in one attempt.

    Raises CommitFailed when `who` is not a member of that generation any more, BrokerError when the coordinator refuses
    otherwise.
    """
    request = M.OffsetCommitRequest

    def message(version: int) -> M.Message:
        topics = []
        for topic, ids in by_topic(offsets).items():
            rows = []
            for n in ids:
                offset, metadata, leader_epoch = offsets[TopicPartition(topic, n)]
                rows.append(
                    request.OffsetCommitRequestPartition(
                        partition_index=n,
                        committed_offset=offset,
                        committed_leader_epoch=leader_epoch,
                        committed_metadata=metadata,
                    )
                )
            topics.append(request.OffsetCommitRequestTopic(name=topic, partitions=rows))
        made = request(group_id=who.group_id, topics=topics)
        if version >= 1:
            made.generation_id_or_member_epoch, made.member_id = who.generation_id, who.member_id
        if version >= 7:
            made.group_instance_id = who.group_instance_id
        return made

    answer = await coordinator.call(ApiKey.OFFSET_COMMIT, message)
    answered = {
        TopicPartition(topic.name, row.partition_index): row.error_code
        for topic in answer.topics
        for row in topic.partitions
    }
    for partition in offsets:
        code = answered.get(partition, int(ErrorCode.UNKNOWN_SERVER_ERROR))
        if code in NOT_A_MEMBER:
            name = error_of(code).name
            raise CommitFailed(f"offsets of group {who.group_id!r} are not committed: {name}", code=error_of(code))
        coordinator.check(code, f"commit of {partition}")


async def fetch(
    coordinator: Coordinator, partitions: Collection[TopicPartition], who: ConsumerGroupMetadata | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed positions, in one attempt. A partition without one is left out.

    Raises BrokerError when the coordinator refuses. When it refuses because `who` is not a member of that epoch any
    more, the error is retriable.
    """
    request = M.OffsetFetchRequest
    asked = by_topic(partitions)

    def message(version: int) -> M.Message:
        made: M.OffsetFetchRequest
        if version >= 8:
            topics = [request.OffsetFetchRequestTopics(name=name, partition_indexes=ids) for name, ids in asked.items()]
            group = request.OffsetFetchRequestGroup(group_id=coordinator.group_id, topics=topics)
            if version >= 9 and who is not None:
                group.member_id, group.member_epoch = who.member_id, who.generation_id
            made = request(groups=[group])
        else:
            old = [request.OffsetFetchRequestTopic(name=name, partition_indexes=ids) for name, ids in asked.items()]
            made = request(group_id=coordinator.group_id, topics=old)
        # The coordinator answers with a retriable error while an open transaction is to commit these (KIP-447).
        if version >= 7:
            made.require_stable = True
        return made

    answer = await coordinator.call(ApiKey.OFFSET_FETCH, message)
    groups = [group for group in answer.groups if group.group_id == coordinator.group_id]
    found = groups[0] if groups else answer
    if who is not None and found.error_code in NOT_A_MEMBER:
        displaced = refusal(found.error_code, None, f"offsets of group {coordinator.group_id!r}")
        displaced.retriable = True
        raise displaced
    coordinator.check(found.error_code, "offsets")
    offsets = {}
    for topic in found.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.name, row.partition_index)
            coordinator.check(row.error_code, f"offset of {partition}")
            if row.committed_offset >= 0:
                offsets[partition] = OffsetAndMetadata(
                    row.committed_offset, row.metadata or "", row.committed_leader_epoch
                )
    return offsets
