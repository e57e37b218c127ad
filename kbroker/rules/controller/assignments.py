"""Writes assignments into the nodes of topics, and states such that some replica of the node is always in the ISR.

Without one, a controller that takes over would find nobody whom it may elect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kbroker.model import TopicPartition
from kbroker.rules.controller.asked_moves import drop_asked
from kbroker.rules.controller.commands import Rule, WriteStates, WriteTopics
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.values import Assignment, PartitionState, Topic

NOBODY_IN_SYNC = "None of these replicas is in sync: the partition would need an unclean leader election."


def write_assignments(context: Context, assignments: Mapping[TopicPartition, Assignment]) -> Rule[Collection[str]]:
    """Write assignments into the nodes of their topics. Returns the topics whose nodes are gone."""
    topics: dict[str, Topic] = {}
    for (name, partition_id), assignment in assignments.items():
        if name not in topics:
            topics[name] = context.topic(name)
        topics[name].partitions[partition_id] = assignment
    if not topics:
        return ()
    written: frozenset[str] = yield WriteTopics(topics)
    gone = topics.keys() - written
    for name in sorted(gone):
        context.note(f"the node of topic {name} is gone")
    return gone


def write_states(
    context: Context, states: Mapping[TopicPartition, PartitionState]
) -> Rule[dict[TopicPartition, PartitionState]]:
    """Write states with new ISRs. Returns those that were written.

    A reassignment that waits for its turn is taken back first if the ISR has nobody of what the partition was to get.
    """
    taken_back = {
        each: context.assignment(each)
        for each, state in states.items()
        if each in context.waiting and set(state.isr).isdisjoint(context.waiting[each].replicas)
    }
    for partition in taken_back:
        del context.waiting[partition]
        context.note(f"its reassignment is taken back: {NOBODY_IN_SYNC}", partition)
    if taken_back:
        yield from write_assignments(context, taken_back)
        yield from drop_asked(lambda partition, _: partition in taken_back)
    written: dict[TopicPartition, PartitionState] = yield WriteStates(states)
    return written
