"""Topics that are made or grown: their partitions get a first leader, and their replicas are started."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller.commands import (
    CreateTopics,
    GiveIds,
    ReadTopicNames,
    ReadTopics,
    Rule,
    WriteTopics,
)
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.elections import Election
from kbroker.rules.controller.partitions import bring_online, set_status
from kbroker.rules.controller.replicas import change_replicas
from kbroker.rules.controller.values import Assignment, PartitionStatus, ReplicaStatus, Topic

NewTopics = Mapping[str, tuple[Topic, Mapping[str, str]]]
"""By name, a topic and its configs."""


def topics_changed(context: Context) -> Rule[None]:
    """Take over which topics there are."""
    names: frozenset[str] = yield ReadTopicNames()
    for gone in context.assignments.keys() - names:
        context.note(f"topic {gone} was removed by somebody else")
        context.remove_topic(gone)
    new = frozenset(names - context.assignments.keys())
    if new:
        yield from start_topics(context, new)


def start_topics(context: Context, names: frozenset[str]) -> Rule[None]:
    """Read topics that have just been made, and give their partitions leaders."""
    partitions = yield from read_topics(context, names)
    yield from start_partitions(context, partitions)


def read_topics(context: Context, names: frozenset[str]) -> Rule[list[TopicPartition]]:
    """Take topics over from the store. Returns their partitions. A topic without an id (Kafka before 2.8) gets one."""
    found: dict[str, Topic] = yield ReadTopics(names)
    without = {name: topic for name, topic in found.items() if not topic.has_id}
    if without:
        found.update((yield GiveIds(without)))
    for name, topic in found.items():
        context.put_topic(name, topic)
    return [partition for name in found for partition in context.partitions_of(name)]


def start_partitions(context: Context, partitions: Collection[TopicPartition]) -> Rule[None]:
    """Give new partitions their first leaders."""
    set_status(context, partitions, PartitionStatus.NEW)
    yield from change_replicas(context, context.replicas_of(partitions), ReplicaStatus.NEW)
    yield from bring_online(context, partitions, Election.OFFLINE)
    yield from change_replicas(context, context.replicas_of(partitions), ReplicaStatus.ONLINE)


def topics_grew(context: Context, names: frozenset[str]) -> Rule[None]:
    """Take over partitions that were added to topics."""
    found: dict[str, Topic] = yield ReadTopics(names & context.assignments.keys())
    started: list[TopicPartition] = []
    taken_back: dict[str, Topic] = {}
    for name, topic in found.items():
        known = context.assignments[name]
        added = {each: assignment for each, assignment in topic.partitions.items() if each not in known}
        if added and name in context.deleting:
            context.note(f"partitions {sorted(added)} of topic {name} are taken back: the topic is being deleted")
            taken_back[name] = context.topic(name)
        else:
            known.update(added)
            started += [TopicPartition(name, each) for each in added]
    if taken_back:
        yield WriteTopics(taken_back)
    yield from start_partitions(context, started)


def create_topics(context: Context, wanted: NewTopics) -> Rule[dict[str, ErrorCode]]:
    """Write the nodes of new topics. Returns an error code for each; `start_topics` is to follow for those without."""
    outcome = {
        name: ErrorCode.TOPIC_ALREADY_EXISTS
        for name in wanted
        if name in context.assignments or name in context.deleting
    }
    new = {name: each for name, each in wanted.items() if name not in outcome}
    if new:
        outcome.update((yield CreateTopics(new)))
    return outcome


def grow_topics(
    context: Context, wanted: Mapping[str, Mapping[int, tuple[int, ...]]]
) -> Rule[tuple[dict[str, ErrorCode], list[TopicPartition]]]:
    """Write more partitions into the nodes of topics.

    Returns an error code for each topic, and the new partitions; `start_partitions` is to follow for them.
    """
    outcome = {name: _growth_problem(context, name, replicas) for name, replicas in wanted.items()}
    larger: dict[str, Topic] = {}
    for name in (name for name, code in outcome.items() if not code):
        larger[name] = context.topic(name)
        larger[name].partitions.update((each, Assignment(brokers)) for each, brokers in wanted[name].items())
    written: frozenset[str] = (yield WriteTopics(larger)) if larger else frozenset()
    added: list[TopicPartition] = []
    for name, topic in larger.items():
        if name in written:
            context.assignments[name] = topic.partitions
            added += [TopicPartition(name, each) for each in wanted[name]]
        else:
            outcome[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return outcome, added


def _growth_problem(context: Context, name: str, added: Iterable[int]) -> ErrorCode:
    if name in context.deleting:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if name not in context.assignments:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if any(each.topic == name for each in context.reassigning):
        return ErrorCode.REASSIGNMENT_IN_PROGRESS
    count = len(context.assignments[name])
    if sorted(added) != list(range(count, count + len(set(added)))):
        return ErrorCode.INVALID_PARTITIONS
    return ErrorCode.NONE
