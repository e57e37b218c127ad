"""Changes the replicas of partitions (KIP-455).

At the begin the topic's node gets the target's replicas and the others, with those that are added and removed. When the
target is inside the ISR, those that are removed are taken out, and at the very end the node gets the target alone. So
another controller can go on after every step: all that it needs is in the node and in the partition's state.

Everything that is asked for at once is in the nodes when it is answered. The rest is done for `CHUNK` partitions at a
time, and the events that have come meanwhile are dealt with in between (`Context.waiting`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller.asked_moves import drop_asked
from kbroker.rules.controller.assignments import NOBODY_IN_SYNC, write_assignments
from kbroker.rules.controller.batch import Batch
from kbroker.rules.controller.commands import ReadReassignments, Rule
from kbroker.rules.controller.context import Context, Replica
from kbroker.rules.controller.elections import Election
from kbroker.rules.controller.outcomes import NOT_MOVED, target_problem
from kbroker.rules.controller.partitions import begin_epochs, bring_online
from kbroker.rules.controller.replicas import change_replicas
from kbroker.rules.controller.values import Assignment, ReplicaStatus

CHUNK = 300
"""The most partitions with whose reassignments one event goes on."""

Target = tuple[int, ...] | None
"""The replicas that a partition is to have; None: cancel."""

Refusals = dict[TopicPartition, tuple[ErrorCode, str | None]]
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")


def alter_reassignments(context: Context, targets: Mapping[TopicPartition, Target]) -> Rule[Refusals]:
    """Begin, replace or cancel reassignments. Returns an error code and a message for each partition."""
    outcome: Refusals = {}
    wanted: dict[TopicPartition, Assignment] = {}
    for partition, target in targets.items():
        problem = None if target is None else target_problem(context.stored_assignment(partition), target, context.live)
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
    outcome.update((yield from _begin(context, wanted)))
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
    outcome.update((yield from _begin(context, wanted)))
    refused = {each for each, (code, _) in outcome.items() if code}
    if refused:
        context.note(f"reassignments are refused: {', '.join(sorted(str(each) for each in refused))}")
        yield from drop_asked(lambda partition, _: partition in refused)
    return set(wanted) - refused


def take_up_asked(context: Context) -> Rule[None]:
    """Do as `reassignments_asked`, while the controller is at work."""
    yield from reassignments_asked(context)


def resume_reassignments(context: Context, partitions: Iterable[TopicPartition]) -> Rule[None]:
    """Go on with the reassignments of some partitions, and let those wait that are too many at once."""
    known = [each for each in partitions if each in context.reassigning]
    for partition in known[CHUNK:]:
        context.waiting.setdefault(partition, context.assignment(partition))
    yield from _go_on(context, known[:CHUNK])


def resume_waiting(context: Context) -> Rule[None]:
    """Go on with reassignments that wait for their turn."""
    yield from resume_reassignments(context, list(context.waiting))


def isrs_grew(context: Context, partitions: Iterable[TopicPartition]) -> Rule[None]:
    """Complete the reassignments of those partitions whose ISRs have the whole target now."""
    complete = [
        each
        for each in partitions
        if each in context.reassigning and _is_complete(context, each, context.stored_assignment(each))
    ]
    yield from resume_reassignments(context, complete)


def _changed(context: Context, partition: TopicPartition, target: Target) -> Assignment | None:
    assignment = context.stored_assignment(partition)
    if target is not None:
        return assignment.changed_to(target)
    return assignment.changed_to(assignment.original) if assignment.is_changing else None


def _begin(context: Context, wanted: Mapping[TopicPartition, Assignment]) -> Rule[Refusals]:
    outcome: Refusals = {}
    accepted: dict[TopicPartition, Assignment] = {}
    for partition, assignment in wanted.items():
        if partition.topic in context.deleting or not context.assignment(partition).replicas:
            outcome[partition] = _GONE
        elif partition not in context.states:
            # A partition that never had a leader has no log to copy.
            outcome[partition] = (ErrorCode.UNKNOWN_SERVER_ERROR, "The partition has no leader yet.")
        elif not _has_in_sync(context, partition, assignment):
            outcome[partition] = (ErrorCode.INVALID_REPLICA_ASSIGNMENT, NOBODY_IN_SYNC)
        else:
            accepted[partition] = assignment
    changed = {each: now for each, now in accepted.items() if now != context.stored_assignment(each)}
    gone = yield from write_assignments(context, changed)
    for partition, assignment in accepted.items():
        if partition in changed and partition.topic in gone:
            outcome[partition] = _GONE
        else:
            outcome[partition] = (ErrorCode.NONE, None)
            context.reassigning.setdefault(partition)
            context.waiting[partition] = assignment
    yield from resume_reassignments(context, [each for each in accepted if not outcome[each][0]])
    return outcome


def _go_on(context: Context, partitions: Iterable[TopicPartition]) -> Rule[None]:
    taken = yield from _take_up(context, partitions)
    complete = {each: now for each, now in taken.items() if _is_complete(context, each, now)}
    yield from _begin_copies(context, {each: now for each, now in taken.items() if each not in complete})
    if complete:
        yield from _complete(context, complete)


def _take_up(context: Context, partitions: Iterable[TopicPartition]) -> Rule[dict[TopicPartition, Assignment]]:
    """Remember what the nodes say of partitions whose turn has come, and remove replicas that are not wanted any more.

    Returns the assignments.
    """
    taken = {each: context.waiting.pop(each, context.assignment(each)) for each in partitions}
    unneeded: list[Replica] = []
    for partition, assignment in taken.items():
        before = context.assignment(partition)
        context.put_assignment(partition, assignment)
        unneeded += [(partition, each) for each in before.replicas if each not in assignment.replicas]
    yield from _remove_replicas(context, unneeded)
    return taken


def _has_in_sync(context: Context, partition: TopicPartition, assignment: Assignment) -> bool:
    """Return whether a replica is in the ISR. Without a state nobody knows, and nothing is lost."""
    state = context.states.get(partition)
    return state is None or not set(state.isr).isdisjoint(assignment.replicas)


def _is_complete(context: Context, partition: TopicPartition, assignment: Assignment) -> bool:
    if not assignment.is_changing:
        return True
    state = context.states.get(partition)
    return state is not None and set(assignment.target) <= set(state.isr)


def _begin_copies(context: Context, assignments: Mapping[TopicPartition, Assignment]) -> Rule[None]:
    batch = Batch(context)
    for partition in (yield from _raise_leader_epochs(context, assignments)):
        assignment = assignments[partition]
        batch.tell_roles(assignment.original, partition)
        batch.tell_roles(assignment.adding, partition, is_new=True)
        for replica in context.replicas_of([partition]):
            if context.status_of(replica) is ReplicaStatus.NON_EXISTENT:
                context.put_status(replica, ReplicaStatus.NEW)
    yield from batch.send()


def _complete(context: Context, assignments: Mapping[TopicPartition, Assignment]) -> Rule[None]:
    added = [(each, broker_id) for each, assignment in assignments.items() for broker_id in assignment.adding]
    yield from change_replicas(context, added, ReplicaStatus.ONLINE)
    targets = {each: Assignment(assignment.target) for each, assignment in assignments.items()}
    for partition, target in targets.items():
        context.put_assignment(partition, target)
    yield from _move_leaders(context, targets)
    removed = [(each, broker_id) for each, assignment in assignments.items() for broker_id in assignment.removing]
    yield from _remove_replicas(context, removed)
    changed = {each: target for each, target in targets.items() if target != assignments[each]}
    yield from write_assignments(context, changed)
    yield from drop_asked(lambda each, replicas: each in targets and replicas == targets[each].replicas)
    for partition in targets:
        context.end_reassignment(partition)
    batch = Batch(context)
    batch.tell_metadata(context.brokers, targets)
    yield from batch.send()


def _move_leaders(context: Context, targets: Mapping[TopicPartition, Assignment]) -> Rule[None]:
    """Give the lead to replicas of the targets, where it is not there; else tell the leaders that others are out."""
    led = [each for each in targets if each in context.states]
    moved = [
        each
        for each in led
        if (leader := context.states[each].leader) not in targets[each].replicas or not context.is_online(leader, each)
    ]
    batch = Batch(context)
    for partition in (yield from _raise_leader_epochs(context, [each for each in led if each not in set(moved)])):
        batch.tell_roles(targets[partition].replicas, partition)
    yield from batch.send()
    yield from bring_online(context, moved, Election.REASSIGNMENT)


def _remove_replicas(context: Context, replicas: Collection[Replica]) -> Rule[None]:
    yield from change_replicas(context, replicas, ReplicaStatus.OFFLINE)
    yield from change_replicas(context, replicas, ReplicaStatus.DELETION_STARTED)
    yield from change_replicas(context, replicas, ReplicaStatus.DELETION_SUCCESSFUL)
    yield from change_replicas(context, replicas, ReplicaStatus.NON_EXISTENT)


def _raise_leader_epochs(context: Context, partitions: Collection[TopicPartition]) -> Rule[list[TopicPartition]]:
    """Begin new leader epochs with the same leaders and ISRs, so that brokers take over what else has changed.

    Returns the partitions that have one: not those without a state, or with one of a later controller.
    """
    begun = yield from begin_epochs(context, partitions)
    for partition in partitions:
        state = context.states.get(partition)
        if state is None or state.controller_epoch > context.epoch:
            context.note(f"it gets no new leader epoch: its state is {state}", partition)
    return [each for each in partitions if each in begun]
