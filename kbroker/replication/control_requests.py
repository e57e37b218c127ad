"""LeaderAndIsr and StopReplica in all their versions, as the same values; and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.model import NO_UUID, TopicPartition
from kbroker.protocol import messages as M

R = M.LeaderAndIsrResponse

LEADER_AND_ISR_WITH_TOPIC_IDS = 5
"""The first version of LeaderAndIsr whose answer names topics by their ids."""

DURING_DELETE = -2
"""The leader epoch in StopReplica of a topic that is being deleted."""

NO_EPOCH = -1
"""The leader epoch in StopReplica before version 3, which has none."""


class ToldRole(NamedTuple):
    """What LeaderAndIsr says of one partition."""

    topic_partition: TopicPartition
    topic_id: UUID
    """NO_UUID if the request names none."""
    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    is_new: bool
    """Whether this replica has never existed, so that no log of it can be in a failed directory."""


class ToldStop(NamedTuple):
    """What StopReplica says of one partition."""

    topic_partition: TopicPartition
    leader_epoch: int
    """May be DURING_DELETE or NO_EPOCH."""
    deletes: bool


Results = Mapping[TopicPartition, ErrorCode]


def told_roles(request: M.LeaderAndIsrRequest) -> dict[TopicPartition, ToldRole]:
    """Return what the request says, by partition; of a partition that it names twice, what it says last."""
    told = {}
    for topic in request.topic_states:
        topic_id = UUID(bytes=topic.topic_id)
        for state in topic.partition_states:
            topic_partition = TopicPartition(topic.topic_name, state.partition_index)
            told[topic_partition] = _told_role(topic_partition, topic_id, state)
    for state in request.ungrouped_partition_states:  # before version 2
        topic_partition = TopicPartition(state.topic_name, state.partition_index)
        told[topic_partition] = _told_role(topic_partition, NO_UUID, state)
    return told


def _told_role(
    topic_partition: TopicPartition, topic_id: UUID, state: M.LeaderAndIsrRequest.LeaderAndIsrPartitionState
) -> ToldRole:
    return ToldRole(
        topic_partition,
        topic_id,
        state.leader,
        state.leader_epoch,
        state.partition_epoch,
        tuple(state.isr),
        tuple(state.replicas),
        tuple(state.adding_replicas),
        tuple(state.removing_replicas),
        state.is_new,
    )


def leader_and_isr_answer(
    request: M.LeaderAndIsrRequest, version: int, results: Results, error: ErrorCode = ErrorCode.NONE
) -> M.LeaderAndIsrResponse:
    if version < LEADER_AND_ISR_WITH_TOPIC_IDS:
        errors = [
            R.LeaderAndIsrPartitionError(topic_name=topic, partition_index=partition_id, error_code=code)
            for (topic, partition_id), code in results.items()
        ]
        return R(error_code=error, partition_errors=errors)
    by_topic: dict[str, list[R.LeaderAndIsrPartitionError]] = {}
    for (topic, partition_id), code in results.items():
        part = R.LeaderAndIsrPartitionError(partition_index=partition_id, error_code=code)
        by_topic.setdefault(topic, []).append(part)
    ids = {each.topic_name: each.topic_id for each in request.topic_states}
    topics = [
        R.LeaderAndIsrTopicError(topic_id=ids[name], partition_errors=errors) for name, errors in by_topic.items()
    ]
    return R(error_code=error, topics=topics)


def told_stops(request: M.StopReplicaRequest) -> dict[TopicPartition, ToldStop]:
    """Return what the request says, by partition; of a partition that it names twice, what it says last."""
    stops = [
        *(
            ToldStop(TopicPartition(topic.topic_name, each.partition_index), each.leader_epoch, each.delete_partition)
            for topic in request.topic_states
            for each in topic.partition_states
        ),
        *(
            ToldStop(TopicPartition(topic.name, partition_id), NO_EPOCH, request.delete_partitions)
            for topic in request.topics
            for partition_id in topic.partition_indexes
        ),
        *(
            ToldStop(TopicPartition(each.topic_name, each.partition_index), NO_EPOCH, request.delete_partitions)
            for each in request.ungrouped_partitions
        ),
    ]
    return {stop.topic_partition: stop for stop in stops}


def stop_replica_answer(results: Results, error: ErrorCode = ErrorCode.NONE) -> M.StopReplicaResponse:
    errors = [
        M.StopReplicaResponse.StopReplicaPartitionError(topic_name=topic, partition_index=partition_id, error_code=code)
        for (topic, partition_id), code in results.items()
    ]
    return M.StopReplicaResponse(error_code=error, partition_errors=errors)
