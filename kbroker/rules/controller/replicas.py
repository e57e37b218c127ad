"""The state machine of replicas: which are started, stopped and deleted, and taken out of the ISR."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbroker.model import TopicPartition
from kbroker.rules.controller.batch import Batch
from kbroker.rules.controller.commands import Rule
from kbroker.rules.controller.context import Context, Replica
from kbroker.rules.controller.elections import led_by
from kbroker.rules.controller.partitions import rewrite
from kbroker.rules.controller.values import NO_LEADER, REPLICA_CHANGES, PartitionState, ReplicaStatus


def change_replicas(context: Context, replicas: Iterable[Replica], target: ReplicaStatus) -> Rule[None]:
    """Give replicas another status, and tell brokers what follows. Replicas that may not have it keep theirs."""
    allowed = [each for each in replicas if _may_change(context, each, target)]
    batch = Batch(context)
    if target is ReplicaStatus.OFFLINE:
        yield from _take_offline(context, allowed, batch)
    else:
        for partition, broker_id in allowed:
            _CHANGES[target](context, broker_id, partition, batch)
    yield from batch.send()


def _may_change(context: Context, replica: Replica, target: ReplicaStatus) -> bool:
    status = context.status_of(replica)
    if status in REPLICA_CHANGES[target]:
        return True
    context.note(f"replica {replica[1]} cannot become {target.value}: it is {status.value}", replica[0])
    return False


def _begin(context: Context, broker_id: int, partition: TopicPartition, batch: Batch) -> None:
    state = context.states.get(partition)
    if state is not None:
        if state.leader == broker_id:
            context.note(f"replica {broker_id} cannot be new: it leads", partition)
            return
        batch.tell_roles([broker_id], partition, is_new=True)
    context.put_status((partition, broker_id), ReplicaStatus.NEW)


def _bring_online(context: Context, broker_id: int, partition: TopicPartition, batch: Batch) -> None:
    # A new replica has been told already, when it became new or when its partition got its first leader.
    if context.status_of((partition, broker_id)) is not ReplicaStatus.NEW and partition in context.states:
        batch.tell_roles([broker_id], partition)
    context.put_status((partition, broker_id), ReplicaStatus.ONLINE)


def _take_offline(context: Context, replicas: Sequence[Replica], batch: Batch) -> Rule[None]:
    for partition, broker_id in replicas:
        # In a failed directory the broker does not use it; or it does again, as it was told since.
        if partition not in context.failed.get(broker_id, ()):
            batch.stop(broker_id, partition)
    removed = yield from put_out(context, [each for each in replicas if each[0] in context.states])
    for partition, broker_ids in _by_partition(replicas).items():
        if partition in removed:
            if partition.topic not in context.deleting:
                others = (each for each in context.assignment(partition).replicas if each not in broker_ids)
                batch.tell_roles(others, partition)
        elif partition not in context.states:
            batch.tell_metadata(context.brokers, [partition])
        else:
            context.note(f"replicas {broker_ids} could not be taken out of the ISR", partition)
            continue
        for broker_id in broker_ids:
            context.put_status((partition, broker_id), ReplicaStatus.OFFLINE)


def put_out(context: Context, replicas: Iterable[Replica]) -> Rule[set[TopicPartition]]:
    """Take replicas out of the ISRs of their partitions, which they do not lead any more, and tell nobody.

    The last member of an ISR stays in it: it alone has all records. It does not lead, though. Returns the partitions
    where that is so now.
    """
    leaving = _by_partition(replicas)
    outside: set[TopicPartition] = set()

    def without(partition: TopicPartition, state: PartitionState) -> PartitionState | None:
        members = [each for each in leaving[partition] if each in state.isr]
        if not members:
            context.states[partition] = state._replace(controller_epoch=context.epoch)
            outside.add(partition)
            return None
        isr = tuple(each for each in state.isr if each not in members) or (members[-1],)
        return led_by(state, NO_LEADER if state.leader in members else state.leader, isr)

    written = yield from rewrite(context, leaving, without, "its ISR stays as it is")
    return outside | written


def _by_partition(replicas: Iterable[Replica]) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    for partition, broker_id in replicas:
        found.setdefault(partition, []).append(broker_id)
    return found


def _begin_deletion(context: Context, broker_id: int, partition: TopicPartition, batch: Batch) -> None:
    context.put_status((partition, broker_id), ReplicaStatus.DELETION_STARTED)
    batch.stop(broker_id, partition, is_deletion=True)


def _note_deleted(context: Context, broker_id: int, partition: TopicPartition, batch: Batch) -> None:
    context.put_status((partition, broker_id), ReplicaStatus.DELETION_SUCCESSFUL)


def _note_ineligible(context: Context, broker_id: int, partition: TopicPartition, batch: Batch) -> None:
    context.put_status((partition, broker_id), ReplicaStatus.DELETION_INELIGIBLE)


def _forget(context: Context, broker_id: int, partition: TopicPartition, batch: Batch) -> None:
    context.put_assignment(partition, context.assignment(partition).without(broker_id))
    context.replica_status[partition].pop(broker_id, None)


_CHANGES = {
    ReplicaStatus.NEW: _begin,
    ReplicaStatus.ONLINE: _bring_online,
    ReplicaStatus.DELETION_STARTED: _begin_deletion,
    ReplicaStatus.DELETION_SUCCESSFUL: _note_deleted,
    ReplicaStatus.DELETION_INELIGIBLE: _note_ineligible,
    ReplicaStatus.NON_EXISTENT: _forget,
}
