"""What the controller does about each event and each request: the rule, and the answer in the asker's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kbroker.cluster import controller_requests as R
from kbroker.cluster import topic_requests as T
from kbroker.errors import ErrorCode
from kbroker.model import NO_UUID, TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.controller import brokers, deletion, in_sync, leaders, partitions, reassignment, shutdown, topics
from kbroker.rules.controller.commands import (
    AllocateIds,
    Answer,
    LeaderAndIsrAnswer,
    ReadBrokers,
    Rule,
    StopReplicaAnswer,
)
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.elections import Election
from kbroker.rules.controller.values import Assignment, PartitionState, Topic

_AlterResponse = M.AlterPartitionResponse
_NAMES_UP_TO = 1
"""The last version of AlterPartition that names topics; later ones have topic ids."""


class BrokersChanged(NamedTuple):
    """Brokers have registered, or gone, or changed their registrations; or one is believed again, or not any more."""


class TopicsChanged(NamedTuple):
    """Topics were made or removed."""


class TopicsGrew(NamedTuple):
    """The nodes of topics were changed, so partitions may have been added."""

    names: frozenset[str]


class DeletionsChanged(NamedTuple):
    """Somebody wants topics to be deleted."""


class ReassignmentsAsked(NamedTuple):
    """A tool has asked for reassignments through the store."""


class ReassignmentsWait(NamedTuple):
    """Reassignments wait for their turn."""


class PreferredAsked(NamedTuple):
    """A tool has asked for preferred elections through the store."""


class DirectoriesFailed(NamedTuple):
    """Brokers have said that log directories have failed."""


class IsrsChanged(NamedTuple):
    """Leaders have changed ISRs themselves."""


class Balance(NamedTuple):
    """The lead is to be given back to preferred leaders, as every few minutes."""


class UncleanElectionEnabled(NamedTuple):
    """A config has been set that allows unclean elections; `topic` None: for all topics."""

    topic: str | None = None


class Surroundings(NamedTuple):
    """What flows need beside the context."""

    deletion_enabled: bool
    imbalance_percentage: int


def flow_of(context: Context, event: Any, around: Surroundings) -> Rule[None]:
    """Return the rule for an event or a request."""
    flow = _FLOWS[type(event)]
    return flow(context, event, around)


# --- events -----------------------------------------------------------------------------------------------------------


def _brokers_changed(context: Context, _: BrokersChanged, __: Surroundings) -> Rule[None]:
    found = yield ReadBrokers()
    yield from brokers.brokers_changed(context, found)


def _unclean_enabled(context: Context, event: UncleanElectionEnabled, _: Surroundings) -> Rule[None]:
    yield from partitions.bring_all_online(context, event.topic)


# --- requests ---------------------------------------------------------------------------------------------------------


def _alter_partition(context: Context, asked: R.AlterPartition, _: Surroundings) -> Rule[None]:
    by_name = asked.version <= _NAMES_UP_TO
    wanted: dict[TopicPartition, in_sync.WantedIsr] = {}
    unknown: list[M.AlterPartitionRequest.TopicData] = []
    for topic in asked.request.topics:
        name = topic.topic_name if by_name else context.topic_names.get(UUID(bytes=topic.topic_id))
        if name is None:
            unknown.append(topic)
            continue
        for each in topic.partitions:
            wanted[TopicPartition(name, each.partition_index)] = _wanted(each, asked.version)
    request = asked.request
    outcome = yield from in_sync.alter_isrs(context, request.broker_id, request.broker_epoch, wanted)
    if isinstance(outcome, ErrorCode):
        yield Answer(_AlterResponse(error_code=outcome))
        return
    yield Answer(_AlterResponse(topics=_altered(context, outcome, unknown, by_name)))
    changed = [each for each, result in outcome.items() if isinstance(result, PartitionState)]
    yield from reassignment.isrs_grew(context, changed)


def _wanted(each: M.AlterPartitionRequest.PartitionData, version: int) -> in_sync.WantedIsr:
    if version >= 3:
        isr = tuple(member.broker_id for member in each.new_isr_with_epochs)
        epochs = tuple(member.broker_epoch for member in each.new_isr_with_epochs)
    else:
        isr = tuple(each.new_isr)
        epochs = (in_sync.NOT_GIVEN,) * len(isr)
    return in_sync.WantedIsr(each.leader_epoch, each.partition_epoch, isr, epochs, each.leader_recovery_state)


def _altered(
    context: Context,
    outcome: Mapping[TopicPartition, PartitionState | ErrorCode],
    unknown: list[M.AlterPartitionRequest.TopicData],
    by_name: bool,
) -> list[M.AlterPartitionResponse.TopicData]:
    answered = [
        _AlterResponse.TopicData(
            topic_id=topic.topic_id,
            partitions=[
                _AlterResponse.PartitionData(
                    partition_index=each.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_ID
                )
                for each in topic.partitions
            ],
        )
        for topic in unknown
    ]
    by_topic: dict[str, M.AlterPartitionResponse.TopicData] = {}
    for partition, result in outcome.items():
        topic_answer = by_topic.get(partition.topic)
        if topic_answer is None:
            topic_answer = by_topic[partition.topic] = (
                _AlterResponse.TopicData(topic_name=partition.topic, partitions=[])
                if by_name
                else _AlterResponse.TopicData(
                    topic_id=context.topic_ids.get(partition.topic, NO_UUID).bytes, partitions=[]
                )
            )
        topic_answer.partitions.append(_altered_partition(partition.partition_id, result, by_name))
    return [*answered, *by_topic.values()]


def _altered_partition(
    partition_id: int, result: PartitionState | ErrorCode, by_name: bool
) -> M.AlterPartitionResponse.PartitionData:
    if isinstance(result, ErrorCode):
        if by_name and result == ErrorCode.INELIGIBLE_REPLICA:
            result = ErrorCode.OPERATION_NOT_ATTEMPTED
        return _AlterResponse.PartitionData(partition_index=partition_id, error_code=result)
    return _AlterResponse.PartitionData(
        partition_index=partition_id,
        leader_id=result.leader,
        leader_epoch=result.leader_epoch,
        isr=list(result.isr),
        leader_recovery_state=result.recovery,
        partition_epoch=result.partition_epoch,
    )


def _controlled_shutdown(context: Context, asked: R.ControlledShutdown, _: Surroundings) -> Rule[None]:
    request = asked.request
    error, remaining = yield from shutdown.controlled_shutdown(context, request.broker_id, request.broker_epoch)
    left = [
        M.ControlledShutdownResponse.RemainingPartition(topic_name=each.topic, partition_index=each.partition_id)
        for each in remaining
    ]
    yield Answer(M.ControlledShutdownResponse(error_code=error, remaining_partitions=left))


def _allocate_producer_ids(context: Context, asked: R.AllocateProducerIds, _: Surroundings) -> Rule[None]:
    broker = context.brokers.get(asked.request.broker_id)
    answer = M.AllocateProducerIdsResponse()
    if broker is None:
        answer.error_code = ErrorCode.BROKER_ID_NOT_REGISTERED
    elif broker.epoch != asked.request.broker_epoch:
        answer.error_code = ErrorCode.STALE_BROKER_EPOCH
    else:
        block: tuple[int, int] | ErrorCode = yield AllocateIds(broker.broker_id)
        if isinstance(block, tuple):
            answer.producer_id_start, answer.producer_id_len = block
        else:
            answer.error_code = block
    yield Answer(answer)


def _elect_leaders(context: Context, asked: R.ElectLeaders, _: Surroundings) -> Rule[None]:
    kind = Election.PREFERRED if asked.kind == R.PREFERRED else Election.UNCLEAN
    yield Answer((yield from leaders.elect_leaders(context, kind, asked.partitions)))


def _alter_reassignments(context: Context, asked: R.AlterReassignments, _: Surroundings) -> Rule[None]:
    outcome = yield from reassignment.alter_reassignments(context, asked.targets)
    yield Answer({partition: R.PartitionOutcome(*each) for partition, each in outcome.items()})


def _list_reassignments(context: Context, asked: R.ListReassignments, _: Surroundings) -> Rule[None]:
    among = context.reassigning if asked.partitions is None else asked.partitions
    found: dict[TopicPartition, Assignment] = {each: context.stored_assignment(each) for each in among}
    yield Answer({each: assignment for each, assignment in found.items() if assignment.is_changing})


def _create_topics(context: Context, asked: T.CreateTopics, _: Surroundings) -> Rule[None]:
    wanted = {}
    for name, (assignment, configs) in asked.topics.items():
        replicas = {each: Assignment(tuple(brokers)) for each, brokers in assignment.replicas.items()}
        wanted[name] = (Topic(assignment.topic_id, replicas), configs)
    codes = yield from topics.create_topics(context, wanted)
    yield Answer(codes)
    made = frozenset(name for name, code in codes.items() if not code)
    if made:
        yield from topics.start_topics(context, made)


def _grow_topics(context: Context, asked: T.GrowTopics, _: Surroundings) -> Rule[None]:
    codes, added = yield from topics.grow_topics(context, asked.topics)
    yield Answer(codes)
    if added:
        yield from topics.start_partitions(context, added)


def _delete_topics(context: Context, asked: T.DeleteTopics, around: Surroundings) -> Rule[None]:
    if not around.deletion_enabled:
        yield Answer(dict.fromkeys(asked.names, ErrorCode.TOPIC_DELETION_DISABLED))
        return
    codes = yield from deletion.delete_topics(context, asked.names)
    yield Answer(codes)
    yield from deletion.queue_deletions(context, [name for name, code in codes.items() if not code])


_FLOWS: dict[type, Callable[[Context, Any, Surroundings], Rule[None]]] = {
    BrokersChanged: _brokers_changed,
    TopicsChanged: lambda context, _, __: topics.topics_changed(context),
    TopicsGrew: lambda context, event, _: topics.topics_grew(context, event.names),
    DeletionsChanged: lambda context, _, around: deletion.deletions_changed(
        context, is_enabled=around.deletion_enabled
    ),
    ReassignmentsAsked: lambda context, _, __: reassignment.take_up_asked(context),
    ReassignmentsWait: lambda context, _, __: reassignment.resume_waiting(context),
    PreferredAsked: lambda context, _, __: leaders.preferred_asked(context),
    DirectoriesFailed: lambda context, _, __: brokers.directories_failed(context),
    IsrsChanged: lambda context, _, __: in_sync.isrs_changed(context),
    Balance: lambda context, _, around: leaders.balance(context, around.imbalance_percentage),
    UncleanElectionEnabled: _unclean_enabled,
    LeaderAndIsrAnswer: lambda context, answer, _: brokers.roles_answered(context, answer),
    StopReplicaAnswer: lambda context, answer, _: deletion.replicas_answered(context, answer),
    R.AlterPartition: _alter_partition,
    R.ControlledShutdown: _controlled_shutdown,
    R.AllocateProducerIds: _allocate_producer_ids,
    R.ElectLeaders: _elect_leaders,
    R.AlterReassignments: _alter_reassignments,
    R.ListReassignments: _list_reassignments,
    T.CreateTopics: _create_topics,
    T.GrowTopics: _grow_topics,
    T.DeleteTopics: _delete_topics,
}
