"""Deletes topics: all replicas first, then the topic's nodes.

A deletion is halted while a replica is not online; what ends that resumes it. It ends reassignments of its topic.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kbroker.errors import ErrorCode
from kbroker.rules.controller.asked_moves import drop_asked
from kbroker.rules.controller.batch import Batch
from kbroker.rules.controller.commands import (
    DropDeletions,
    ReadDeletions,
    RemoveTopics,
    RequestDeletions,
    Rule,
    StopReplicaAnswer,
)
from kbroker.rules.controller.context import Context, Replica
from kbroker.rules.controller.partitions import set_status
from kbroker.rules.controller.replicas import change_replicas
from kbroker.rules.controller.values import PartitionStatus, ReplicaStatus


def deletions_changed(context: Context, *, is_enabled: bool) -> Rule[None]:
    """Take up the deletions that the store asks for; if deletions are not enabled, refuse them."""
    asked: frozenset[str] = yield ReadDeletions()
    unknown = asked - context.assignments.keys()
    refused = unknown if is_enabled else asked
    if refused:
        yield DropDeletions(refused)
    yield from _queue(context, asked - refused)


def delete_topics(context: Context, names: Iterable[str]) -> Rule[dict[str, ErrorCode]]:
    """Ask for the deletion of topics. Returns an error code for each; the deletion itself is `resume_deletions`."""
    outcome = {
        name: ErrorCode.NONE if name in context.assignments else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for name in names
    }
    known = frozenset(name for name, code in outcome.items() if code == ErrorCode.NONE)
    if known - context.deleting.keys():
        yield RequestDeletions(known - context.deleting.keys())
    return outcome


def queue_deletions(context: Context, names: Collection[str]) -> Rule[None]:
    """Delete topics whose deletion is asked for in the store."""
    yield from _queue(context, names)


def _queue(context: Context, names: Collection[str]) -> Rule[None]:
    if not names:
        return
    context.deleting.update(dict.fromkeys(sorted(names)))
    moved = {each for each in context.reassigning if each.topic in context.deleting}
    if moved:
        # They could not end: a topic that is being deleted gets no leaders. All replicas, old and new, are deleted.
        for partition in moved:
            context.end_reassignment(partition)
        yield from drop_asked(lambda partition, _: partition in moved)
    yield from resume_deletions(context)


def halt(context: Context, topics: Iterable[str], why: str) -> None:
    """Do not delete topics for now. Those that are not being deleted are left out."""
    for topic in topics:
        if topic in context.deleting and topic not in context.deletion_halted:
            context.deletion_halted.add(topic)
            context.note(f"the deletion of {topic} is halted: {why}")


def release(context: Context, topics: Collection[str]) -> Rule[None]:
    """Go on with deletions that were halted."""
    known = [each for each in topics if each in context.deleting]
    if known:
        context.deletion_halted.difference_update(known)
        yield from resume_deletions(context)


def replicas_failed(context: Context, replicas: Iterable[Replica]) -> Rule[None]:
    """Note replicas that cannot be deleted now, and halt the deletion of their topics."""
    failed = [each for each in replicas if each[0].topic in context.deleting]
    if failed:
        yield from change_replicas(context, failed, ReplicaStatus.DELETION_INELIGIBLE)
        halt(context, {partition.topic for partition, _ in failed}, "a replica could not be deleted")
        yield from resume_deletions(context)


def replicas_answered(context: Context, answer: StopReplicaAnswer) -> Rule[None]:
    """Note which replicas a broker has deleted."""
    broker = context.brokers.get(answer.broker_id)
    if broker is None or broker.epoch != answer.broker_epoch:
        return
    of_deletion = {each: code for each, code in answer.errors.items() if each.topic in context.deletion_started}
    failed = {each for each, code in of_deletion.items() if answer.error or code}
    yield from replicas_failed(context, [(each, answer.broker_id) for each in failed])
    deleted = [(each, answer.broker_id) for each in of_deletion if each not in failed]
    deleted = [each for each in deleted if each[0].topic in context.deleting]
    if deleted:
        yield from change_replicas(context, deleted, ReplicaStatus.DELETION_SUCCESSFUL)
        yield from resume_deletions(context)


def resume_deletions(context: Context) -> Rule[None]:
    """Go as far as it goes with every deletion that is not halted."""
    deleted: list[str] = []
    to_begin: list[str] = []
    to_retry: list[Replica] = []
    for topic in list(context.deleting):
        statuses = {context.status_of(each) for each in context.replicas_of(context.partitions_of(topic))}
        if statuses <= {ReplicaStatus.DELETION_SUCCESSFUL}:
            deleted.append(topic)
            continue
        if ReplicaStatus.DELETION_STARTED in statuses:
            continue
        if ReplicaStatus.DELETION_INELIGIBLE in statuses:
            to_retry += context.replicas_in(topic, ReplicaStatus.DELETION_INELIGIBLE)
        if topic not in context.deletion_halted:
            to_begin.append(topic)
    if deleted:
        yield from _complete(context, deleted)
    yield from change_replicas(context, to_retry, ReplicaStatus.OFFLINE)
    if to_begin:
        yield from _begin(context, to_begin)


def _complete(context: Context, topics: Collection[str]) -> Rule[None]:
    yield RemoveTopics({topic: [each.partition_id for each in context.partitions_of(topic)] for topic in topics})
    for topic in topics:
        context.remove_topic(topic)
        context.note(f"topic {topic} is deleted")


def _begin(context: Context, topics: Collection[str]) -> Rule[None]:
    unseen = [each for each in topics if each not in context.deletion_started]
    partitions = [partition for topic in unseen for partition in context.partitions_of(topic)]
    set_status(context, partitions, PartitionStatus.OFFLINE)
    set_status(context, partitions, PartitionStatus.NON_EXISTENT)
    context.deletion_started.update(unseen)
    batch = Batch(context)
    batch.tell_metadata(context.brokers, [each for topic in topics for each in context.partitions_of(topic)])
    yield from batch.send()

    dead: list[Replica] = []
    to_delete: list[Replica] = []
    for topic in topics:
        for replica in context.replicas_of(context.partitions_of(topic)):
            partition, broker_id = replica
            if not context.is_online(broker_id, partition):
                dead.append(replica)
            elif context.status_of(replica) is not ReplicaStatus.DELETION_SUCCESSFUL:
                to_delete.append(replica)
    yield from change_replicas(context, dead, ReplicaStatus.DELETION_INELIGIBLE)
    yield from change_replicas(context, to_delete, ReplicaStatus.OFFLINE)
    yield from change_replicas(context, to_delete, ReplicaStatus.DELETION_STARTED)
    halt(context, {partition.topic for partition, _ in dead}, "a replica is not online")
