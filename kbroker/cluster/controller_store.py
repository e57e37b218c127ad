"""Carries out the store's part of the controller's commands, each write fenced by the controller's epoch.

A write is one transaction with a check of the version of /controller_epoch, so that it is refused as soon as another
controller has been elected (KAFKA-6082). Many partition states are written in parcels, and singly where one of a parcel
has another version than was expected.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from kbroker.cluster.fenced_writes import FencedWrites
from kbroker.cluster.partition_nodes import PartitionNodes
from kbroker.cluster.producer_ids import BLOCK_SIZE, MAX_PRODUCER_ID
from kbroker.coordination import paths
from kbroker.coordination.store import (
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Outcome,
    SetData,
    Store,
    StoreError,
    Watcher,
)
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller import commands as C
from kbroker.rules.controller.values import Assignment, Broker, Topic
from kbroker.rules.topic_names import listed, topic_name_problem

log = logging.getLogger(__name__)

UNCLEAN = "unclean.leader.election.enable"
MOST_NAMES = 5
"""How many names one line of the log gives."""
NO_BROKER = -1

T = TypeVar("T")
Decode = Callable[[str, bytes], T]


class ControllerStore:
    """The store as a controller of one epoch uses it. `watcher` is called for each change of what was read watched."""

    def __init__(self, store: Store, writes: FencedWrites, watcher: Watcher, allows_unclean: Callable[[str], bool]):
        self._store = store
        self._writes = writes
        self._watcher = watcher
        self._allows_unclean = allows_unclean
        self._partitions = PartitionNodes(store, writes)
        self._bad_names: set[str] = set()
        self._calls: dict[type, Callable[[Any], Any]] = {
            C.ReadStates: self._partitions.read,
            C.ReadDatedStates: self._partitions.read_dated,
            C.CreateStates: self._partitions.create,
            C.WriteStates: self._partitions.write,
            C.ReadUnclean: self._read_unclean,
            C.ReadBrokers: self._read_brokers,
            C.ReadBrokerEpochs: self._read_broker_epochs,
            C.ReadTopicNames: self._read_topic_names,
            C.ReadTopics: self._read_topics,
            C.WriteTopics: self._write_topics,
            C.GiveIds: self._give_ids,
            C.CreateTopics: self._create_topics,
            C.RemoveTopics: self._remove_topics,
            C.ReadDeletions: lambda _: frozenset(self._children(paths.DELETE_TOPICS)),
            C.RequestDeletions: self._request_deletions,
            C.DropDeletions: lambda command: self._remove(map(paths.delete_topic_path, command.names)),
            C.ReadReassignments: self._read_reassignments,
            C.WriteReassignments: self._write_reassignments,
            C.ReadPreferredElection: self._read_preferred_election,
            C.DropPreferredElection: lambda _: self._remove([paths.PREFERRED_REPLICA_ELECTION]),
            C.ReadDirectoryEvents: self._read_directory_events,
            C.DropDirectoryEvents: lambda command: self._remove(
                f"{paths.LOG_DIR_EVENT_NOTIFICATIONS}/{name}" for name in command.names
            ),
            C.ReadIsrChanges: self._read_isr_changes,
            C.DropIsrChanges: lambda command: self._remove(
                f"{paths.ISR_CHANGE_NOTIFICATIONS}/{name}" for name in command.names
            ),
            C.WatchToolNodes: self._watch_tool_nodes,
            C.AllocateIds: self._allocate_ids,
            C.EnsureFeatures: self._ensure_features,
        }

    def carries_out(self, command: object) -> bool:
        return type(command) in self._calls

    def carry_out(self, command: object, *, again: bool = False) -> Any:
        """Return the result of a command. Raises Moved, SessionExpired, or StoreUnavailable.

        `again`: an earlier try has ended with StoreUnavailable, so what it wrote may be there already.
        """
        self._writes.is_unsure = again
        return self._calls[type(command)](command)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _children(self, path: str) -> list[str]:
        try:
            return self._store.children(path, self._watcher)
        except NoNode:
            return []

    def _decoded(self, path: str, data: bytes, decode: Decode[T]) -> T | None:
        """Return what the data of a node say; None, and a line in the log, if they are garbage."""
        try:
            return decode(path, data)
        except paths.StoreCorrupt as error:
            log.error("the controller passes over what it cannot read: %s", error)
            return None

    def _decoded_many(
        self, parent: str, names: Sequence[str], decode: Decode[T], *, watched: bool = False
    ) -> dict[str, tuple[T, int]]:
        """Return of each child that exists its value and its creation id."""
        of_child = [f"{parent}/{name}" for name in names]
        nodes = self._store.get_many(of_child, self._watcher if watched else None)
        found: dict[str, tuple[T, int]] = {}
        for name, path, node in zip(names, of_child, nodes, strict=True):
            value = None if node is None else self._decoded(path, node[0], decode)
            if node is not None and value is not None:
                found[name] = (value, node[1].creation_id)
        return found

    def _read_brokers(self, _: C.ReadBrokers) -> dict[int, Broker]:
        names = list(map(str, paths.broker_ids_of(self._children(paths.BROKER_IDS))))
        # A broker that registers makes its node and fills it in one transaction.
        found = self._decoded_many(paths.BROKER_IDS, names, paths.decode_broker, watched=True)
        return {
            int(name): Broker(int(name), epoch, registration.endpoints, registration.rack)
            for name, (registration, epoch) in found.items()
        }

    def _read_broker_epochs(self, command: C.ReadBrokerEpochs) -> dict[int, int]:
        nodes = self._store.get_many([paths.broker_path(each) for each in command.broker_ids])
        return {
            each: node[1].creation_id for each, node in zip(command.broker_ids, nodes, strict=True) if node is not None
        }

    def _read_topic_names(self, _: C.ReadTopicNames) -> frozenset[str]:
        """Return the topics. Those are passed over whose names no broker could make a directory of."""
        names = self._children(paths.TOPICS)
        bad = {name for name in names if topic_name_problem(name) is not None}
        if bad - self._bad_names:
            shown = listed(sorted(map(repr, bad - self._bad_names)), MOST_NAMES)
            log.error("the controller passes over topics whose names cannot be: %s", shown)
            self._bad_names |= bad
        return frozenset(names) - bad

    def _read_topics(self, command: C.ReadTopics) -> dict[str, Topic]:
        found = self._decoded_many(paths.TOPICS, sorted(command.names), paths.decode_topic, watched=True)
        return {name: _topic(assignment) for name, (assignment, _) in found.items()}

    def _read_unclean(self, command: C.ReadUnclean) -> frozenset[str]:
        names = sorted(command.topics)
        configs = self._decoded_many(paths.TOPIC_CONFIGS, names, paths.decode_config)
        allowed = set()
        for name in names:
            own = configs[name][0].get(UNCLEAN) if name in configs else None
            if own.strip().lower() == "true" if own is not None else self._allows_unclean(name):
                allowed.add(name)
        return frozenset(allowed)

    def _read_directory_events(self, _: C.ReadDirectoryEvents) -> dict[str, int]:
        names = self._children(paths.LOG_DIR_EVENT_NOTIFICATIONS)
        found = self._decoded_many(paths.LOG_DIR_EVENT_NOTIFICATIONS, names, paths.decode_log_dir_event)
        # Those that cannot be read too: they are dropped with the others.
        return dict.fromkeys(names, NO_BROKER) | {name: event.broker_id for name, (event, _) in found.items()}

    def _read_isr_changes(self, _: C.ReadIsrChanges) -> dict[str, tuple[TopicPartition, ...]]:
        names = self._children(paths.ISR_CHANGE_NOTIFICATIONS)
        found = self._decoded_many(paths.ISR_CHANGE_NOTIFICATIONS, names, paths.decode_partitions)
        nothing: dict[str, tuple[TopicPartition, ...]] = dict.fromkeys(names, ())
        return nothing | {name: tuple(partitions) for name, (partitions, _) in found.items()}

    def _tool_node(self, path: str) -> bytes | None:
        """Return the data of a node that a tool makes; None if there is none. It is watched either way."""
        while True:
            try:
                return self._store.get(path, self._watcher)[0]
            except NoNode:
                if self._store.exists(path, self._watcher) is None:
                    return None

    def _read_reassignments(self, _: C.ReadReassignments) -> dict[TopicPartition, tuple[int, ...]]:
        path = paths.REASSIGN_PARTITIONS
        data = self._tool_node(path)
        return {} if data is None else self._decoded(path, data, paths.decode_reassignment) or {}

    def _read_preferred_election(self, _: C.ReadPreferredElection) -> tuple[TopicPartition, ...]:
        path = paths.PREFERRED_REPLICA_ELECTION
        data = self._tool_node(path)
        return () if data is None else tuple(self._decoded(path, data, paths.decode_partitions) or ())

    def _watch_tool_nodes(self, _: C.WatchToolNodes) -> None:
        for path in (paths.REASSIGN_PARTITIONS, paths.PREFERRED_REPLICA_ELECTION):
            self._store.exists(path, self._watcher)

    # --- writing ------------------------------------------------------------------------------------------------------

    def _remove(self, doomed: Iterable[str]) -> list[Outcome]:
        """Delete nodes that have no children; those that are gone already are left out."""
        return self._writes.each([Delete(path)] for path in doomed)

    def _write_topics(self, command: C.WriteTopics) -> frozenset[str]:
        outcomes = self._writes.each(
            [SetData(paths.topic_path(name), paths.encode_topic(_assignment(topic)))]
            for name, topic in command.topics.items()
        )
        return frozenset(
            name for name, outcome in zip(command.topics, outcomes, strict=True) if not isinstance(outcome, StoreError)
        )

    def _give_ids(self, command: C.GiveIds) -> dict[str, Topic]:
        named = {name: topic._replace(topic_id=uuid.uuid4()) for name, topic in command.topics.items()}
        written = self._write_topics(C.WriteTopics(named))
        return {name: topic for name, topic in named.items() if name in written}

    def _create_topics(self, command: C.CreateTopics) -> dict[str, ErrorCode]:
        nodes: dict[str, tuple[str, bytes, bytes]] = {
            name: (paths.topic_path(name), paths.encode_topic(_assignment(topic)), paths.encode_config(configs))
            for name, (topic, configs) in command.topics.items()
        }
        outcomes = self._writes.each(
            [Create(paths.topic_config_path(name), configs), Create(path, data)]
            for name, (path, data, configs) in nodes.items()
        )
        codes = {}
        for name, outcome in zip(nodes, outcomes, strict=True):
            path, data, configs = nodes[name]
            config_path = paths.topic_config_path(name)
            if isinstance(outcome, NodeExists) and outcome.path == config_path:
                # Configs that a topic of this name has left behind.
                outcome = self._writes.one([SetData(config_path, configs), Create(path, data)])
            codes[name] = _creation_code(outcome)
            if codes[name] and self._writes.is_unsure:
                found = self._store.get_many([path])[0]
                if found is not None and found[0] == data:
                    codes[name] = ErrorCode.NONE  # it was made, and the answer was lost
        return codes

    def _request_deletions(self, command: C.RequestDeletions) -> None:
        self._writes.each([Create(paths.delete_topic_path(name))] for name in sorted(command.names))

    def _remove_topics(self, command: C.RemoveTopics) -> None:
        """Delete what is known to be there, many at once, and then what else is found below a topic's node."""
        self._partitions.remove(command.topics)
        doomed = list(map(paths.topic_path, command.topics))
        for path, outcome in zip(doomed, self._remove(doomed), strict=True):
            if isinstance(outcome, NotEmpty):
                self._remove([*self._below(path), path])
        self._remove(map(paths.topic_config_path, command.topics))
        # The last step: before it another controller would begin again.
        self._remove(map(paths.delete_topic_path, command.topics))

    def _below(self, path: str) -> list[str]:
        """Return all nodes below a node, children before their parents."""
        found: list[str] = []
        try:
            for name in self._store.children(path):
                found += [*self._below(f"{path}/{name}"), f"{path}/{name}"]
        except NoNode:
            pass
        return found

    def _write_reassignments(self, command: C.WriteReassignments) -> None:
        path = paths.REASSIGN_PARTITIONS
        if command.targets:
            self._writes.one([SetData(path, paths.encode_reassignment(command.targets))])
        else:
            self._remove([path])

    def _ensure_features(self, _: C.EnsureFeatures) -> None:
        path = paths.FEATURE
        found = self._store.get_many([path])[0]
        if found is None:
            self._writes.one([Create(path, paths.encode_feature())])
            return
        node = self._decoded(path, found[0], paths.decode_feature)
        if node is not None and not node.is_enabled and not node.features:
            self._writes.one([SetData(path, paths.encode_feature(), found[1].version)])

    def _allocate_ids(self, command: C.AllocateIds) -> tuple[int, int] | ErrorCode:
        path = paths.PRODUCER_ID_BLOCK
        while True:
            found = self._store.get_many([path])[0]
            taken = -1
            if found is not None and found[0]:
                block = self._decoded(path, found[0], paths.decode_producer_id_block)
                if block is None:
                    return ErrorCode.UNKNOWN_SERVER_ERROR
                taken = block.last
            if taken > MAX_PRODUCER_ID - BLOCK_SIZE:
                log.error("all producer ids have been given out")
                return ErrorCode.UNKNOWN_SERVER_ERROR
            data = paths.encode_producer_id_block(
                paths.ProducerIdBlock(command.broker_id, taken + 1, taken + BLOCK_SIZE)
            )
            write: Operation = Create(path, data) if found is None else SetData(path, data, found[1].version)
            if not isinstance(self._writes.one([write]), StoreError):
                return taken + 1, BLOCK_SIZE


def _topic(assignment: paths.TopicAssignment) -> Topic:
    partitions = {
        each: Assignment(replicas, assignment.adding.get(each, ()), assignment.removing.get(each, ()))
        for each, replicas in assignment.replicas.items()
    }
    return Topic(assignment.topic_id, partitions)


def _assignment(topic: Topic) -> paths.TopicAssignment:
    return paths.TopicAssignment(
        topic.topic_id,
        {each: assignment.replicas for each, assignment in topic.partitions.items()},
        {each: assignment.adding for each, assignment in topic.partitions.items()},
        {each: assignment.removing for each, assignment in topic.partitions.items()},
    )


def _creation_code(outcome: object) -> ErrorCode:
    if isinstance(outcome, NodeExists):
        return ErrorCode.TOPIC_ALREADY_EXISTS
    return ErrorCode.UNKNOWN_SERVER_ERROR if isinstance(outcome, StoreError) else ErrorCode.NONE
