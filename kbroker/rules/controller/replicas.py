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
    by_broker: dict[int, list[TopicPartition]] = {}
    for replica in replicas:
        if _may_change(context, replica, target):
            by_broker.setdefault(replica[1], []).append(replica[0])
    batch = Batch(context)
    for broker_id, partitions in by_broker.items():
        if target is ReplicaStatus.OFFLINE:
            yield from _take_offline(context, broker_id, partitions, batch)
        else:
            _CHANGES[target](context, broker_id, partitions, batch)
    yield from batch.send()


def _may_change(context: Context, replica: Replica, target: ReplicaStatus) -> bool:
    status = context.status_of(replica)
    if status in REPLICA_CHANGES[target]:
        return True
    context.note(f"replica {replica[1]} cannot become {target.value}: it is {status.value}", replica[0])
    return False


def _begin(context: Context, broker_id: int, partitions: Sequence[TopicPartition], batch: Batch) -> None:
    for partition in partitions:
        state = context.states.get(partition)
        if state is not None:
            if state.leader == broker_id:
                context.note(f"replica {broker_id} cannot be new: it leads", partition)
                continue
            batch.tell_roles([broker_id], partition, is_new=True)
        context.put_status((partition, broker_id), ReplicaStatus.NEW)


def _bring_online(context: Context, broker_id: int, partitions: Sequence[TopicPartition], batch: Batch) -> None:
    for partition in partitions:
        # A new replica has been told already, when it became new or when its partition got its first leader.
        if context.status_of((partition, broker_id)) is not ReplicaStatus.NEW and partition in context.states:
            batch.tell_roles([broker_id], partition)
        context.put_status((partition, broker_id), ReplicaStatus.ONLINE)


def put_out(context: Context, replicas: Iterable[Replica]) -> Rule[None]:
    """Take replicas out of the ISRs of their partitions, which they do not lead any more, and tell nobody."""
    by_broker: dict[int, list[TopicPartition]] = {}
    for partition, broker_id in replicas:
        by_broker.setdefault(broker_id, []).append(partition)
    for broker_id, partitions in by_broker.items():
        yield from _remove_from_isr(context, broker_id, partitions)


def _take_offline(context: Context, broker_id: int, partitions: Sequence[TopicPartition], batch: Batch) -> Rule[None]:
    failed = context.failed.get(broker_id, ())
    for partition in partitions:
        if partition not in failed:  # the broker does not use it; or it does again, as it was told since
            batch.stop(broker_id, partition)
    removed = yield from _remove_from_isr(context, broker_id, [each for each in partitions if each in context.states])
    for partition in partitions:
        if partition in removed:
            if partition.topic not in context.deleting:
                others = (each for each in context.assignment(partition).replicas if each != broker_id)
                batch.tell_roles(others, partition)
        elif partition not in context.states:
            batch.tell_metadata(context.brokers, [partition])
        else:
            context.note(f"replica {broker_id} could not be taken out of the ISR", partition)
            continue
        context.put_status((partition, broker_id), ReplicaStatus.OFFLINE)


def _remove_from_isr(
    context: Context, broker_id: int, partitions: Sequence[TopicPartition]
) -> Rule[set[TopicPartition]]:
    """Take a broker out of the ISRs of partitions. Returns those where it is not in the ISR any more.

    The last member of an ISR stays in it: it alone has all records. It does not lead, though.
    """
    outside: set[TopicPartition] = set()

    def without(partition: TopicPartition, state: PartitionState) -> PartitionState | None:
        if broker_id not in state.isr:
            context.states[partition] = state._replace(controller_epoch=context.epoch)
            outside.add(partition)
            return None
        isr = tuple(each for each in state.isr if each != broker_id) or state.isr
        return led_by(state, NO_LEADER if state.leader == broker_id else state.leader, isr)

    written = yield from rewrite(context, partitions, without, "its ISR stays as it is")
    return outside | written


def _begin_deletion(context: Context, broker_id: int, partitions: Sequence[TopicPartition], batch: Batch) -> None:
    for partition in partitions:
        context.put_status((partition, broker_id), ReplicaStatus.DELETION_STARTED)
        batch.stop(broker_id, partition, is_deletion=True)


def _note_deleted(context: Context, broker_id: int, partitions: Sequence[TopicPartition], batch: Batch) -> None:
    for partition in partitions:
        context.put_status((partition, broker_id), ReplicaStatus.DELETION_SUCCESSFUL)


def _note_ineligible(context: Context, broker_id: int, partitions: Sequence[TopicPartition], batch: Batch) -> None:
    for partition in partitions:
        context.put_status((partition, broker_id), ReplicaStatus.DELETION_INELIGIBLE)


def _forget(context: Context, broker_id: int, partitions: Sequence[TopicPartition], batch: Batch) -> None:
    for partition in partitions:
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
