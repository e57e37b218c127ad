"""Controlled shutdown: a broker that is about to stop gives away what it leads, and leaves the ISRs."""

from __future__ import annotations

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller.batch import Batch
from kbroker.rules.controller.commands import Rule
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.elections import Election
from kbroker.rules.controller.partitions import bring_online
from kbroker.rules.controller.replicas import change_replicas
from kbroker.rules.controller.values import ReplicaStatus

NO_EPOCH_GIVEN = -1

Shutdown = tuple[ErrorCode, list[TopicPartition]]


def controlled_shutdown(context: Context, broker_id: int, broker_epoch: int) -> Rule[Shutdown]:
    """Returns an error code, and the partitions that the broker still leads, because nobody else can."""
    broker = context.brokers.get(broker_id)
    if broker is None:
        return ErrorCode.BROKER_NOT_AVAILABLE, []
    if broker_epoch != NO_EPOCH_GIVEN and broker_epoch < broker.epoch:
        return ErrorCode.STALE_BROKER_EPOCH, []
    context.shutting_down.add(broker_id)
    led: list[TopicPartition] = []
    followed: list[TopicPartition] = []
    for partition, _ in context.replicas_on({broker_id}):
        if (
            len(context.assignment(partition).replicas) > 1
            and partition in context.states
            and partition.topic not in context.deleting
        ):
            (led if context.states[partition].leader == broker_id else followed).append(partition)
    yield from bring_online(context, led, Election.CONTROLLED_SHUTDOWN)
    batch = Batch(context)
    for partition in followed:
        batch.stop(broker_id, partition)
    yield from batch.send()
    yield from change_replicas(context, [(each, broker_id) for each in followed], ReplicaStatus.OFFLINE)
    return ErrorCode.NONE, _still_led(context, broker_id)


def _still_led(context: Context, broker_id: int) -> list[TopicPartition]:
    return [
        partition
        for partition, state in context.states.items()
        if state.leader == broker_id
        and partition.topic not in context.deleting
        and len(context.assignment(partition).replicas) > 1
    ]
