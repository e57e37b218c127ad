"""Collects what brokers are to be told, and makes one request of each kind for each broker.

Their order is LeaderAndIsr, UpdateMetadata, StopReplica. Whoever is told a new leader or ISR is not alone in this: all
brokers get the partition's metadata with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from kbroker.model import TopicPartition
from kbroker.rules.controller.commands import (
    ControlRequest,
    LeaderAndIsr,
    LeaderAndIsrState,
    MetadataState,
    Rule,
    Send,
    StopReplica,
    StopState,
    UpdateMetadata,
)
from kbroker.rules.controller.context import Context
from kbroker.rules.controller.values import LEADER_DURING_DELETE, RECOVERED, Broker, PartitionState


class Batch:
    """Requests that are being collected."""

    def __init__(self, context: Context):
        self._context = context
        self._leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrState]] = {}
        self._stop_replica: dict[int, dict[TopicPartition, StopState]] = {}
        self._informed: set[int] = set()
        self._partitions: dict[TopicPartition, None] = {}
        self._forgotten: dict[TopicPartition, MetadataState] = {}

    def tell_roles(self, brokers: Iterable[int], partition: TopicPartition, *, is_new: bool = False) -> None:
        """Tell replicas a partition's leader and ISR, and all brokers its metadata."""
        context = self._context
        state, assignment = context.states[partition], context.assignment(partition)
        told = LeaderAndIsrState(state, assignment, False)
        for broker_id in brokers:
            of_broker = self._leader_and_isr.setdefault(broker_id, {})
            before = of_broker.get(partition)
            is_first = is_new or (before is not None and before.is_new)
            of_broker[partition] = told._replace(is_new=True) if is_first else told
        self._informed.update(context.brokers)
        self._partitions[partition] = None

    def tell_metadata(self, brokers: Iterable[int], partitions: Iterable[TopicPartition] = ()) -> None:
        """Tell brokers which brokers there are, and the metadata of partitions."""
        self._informed.update(brokers)
        self._partitions.update(dict.fromkeys(partitions))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Tell whoever gets metadata that partitions do not exist any more."""
        for partition in partitions:
            state = PartitionState(LEADER_DURING_DELETE, 0, (), self._context.epoch)
            self._forgotten[partition] = MetadataState(state, (), ())

    def stop(self, broker_id: int, partition: TopicPartition, *, is_deletion: bool = False) -> None:
        """Tell a broker to stop its replica, or to delete it."""
        of_broker = self._stop_replica.setdefault(broker_id, {})
        before = of_broker.get(partition)
        is_deletion = is_deletion or (before is not None and before.is_deletion)
        of_broker[partition] = StopState(self._context.leader_epoch(partition), is_deletion)

    def send(self) -> Rule[None]:
        """Send what was collected. Brokers that are not registered get nothing."""
        requests = (*self._roles(), *self._metadata(), *self._stops())
        if requests:
            yield Send(requests)

    def _roles(self) -> Iterable[tuple[int, ControlRequest]]:
        context = self._context
        for broker_id, partitions in self._leader_and_isr.items():
            broker = context.brokers.get(broker_id)
            if broker is None:
                continue
            leaders = {each.state.leader for each in partitions.values()}
            alive = tuple(each for each in context.brokers.values() if each.broker_id in leaders)
            yield broker_id, LeaderAndIsr(context.epoch, broker.epoch, partitions, self._ids(partitions), alive)

    def _metadata(self) -> Iterable[tuple[int, ControlRequest]]:
        context = self._context
        states = {each: _metadata_of(context, each, context.states[each]) for each in self._known()}
        states.update((each, state) for each, state in self._forgotten.items() if not context.exists(each))
        ids = self._ids(states)
        brokers: tuple[Broker, ...] = tuple(context.brokers.values())
        for broker_id, broker in context.brokers.items():
            if broker_id in self._informed:
                yield broker_id, UpdateMetadata(context.epoch, broker.epoch, states, ids, brokers)

    def _stops(self) -> Iterable[tuple[int, ControlRequest]]:
        for broker_id, partitions in self._stop_replica.items():
            broker = self._context.brokers.get(broker_id)
            if broker is not None:
                yield broker_id, StopReplica(self._context.epoch, broker.epoch, partitions)

    def _known(self) -> Iterable[TopicPartition]:
        """Return the partitions that have had a leader: of others there is nothing to tell."""
        return (each for each in self._partitions if each in self._context.states)

    def _ids(self, partitions: Iterable[TopicPartition]) -> dict[str, UUID]:
        ids = self._context.topic_ids
        return {topic: ids[topic] for topic in {each.topic for each in partitions} if topic in ids}


def _metadata_of(context: Context, partition: TopicPartition, state: PartitionState) -> MetadataState:
    replicas = context.assignment(partition).replicas
    offline = tuple(each for each in replicas if not context.is_online(each, partition))
    if partition.topic in context.deleting:
        state = PartitionState(LEADER_DURING_DELETE, 0, state.isr, state.controller_epoch, RECOVERED, 0)
    return MetadataState(state, replicas, offline)
