"""All that the controller knows: brokers, topics, the states of partitions and replicas, and what is under way.

It is filled at take-over. Rules change it, always after what they write into the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from kbroker.model import NO_UUID, TopicPartition
from kbroker.rules.controller.values import (
    EPOCH_DURING_DELETE,
    NO_EPOCH,
    NO_LEADER,
    Assignment,
    Broker,
    PartitionState,
    PartitionStatus,
    ReplicaStatus,
    Topic,
)
from kbroker.rules.partition_notes import PartitionNotes

NOTHING = Assignment(())

Replica = tuple[TopicPartition, int]


class LeftOut(NamedTuple):
    """An ISR that was cut down because members are away. Until somebody leads, they have all that is committed."""

    leader_epoch: int
    """Of the state now; with another one this says nothing."""
    isr: tuple[int, ...]
    """The last ISR with which a leader may have served."""
    elected: int = NO_LEADER
    """Who was elected since, and has not answered yet."""
    since: int = NO_EPOCH
    last: int = NO_EPOCH
    """The first and the last leader epoch in which it was told so."""


class Context:
    """The controller's memory in one epoch."""

    def __init__(self, node_id: int, epoch: int, listener: str):
        self.node_id = node_id
        self.epoch = epoch
        self.listener = listener
        """The name of the listener at which brokers reach each other."""
        self.brokers: dict[int, Broker] = {}
        """Brokers that are registered; those that shut down are among them."""
        self.shutting_down: set[int] = set()
        self.failed: dict[int, set[TopicPartition]] = {}
        """By broker, replicas whose log directory has failed."""
        self.topic_ids: dict[str, UUID] = {}
        self.topic_names: dict[UUID, str] = {}
        self.assignments: dict[str, dict[int, Assignment]] = {}
        """By topic and partition id; it has each topic."""
        self.states: dict[TopicPartition, PartitionState] = {}
        self.partition_status: dict[TopicPartition, PartitionStatus] = {}
        self.replica_status: dict[TopicPartition, dict[int, ReplicaStatus]] = {}
        self.reassigning: dict[TopicPartition, None] = {}
        """Partitions whose replicas are being changed, in the order in which that began."""
        self.waiting: dict[TopicPartition, Assignment] = {}
        """Those of them whose turn has not come, with the assignments that they are to get: the nodes have these."""
        self.deleting: dict[str, None] = {}
        """Topics that are to be deleted."""
        self.deletion_started: set[str] = set()
        self.deletion_halted: set[str] = set()
        """Topics of `deleting` that cannot be deleted now."""
        self.missed: dict[int, dict[TopicPartition, None]] = {}
        """By broker that is away, partitions that were deleted meanwhile: a process that lives on has to be told."""
        self.left_out: dict[TopicPartition, LeftOut] = {}
        """Where members of the ISR were left out, and no leader is known to have served since."""
        self.unclean_elections = 0
        """How many leaders were elected from outside the ISR; whoever drives the rules takes it."""
        self.notes = PartitionNotes()
        """What the log is to say; whoever drives the rules takes it."""

    def note(self, text: str, partition: TopicPartition | None = None) -> None:
        """Have the log say something, of a partition or in general."""
        self.notes.add(text, partition)

    # --- brokers ------------------------------------------------------------------------------------------------------

    def is_live(self, broker_id: int) -> bool:
        """Return whether a broker is registered and does not shut down."""
        return broker_id in self.brokers and broker_id not in self.shutting_down

    @property
    def live(self) -> set[int]:
        return self.brokers.keys() - self.shutting_down

    def is_online(self, broker_id: int, partition: TopicPartition) -> bool:
        """Return whether a replica can be read and written: its broker is live, its log directory has not failed."""
        return (
            broker_id in self.brokers
            and broker_id not in self.shutting_down
            and partition not in self.failed.get(broker_id, ())
        )

    def is_online_or_stopping(self, broker_id: int, partition: TopicPartition) -> bool:
        """Do as `is_online`, but take a broker that shuts down for a live one."""
        return broker_id in self.brokers and partition not in self.failed.get(broker_id, ())

    def online_of(self, brokers: Iterable[int], partition: TopicPartition) -> tuple[int, ...]:
        return tuple(each for each in brokers if self.is_online(each, partition))

    def note_state(self, partition: TopicPartition, now: PartitionState) -> None:
        """Take over a state that was written with a new leader epoch."""
        before, known = self.states.get(partition), self.left_out.pop(partition, None)
        self.states[partition] = now
        if before is None:
            return
        if known is None or known.leader_epoch != before.leader_epoch:
            if now.leader == before.leader >= 0:
                return  # it serves on
            if not set(now.isr) < set(before.isr):
                return
            known = LeftOut(before.leader_epoch, before.isr)
        elif not set(now.isr) <= set(known.isr):
            return
        if now.leader not in self.brokers:  # so nobody is told to lead
            self.left_out[partition] = known._replace(leader_epoch=now.leader_epoch)
        elif known.elected == NO_LEADER:
            epoch = now.leader_epoch
            self.left_out[partition] = LeftOut(epoch, known.isr, now.leader, epoch, epoch)
        elif known.elected == now.leader:
            self.left_out[partition] = known._replace(leader_epoch=now.leader_epoch, last=now.leader_epoch)

    # --- topics and partitions ----------------------------------------------------------------------------------------

    def put_topic(self, name: str, topic: Topic) -> None:
        """Take over a topic's id and assignments."""
        if topic.has_id:
            self.topic_ids[name] = topic.topic_id
            self.topic_names[topic.topic_id] = name
        self.assignments[name] = dict(topic.partitions)

    def remove_topic(self, name: str) -> None:
        """Forget a topic and its partitions."""
        self.deleting.pop(name, None)
        self.deletion_started.discard(name)
        self.deletion_halted.discard(name)
        topic_id = self.topic_ids.pop(name, None)
        if topic_id is not None:
            self.topic_names.pop(topic_id, None)
        for partition_id in self.assignments.pop(name, {}):
            partition = TopicPartition(name, partition_id)
            self.states.pop(partition, None)
            self.partition_status.pop(partition, None)
            self.replica_status.pop(partition, None)
            self.end_reassignment(partition)
            self.left_out.pop(partition, None)
            for failed in self.failed.values():
                failed.discard(partition)
            for missed in self.missed.values():
                missed[partition] = None

    def topic(self, name: str) -> Topic:
        """Return a topic as its node is to be."""
        partitions = {each.partition_id: self.stored_assignment(each) for each in self.partitions_of(name)}
        return Topic(self.topic_ids.get(name, NO_UUID), partitions)

    def assignment(self, partition: TopicPartition) -> Assignment:
        """Return the replicas of a partition; none for one that does not exist."""
        return self.assignments.get(partition.topic, {}).get(partition.partition_id, NOTHING)

    def stored_assignment(self, partition: TopicPartition) -> Assignment:
        """Do as `assignment`, but return what the topic's node has, also while the partition waits for its turn."""
        return self.waiting.get(partition) or self.assignment(partition)

    def end_reassignment(self, partition: TopicPartition) -> None:
        """Note that the replicas of a partition are not changed any more."""
        self.reassigning.pop(partition, None)
        self.waiting.pop(partition, None)

    def put_assignment(self, partition: TopicPartition, assignment: Assignment) -> None:
        self.assignments[partition.topic][partition.partition_id] = assignment

    def exists(self, partition: TopicPartition) -> bool:
        return partition.partition_id in self.assignments.get(partition.topic, ())

    def partitions(self) -> Iterator[TopicPartition]:
        for topic, assigned in self.assignments.items():
            for partition_id in assigned:
                yield TopicPartition(topic, partition_id)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, partition_id) for partition_id in self.assignments.get(topic, ())]

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[Replica]:
        return [(each, broker_id) for each in partitions for broker_id in self.assignment(each).replicas]

    def replicas_on(self, brokers: Collection[int]) -> list[Replica]:
        """Return the replicas of some brokers."""
        return [
            (TopicPartition(topic, partition_id), broker_id)
            for topic, assigned in self.assignments.items()
            for partition_id, assignment in assigned.items()
            for broker_id in assignment.replicas
            if broker_id in brokers
        ]

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the epoch for StopReplica: one above all others while the topic is being deleted."""
        if partition.topic in self.deleting:
            return EPOCH_DURING_DELETE
        state = self.states.get(partition)
        return NO_EPOCH if state is None else state.leader_epoch

    def status_of(self, replica: Replica) -> ReplicaStatus:
        return self.replica_status.get(replica[0], {}).get(replica[1], ReplicaStatus.NON_EXISTENT)

    def put_status(self, replica: Replica, status: ReplicaStatus) -> None:
        self.replica_status.setdefault(replica[0], {})[replica[1]] = status

    def partitions_in(self, *statuses: PartitionStatus, topic: str | None = None) -> list[TopicPartition]:
        """Return the partitions, or those of one topic, that have one of these statuses."""
        among = self.partition_status if topic is None else self.partitions_of(topic)
        return [each for each in among if self.partition_status.get(each) in statuses]

    def replicas_in(self, topic: str, status: ReplicaStatus) -> list[Replica]:
        return [each for each in self.replicas_of(self.partitions_of(topic)) if self.status_of(each) is status]

    def led_by_nobody(self) -> list[TopicPartition]:
        """Return partitions whose leader is not online; not those of topics that are being deleted."""
        return [
            partition
            for partition, state in self.states.items()
            if not self.is_online(state.leader, partition) and partition.topic not in self.deleting
        ]
