"""What a controller does first: it learns everything from the store, and tells every broker all of its partitions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from kbroker.model import TopicPartition
from kbroker.rules.controller.batch import Batch
from kbroker.rules.controller.brokers import usable
from kbroker.rules.controller.commands import (
    AddChannel,
    DatedState,
    DropDeletions,
    DropDirectoryEvents,
    DropIsrChanges,
    EnsureFeatures,
    ReadBrokers,
    ReadDatedStates,
    ReadDeletions,
    ReadDirectoryEvents,
    ReadIsrChanges,
    ReadTopicNames,
    Rule,
    WatchToolNodes,
)
from kbroker.rules.controller.context import Context, LeftOut, Replica
from kbroker.rules.controller.deletion import resume_deletions
from kbroker.rules.controller.leaders import preferred_asked
from kbroker.rules.controller.partitions import begin_epochs, bring_all_online
from kbroker.rules.controller.reassignment import reassignments_asked, resume_reassignments
from kbroker.rules.controller.replicas import change_replicas, put_out
from kbroker.rules.controller.topics import read_topics
from kbroker.rules.controller.values import NO_LEADER, Broker, PartitionStatus, ReplicaStatus


def take_over(context: Context, *, deletion_enabled: bool) -> Rule[None]:
    """Fill the context and bring the cluster into order."""
    yield EnsureFeatures()
    yield WatchToolNodes()
    # Old notifications say nothing new: all states are read, and all brokers are asked for all replicas.
    directories: Mapping[str, int] = yield ReadDirectoryEvents()
    if directories:
        yield DropDirectoryEvents(frozenset(directories))
    changes: Mapping[str, tuple[TopicPartition, ...]] = yield ReadIsrChanges()
    if changes:
        yield DropIsrChanges(frozenset(changes))
    dated = yield from _learn(context)
    asked: frozenset[str] = yield ReadDeletions()
    yield from _take_up_deletions(context, asked, is_enabled=deletion_enabled)

    yield from put_out(context, _returned(context, dated))
    yield from begin_epochs(context, _led_by_returned(context, dated))
    _doubt_leaders(context, dated)

    # Brokers have to know each other before they are told whom to follow.
    batch = Batch(context)
    batch.tell_metadata(context.brokers)
    yield from batch.send()
    yield from _start_replicas(context)
    yield from _start_partitions(context)

    taken_up = yield from reassignments_asked(context)
    yield from resume_reassignments(context, [each for each in context.reassigning if each not in taken_up])
    yield from resume_deletions(context)
    yield from preferred_asked(context)


def _learn(context: Context) -> Rule[Collection[tuple[TopicPartition, DatedState]]]:
    found: dict[int, Broker] = yield ReadBrokers()
    context.brokers = usable(context, found)
    names: frozenset[str] = yield ReadTopicNames()
    partitions = yield from read_topics(context, names)
    context.reassigning = {each: None for each in partitions if context.assignment(each).is_changing}
    dated: dict[TopicPartition, DatedState] = yield ReadDatedStates(tuple(partitions))
    context.states = {partition: each.state for partition, each in dated.items()}
    for broker in context.brokers.values():
        yield AddChannel(broker)
    return dated.items()


def _returned(context: Context, dated: Collection[tuple[TopicPartition, DatedState]]) -> Iterator[Replica]:
    """Yield members of ISRs that may lack records: they have registered after the ISR was written, or are no replicas.

    No controller has looked at a broker that came back so: before that a power cut may have taken records from its
    log, or its disk may be a new one. It is left where all members that are online are like it: then it is as good as
    any other, and nobody who knows more can be waited for without end. Kafka leaves it everywhere. Who is no replica is
    left over from a reassignment that was cancelled, of which the last step was not done.
    """
    epochs = {broker_id: broker.epoch for broker_id, broker in context.brokers.items()}
    for partition, (state, written) in dated:
        replicas = context.assignment(partition).replicas
        members = [each for each in state.isr if each in replicas]
        if members:
            yield from ((partition, each) for each in state.isr if each not in replicas)
        online = context.online_of(members, partition)
        returned = [each for each in online if epochs[each] > written]
        if returned and len(returned) < len(online) and partition.topic not in context.deleting:
            context.note(f"brokers {returned} have come back since the ISR was written, and are put out", partition)
            yield from ((partition, each) for each in returned)


def _led_by_returned(
    context: Context, dated: Collection[tuple[TopicPartition, DatedState]]
) -> Iterator[TopicPartition]:
    """Yield partitions that are led by who has registered after the state was written, and that it is to lead on.

    Such a leader may have lost records of its epoch that a follower still has. If it wrote others in that epoch, under
    the same offsets, nobody would see that the logs differ. Kafka lets it lead on in the same epoch.
    """
    for partition, (before, written) in dated:
        broker, now = context.brokers.get(before.leader), context.states[partition]
        is_led = now.leader == before.leader and partition.topic not in context.deleting
        if is_led and broker is not None and broker.epoch > written:
            yield partition


def _doubt_leaders(context: Context, dated: Collection[tuple[TopicPartition, DatedState]]) -> None:
    """Keep the ISRs until their leaders have answered: one that has just come back may decline to lead."""
    for partition, (state, _) in dated:
        if len(state.isr) > 1:
            now = context.states[partition]
            elected, epoch = now.leader if now.leader in context.brokers else NO_LEADER, now.leader_epoch
            context.left_out[partition] = LeftOut(epoch, state.isr, elected, epoch, epoch)


def _take_up_deletions(context: Context, asked: frozenset[str], *, is_enabled: bool) -> Rule[None]:
    if not is_enabled:
        if asked:
            yield DropDeletions(asked)
        return
    unknown = asked - context.assignments.keys()
    if unknown:
        yield DropDeletions(unknown)
    context.deleting = dict.fromkeys(sorted(asked - unknown))
    for partition in [each for each in context.reassigning if each.topic in context.deleting]:
        del context.reassigning[partition]
    for topic in context.deleting:
        replicas = context.replicas_of(context.partitions_of(topic))
        if not all(context.is_online(broker_id, each) for each, broker_id in replicas):
            context.deletion_halted.add(topic)


def _start_replicas(context: Context) -> Rule[None]:
    online: list[Replica] = []
    offline: list[Replica] = []
    for partition in context.partitions():
        for broker_id in context.assignment(partition).replicas:
            is_online = context.is_online(broker_id, partition)
            (online if is_online else offline).append((partition, broker_id))
            status = ReplicaStatus.ONLINE if is_online else ReplicaStatus.DELETION_INELIGIBLE
            context.put_status((partition, broker_id), status)
    yield from change_replicas(context, online, ReplicaStatus.ONLINE)
    yield from change_replicas(context, offline, ReplicaStatus.OFFLINE)


def _start_partitions(context: Context) -> Rule[None]:
    for partition in context.partitions():
        state = context.states.get(partition)
        if state is None:
            status = PartitionStatus.NEW
        elif context.is_online(state.leader, partition):
            status = PartitionStatus.ONLINE
        else:
            status = PartitionStatus.OFFLINE
        context.partition_status[partition] = status
    yield from bring_all_online(context)
