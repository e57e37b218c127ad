"""Changes the replicas of partitions (KIP-455).

At the begin the topic's node gets the target's replicas and the others, with those that are added and removed. When the
target is inside the ISR, those that are removed are taken out, and at the very end the node gets the target alone. So
another controller can go on after every step: all that it needs is in the node and in the partition's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller.asked_moves import drop_asked
from kbroker.rules.controller.batch import Batch
from kbroker.rules.controller.commands import ReadReassignments, Rule, WriteTopic
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.elections import Election
from kbroker.rules.controller.outcomes import NOT_MOVED, target_problem
from kbroker.rules.controller.partitions import begin_epochs, bring_online
from kbroker.rules.controller.replicas import change_replicas
from kbroker.rules.controller.values import Assignment, ReplicaStatus

Target = tuple[int, ...] | None
"""The replicas that a partition is to have; None: cancel."""

Refusals = dict[TopicPartition, tuple[ErrorCode, str | None]]
_NOBODY_IN_SYNC = "None of these replicas is in sync: the partition would need an unclean leader election."
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")


def alter_reassignments(context: Context, targets: Mapping[TopicPartition, Target]) -> Rule[Refusals]:
    """Begin, replace or cancel reassignments. Returns an error code and a message for each partition."""
    outcome: Refusals = {}
    wanted: dict[TopicPartition, Assignment] = {}
    for partition, target in targets.items():
        problem = None if target is None else target_problem(context.assignment(partition), target, context.live)
        if problem is not None:
            outcome[partition] = (ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
            continue
        changed = _changed(context, partition, target)
        if changed is None:
            outcome[partition] = (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, NOT_MOVED)
        else:
            wanted[partition] = changed
    # The newest request counts: what a tool has asked for through the store does not come back.
    yield from drop_asked(lambda partition, _: partition in wanted)
    outcome.update((yield from _begin_all(context, wanted)))
    return outcome


def reassignments_asked(context: Context) -> Rule[set[TopicPartition]]:
    """Take up what a tool has asked for through the store. Returns the partitions that were taken up."""
    targets: dict[TopicPartition, tuple[int, ...]] = yield ReadReassignments()
    outcome: Refusals = {}
    wanted: dict[TopicPartition, Assignment] = {}
    for partition, target in targets.items():
        changed = _changed(context, partition, target)
        if changed is None or not target:
            outcome[partition] = (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, NOT_MOVED)
        else:
            wanted[partition] = changed
    outcome.update((yield from _begin_all(context, wanted)))
    refused = {each for each, (code, _) in outcome.items() if code}
    if refused:
        context.note(f"reassignments are refused: {', '.join(sorted(str(each) for each in refused))}")
        yield from drop_asked(lambda partition, _: partition in refused)
    return set(wanted) - refused


def take_up_asked(context: Context) -> Rule[None]:
    """Do as `reassignments_asked`, while the controller is at work."""
    yield from reassignments_asked(context)


def resume_reassignments(context: Context, partitions: Iterable[TopicPartition]) -> Rule[None]:
    """Go on with the reassignments of partitions."""
    for partition in partitions:
        if partition in context.reassigning:
            yield from _reassign(context, partition, context.assignment(partition))


def isr_grew(context: Context, partition: TopicPartition) -> Rule[None]:
    """Complete the reassignment of a partition if its ISR has the whole target now."""
    if partition in context.reassigning and _is_complete(context, partition, context.assignment(partition)):
        yield from _reassign(context, partition, context.assignment(partition))


def _changed(context: Context, partition: TopicPartition, target: Target) -> Assignment | None:
    assignment = context.assignment(partition)
    if target is not None:
        return assignment.changed_to(target)
    return assignment.changed_to(assignment.original) if assignment.is_changing else None


def _begin_all(context: Context, wanted: Mapping[TopicPartition, Assignment]) -> Rule[Refusals]:
    outcome: Refusals = {}
    for partition, assignment in wanted.items():
        if partition.topic in context.deleting or not context.assignment(partition).replicas:
            outcome[partition] = _GONE
        elif partition not in context.states:
            # A partition that never had a leader has no log to copy.
            outcome[partition] = (ErrorCode.UNKNOWN_SERVER_ERROR, "The partition has no leader yet.")
        elif not set(context.states[partition].isr) & set(assignment.replicas):
            outcome[partition] = (ErrorCode.INVALID_REPLICA_ASSIGNMENT, _NOBODY_IN_SYNC)
        else:
            yield from _reassign(context, partition, assignment)
            outcome[partition] = (ErrorCode.NONE, None)
    return outcome


def _reassign(context: Context, partition: TopicPartition, assignment: Assignment) -> Rule[None]:
    yield from _write_down(context, partition, assignment)
    if _is_complete(context, partition, assignment):
        yield from _complete(context, partition, assignment)
        return
    if (yield from raise_leader_epoch(context, partition)):
        batch = Batch(context)
        batch.tell_roles(assignment.original, partition)
        batch.tell_roles(assignment.adding, partition, is_new=True)
        yield from batch.send()
    for broker_id in assignment.adding:
        replica = (partition, broker_id)
        # One that was started by an earlier round of the same reassignment has been told just now.
        if context.status_of(replica) is ReplicaStatus.NON_EXISTENT:
            yield from change_replicas(context, [replica], ReplicaStatus.NEW)


def _write_down(context: Context, partition: TopicPartition, assignment: Assignment) -> Rule[None]:
    before = context.assignment(partition)
    if before != assignment:
        yield from _write(context, partition, assignment)
        context.put_assignment(partition, assignment)
        unneeded = [each for each in before.replicas if each not in assignment.replicas]
        if unneeded:
            yield from _remove_replicas(context, partition, unneeded)
    context.reassigning.setdefault(partition)


def _write(context: Context, partition: TopicPartition, assignment: Assignment) -> Rule[None]:
    topic = context.topic(partition.topic)
    topic.partitions[partition.partition_id] = assignment
    if not (yield WriteTopic(partition.topic, topic)):
        context.note(f"the node of topic {partition.topic} is gone")


def _is_complete(context: Context, partition: TopicPartition, assignment: Assignment) -> bool:
    if not assignment.is_changing:
        return True
    state = context.states.get(partition)
    return state is not None and set(assignment.target) <= set(state.isr)


def _complete(context: Context, partition: TopicPartition, assignment: Assignment) -> Rule[None]:
    yield from change_replicas(context, [(partition, each) for each in assignment.adding], ReplicaStatus.ONLINE)
    target = Assignment(assignment.target)
    context.put_assignment(partition, target)
    yield from _move_leader(context, partition, assignment)
    yield from _remove_replicas(context, partition, assignment.removing)
    yield from _write(context, partition, target)
    yield from drop_asked(lambda each, replicas: each == partition and replicas == target.replicas)
    context.reassigning.pop(partition, None)
    batch = Batch(context)
    batch.tell_metadata(context.brokers, [partition])
    yield from batch.send()


def _move_leader(context: Context, partition: TopicPartition, assignment: Assignment) -> Rule[None]:
    """Give the lead to a replica of the target, if it is not there; else tell the leader that others are out."""
    leader = context.states[partition].leader
    if leader in assignment.target and context.is_online(leader, partition):
        if (yield from raise_leader_epoch(context, partition)):
            batch = Batch(context)
            batch.tell_roles(assignment.target, partition)
            yield from batch.send()
    else:
        yield from bring_online(context, [partition], Election.REASSIGNMENT)


def _remove_replicas(context: Context, partition: TopicPartition, broker_ids: Iterable[int]) -> Rule[None]:
    replicas = [(partition, each) for each in broker_ids]
    yield from change_replicas(context, replicas, ReplicaStatus.OFFLINE)
    yield from change_replicas(context, replicas, ReplicaStatus.DELETION_STARTED)
    yield from change_replicas(context, replicas, ReplicaStatus.DELETION_SUCCESSFUL)
    yield from change_replicas(context, replicas, ReplicaStatus.NON_EXISTENT)


def raise_leader_epoch(context: Context, partition: TopicPartition) -> Rule[bool]:
    """Begin a new leader epoch with the same leader and ISR, so that brokers take over what else has changed.

    Returns False if the partition has no state any more, or one of a later controller.
    """
    if (yield from begin_epochs(context, [partition])):
        return True
    state = context.states.get(partition)
    if state is None or state.controller_epoch > context.epoch:
        context.note(f"{partition} gets no new leader epoch: its state is {state}")
    return False
