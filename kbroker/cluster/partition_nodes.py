"""The nodes of partitions and their states in the store, many at once."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kbroker.cluster.fenced_writes import FencedWrites
from kbroker.coordination import paths
from kbroker.coordination.parcels import MAX_OPERATIONS, MAX_SIZE, size_of
from kbroker.coordination.store import (
    Create,
    Delete,
    NodeExists,
    Operation,
    Outcome,
    SetData,
    Stat,
    Store,
    StoreError,
)
from kbroker.model import TopicPartition
from kbroker.rules.controller.commands import CreateStates, DatedState, ReadDatedStates, ReadStates, WriteStates
from kbroker.rules.controller.values import PartitionState

log = logging.getLogger(__name__)

States = dict[TopicPartition, PartitionState]
Item = tuple[TopicPartition, Sequence[Operation]]


class PartitionNodes:
    """What a controller reads and writes below /brokers/topics/T/partitions."""

    def __init__(self, store: Store, writes: FencedWrites):
        self._store = store
        self._writes = writes

    def read(self, command: ReadStates) -> States:
        """Return the states of partitions. One that cannot be read is left out, with a line in the log."""
        dated = self.read_dated(ReadDatedStates(command.partitions))
        return {partition: each.state for partition, each in dated.items()}

    def read_dated(self, command: ReadDatedStates) -> dict[TopicPartition, DatedState]:
        """Do as `read`, and say when each state was written."""
        places = [paths.partition_state_path(*each) for each in command.partitions]
        # Many states have the same data, so one parse serves them all.
        parsed: dict[bytes, paths.PartitionRegistration | None] = {}
        found: dict[TopicPartition, DatedState] = {}
        for partition, path, node in zip(command.partitions, places, self._store.get_many(places), strict=True):
            if node is None:
                continue
            data, stat = node
            if data not in parsed:
                parsed[data] = _parsed(path, data)
            state = parsed[data]
            if state is not None:
                found[partition] = DatedState(PartitionState(*state, stat.version), stat.modification_id)
        return found

    def write(self, command: WriteStates) -> States:
        """Write states at their versions. Returns those that were written, with their new versions."""
        encoded = {partition: encode_state(state) for partition, state in command.states.items()}
        items = [
            (each, [SetData(paths.partition_state_path(*each), encoded[each], state.partition_epoch)])
            for each, state in command.states.items()
        ]
        written: States = {}
        refused: list[Item] = []
        for parcel, outcome in self._in_parcels(items):
            if isinstance(outcome, StoreError):
                refused += parcel
            else:
                written.update(_versioned(command.states, parcel, outcome))
        # One that was changed by somebody else has held up the others of its parcel.
        for item, outcome in zip(refused, self._writes.each(item[1] for item in refused), strict=True):
            if not isinstance(outcome, StoreError):
                written.update(_versioned(command.states, [item], outcome))
        if self._writes.is_unsure:
            self._add_made(command.states, encoded, written)
        return written

    def _add_made(
        self, states: Mapping[TopicPartition, PartitionState], encoded: Mapping[TopicPartition, bytes], written: States
    ) -> None:
        """Add the states that an earlier try has written, whose answer was lost."""
        missing = [each for each in states if each not in written]
        nodes = self._store.get_many([paths.partition_state_path(*each) for each in missing])
        for partition, node in zip(missing, nodes, strict=True):
            expected = states[partition].partition_epoch + 1
            if node is not None and node[0] == encoded[partition] and node[1].version == expected:
                written[partition] = states[partition]._replace(partition_epoch=expected)

    def create(self, command: CreateStates) -> States:
        """Create the nodes of partitions and their states. Returns the states as they are then."""
        encoded = {partition: encode_state(state) for partition, state in command.states.items()}
        self._writes.each([Create(paths.partitions_path(topic))] for topic in {each.topic for each in command.states})
        items = [(each, _creations(each, encoded[each])) for each in command.states]
        made: States = {}
        refused: list[TopicPartition] = []
        for parcel, outcome in self._in_parcels(items):
            if isinstance(outcome, StoreError):
                refused += [partition for partition, _ in parcel]
            else:
                made.update((each, command.states[each]._replace(partition_epoch=0)) for each, _ in parcel)
        for partition in refused:
            if self._create_alone(partition, encoded[partition]):
                made[partition] = command.states[partition]._replace(partition_epoch=0)
        there = tuple(each for each in refused if each not in made)
        made.update(self.read(ReadStates(there)))
        return {each: made[each] for each in command.states if each in made}

    def _create_alone(self, partition: TopicPartition, data: bytes) -> bool:
        """Create the nodes of one partition, as far as they are missing. Returns whether its state was created."""
        both = _creations(partition, data)
        outcome = self._writes.one(both)
        if isinstance(outcome, NodeExists) and outcome.path == both[0].path:
            outcome = self._writes.one(both[1:])
        return not isinstance(outcome, StoreError)

    def remove(self, topics: Mapping[str, Collection[int]]) -> None:
        """Delete the nodes of partitions, by topic and partition id, and those above them that have no others."""
        partitions = [TopicPartition(topic, each) for topic, of_topic in topics.items() for each in of_topic]
        items: list[Item] = [
            (each, [Delete(paths.partition_state_path(*each)), Delete(paths.partition_path(*each))])
            for each in partitions
        ]
        refused: list[Operation] = []
        for parcel, outcome in self._in_parcels(items):
            if isinstance(outcome, StoreError):
                refused += [each for _, operations in parcel for each in operations]
        # One that is gone already has held up the others of its parcel.
        self._writes.each([each] for each in refused)
        self._writes.each([Delete(paths.partitions_path(topic))] for topic in topics)

    def _in_parcels(self, items: Iterable[Item]) -> Iterator[tuple[list[Item], Outcome]]:
        parcels = list(_parcels(items))
        outcomes = self._writes.each([one for _, operations in parcel for one in operations] for parcel in parcels)
        return zip(parcels, outcomes, strict=True)


def _parcels(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Split what is to be written into one transaction each. What belongs to one partition stays together."""
    parcel: list[Item] = []
    count = size = 0
    for item in items:
        cost = sum(map(size_of, item[1]))
        # One place is for the check of the epoch.
        if parcel and (count + len(item[1]) >= MAX_OPERATIONS or size + cost > MAX_SIZE):
            yield parcel
            parcel, count, size = [], 0, 0
        parcel.append(item)
        count += len(item[1])
        size += cost
    if parcel:
        yield parcel


def _creations(partition: TopicPartition, data: bytes) -> list[Create]:
    return [Create(paths.partition_path(*partition)), Create(paths.partition_state_path(*partition), data)]


def _versioned(
    states: Mapping[TopicPartition, PartitionState], parcel: Sequence[Item], results: Sequence[object]
) -> Iterator[tuple[TopicPartition, PartitionState]]:
    for (partition, _), stat in zip(parcel, results, strict=True):
        assert isinstance(stat, Stat), stat
        yield partition, states[partition]._replace(partition_epoch=stat.version)


def encode_state(state: PartitionState) -> bytes:
    """Return the data of a partition's state node."""
    return paths.encode_partition_state(
        paths.PartitionRegistration(state.leader, state.leader_epoch, state.isr, state.controller_epoch, state.recovery)
    )


def _parsed(path: str, data: bytes) -> paths.PartitionRegistration | None:
    try:
        return paths.decode_partition_state(path, data)
    except paths.StoreCorrupt as error:
        log.error("the controller passes over what it cannot read: %s", error)
        return None
