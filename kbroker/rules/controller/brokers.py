"""Brokers that come, go, come again under the same id, move, or lose a log directory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller.batch import Batch
from kbroker.rules.controller.commands import (
    AddChannel,
    DropDirectoryEvents,
    LeaderAndIsrAnswer,
    ReadDirectoryEvents,
    RemoveChannel,
    Rule,
)
from kbroker.rules.controller.context import Context, Replica
from kbroker.rules.controller.deletion import release, replicas_failed
from kbroker.rules.controller.partitions import bring_all_online, set_status, undo_elections
from kbroker.rules.controller.reassignment import resume_reassignments
from kbroker.rules.controller.replicas import change_replicas
from kbroker.rules.controller.values import NO_EPOCH, NO_LEADER, Broker, PartitionState, PartitionStatus, ReplicaStatus


def usable(context: Context, found: Mapping[int, Broker]) -> dict[int, Broker]:
    """Return the brokers that others can reach.

    One without the listener that brokers use among each other is left out: its replicas count as offline, and nobody
    else is held up by it.
    """
    kept = {}
    for broker_id, broker in found.items():
        if broker.endpoint(context.listener) is not None:
            kept[broker_id] = broker
        else:
            context.note(f"broker {broker_id} is not used: it has no listener {context.listener}, which brokers use")
    return kept


def brokers_changed(context: Context, found: Mapping[int, Broker]) -> Rule[None]:
    """Take over who is registered now."""
    found = usable(context, found)
    new = sorted(found.keys() - context.brokers.keys())
    dead = sorted(context.brokers.keys() - found.keys())
    both = sorted(found.keys() & context.brokers.keys())
    bounced = [each for each in both if found[each].epoch > context.brokers[each].epoch]
    moved = [
        each
        for each in both
        if found[each].epoch == context.brokers[each].epoch and found[each] != context.brokers[each]
    ]
    for each in new:
        yield AddChannel(found[each])
    untold = set()
    for each in (*bounced, *dead):
        is_told: bool = yield RemoveChannel(each)
        if not is_told:
            untold.add(each)
    for each in bounced:
        yield AddChannel(found[each])
    if new:
        context.brokers.update((each, found[each]) for each in new)
        yield from _started(context, new)
    if bounced:
        _remove(context, bounced)
        yield from _failed(context, bounced, untold)
        context.brokers.update((each, found[each]) for each in bounced)
        yield from _started(context, bounced)
    if dead:
        _remove(context, dead)
        yield from _failed(context, dead, untold)
    if moved:
        for each in moved:
            yield AddChannel(found[each])
        context.brokers.update((each, found[each]) for each in moved)
        yield from _inform(context, context.brokers)


def _remove(context: Context, broker_ids: Iterable[int]) -> None:
    for each in broker_ids:
        del context.brokers[each]


def _inform(context: Context, broker_ids: Iterable[int], partitions: Iterable[TopicPartition] = ()) -> Rule[None]:
    batch = Batch(context)
    batch.tell_metadata(broker_ids, partitions)
    yield from batch.send()


def _started(context: Context, broker_ids: Collection[int]) -> Rule[None]:
    for each in broker_ids:
        context.failed.pop(each, None)
    yield from _inform(context, context.brokers.keys() - set(broker_ids))
    known = [each for each in context.states if each.topic not in context.deleting]
    for broker_id in broker_ids:
        batch = Batch(context)
        batch.tell_metadata([broker_id], known)
        batch.forget(context.missed.pop(broker_id, ()))
        yield from batch.send()
    replicas = context.replicas_on(set(broker_ids))
    yield from change_replicas(context, replicas, ReplicaStatus.ONLINE)
    yield from bring_all_online(context)
    concerned = [each for each in context.reassigning if set(broker_ids) & set(context.assignment(each).target)]
    yield from resume_reassignments(context, concerned)
    yield from release(context, {partition.topic for partition, _ in replicas if partition.topic in context.deleting})


def _failed(context: Context, broker_ids: Collection[int], untold: Collection[int]) -> Rule[None]:
    """`untold`: brokers that have not heard of their election, if there was one."""
    for partition, left_out in list(context.left_out.items()):
        if left_out.elected in broker_ids:
            if left_out.elected in untold:
                context.left_out[partition] = left_out._replace(elected=NO_LEADER)
            else:
                del context.left_out[partition]  # it may have led before it went
    for each in broker_ids:
        context.failed.pop(each, None)
        context.shutting_down.discard(each)
        context.missed[each] = {}
    yield from replicas_went_offline(context, context.replicas_on(set(broker_ids)))


def replicas_went_offline(context: Context, replicas: Collection[Replica]) -> Rule[None]:
    """Elect leaders where replicas that are offline now have led, and take those replicas out of the ISRs."""
    of_deletion = [each for each in replicas if each[0].topic in context.deleting]
    others = [each for each in replicas if each[0].topic not in context.deleting]
    set_status(context, context.led_by_nobody(), PartitionStatus.OFFLINE)
    outcome = yield from bring_all_online(context)
    yield from change_replicas(context, others, ReplicaStatus.OFFLINE)
    yield from replicas_failed(context, of_deletion)
    if not others and not any(isinstance(each, PartitionState) for each in outcome.values()):
        # Nobody was told anything yet.
        yield from _inform(context, context.brokers)


def directories_failed(context: Context) -> Rule[None]:
    """Ask brokers that say that a log directory has failed which of their replicas are left.

    They are told to start all of them; those in the failed directory are answered with an error.
    """
    events: dict[str, int] = yield ReadDirectoryEvents()
    if events:
        brokers = set(events.values())
        yield from change_replicas(context, context.replicas_on(brokers), ReplicaStatus.ONLINE)
        yield DropDirectoryEvents(frozenset(events))


def _is_past(context: Context, answer: LeaderAndIsrAnswer, partition: TopicPartition) -> bool:
    """Return whether the partition has a later leader epoch than the one that is answered."""
    state = context.states.get(partition)
    return state is not None and answer.leader_epochs.get(partition, NO_EPOCH) < state.leader_epoch


def roles_answered(context: Context, answer: LeaderAndIsrAnswer) -> Rule[None]:
    """Note which replicas are in a failed directory, and which are not any more."""
    broker = context.brokers.get(answer.broker_id)
    if broker is None or broker.epoch != answer.broker_epoch:
        return
    if answer.error:
        context.note(f"broker {answer.broker_id} has refused LeaderAndIsr: {answer.error.name}")
        return
    before = context.failed.get(answer.broker_id, set())
    declined = {each for each, code in answer.errors.items() if code == ErrorCode.KAFKA_STORAGE_ERROR}
    # A replica that is in use was told the later role too: how it answers that one counts.
    failed = {each for each in declined if each in before or not _is_past(context, answer, each)}
    for partition, told in answer.leader_epochs.items():
        left_out = context.left_out.get(partition)
        if left_out is not None and left_out.elected == answer.broker_id and told >= left_out.since:
            if partition not in declined:
                del context.left_out[partition]  # it leads
            elif told == left_out.last:
                context.left_out[partition] = left_out._replace(elected=NO_LEADER)
    good = {each for each, code in answer.errors.items() if code == ErrorCode.NONE}
    now = (before - good) | failed
    if now:
        context.failed[answer.broker_id] = now
    else:
        context.failed.pop(answer.broker_id, None)
    if now - before:
        context.note(f"{len(now - before)} replicas of broker {answer.broker_id} cannot be used: its log says why")
        yield from replicas_went_offline(context, [(each, answer.broker_id) for each in sorted(now - before)])
    yield from undo_elections(context, answer.broker_id, failed)
    again = before - now
    if again:
        context.note(f"{len(again)} replicas of broker {answer.broker_id} can be used again")
        # Another leader may have been elected since the request: only replicas that were known to be good were told.
        behind = [
            (each, answer.broker_id)
            for each in sorted(again)
            if each.topic not in context.deleting and _is_past(context, answer, each)
        ]
        yield from bring_all_online(context)
        yield from change_replicas(context, behind, ReplicaStatus.ONLINE)
        yield from release(context, {each.topic for each in again})
