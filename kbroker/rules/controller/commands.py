"""What a rule wants done, and what it is sent back.

A rule is a generator: `result = yield command`. Whoever drives it carries out the command, perhaps much later, and
sends the result. Every write is refused if another controller has been elected; the rule is dropped then for good.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.rules.controller.values import Assignment, Broker, PartitionState, Topic

T = TypeVar("T")
Rule = Generator[Any, Any, T]


class ReadStates(NamedTuple):
    """Result: {partition: PartitionState}, without those that have none."""

    partitions: tuple[TopicPartition, ...]


class ReadDatedStates(NamedTuple):
    """Result: {partition: DatedState}, without those that have no state."""

    partitions: tuple[TopicPartition, ...]


class DatedState(NamedTuple):
    state: PartitionState
    written: int
    """The id of the change that has written it. The epoch of a broker that has registered later is higher."""


class CreateStates(NamedTuple):
    """Create the states of new partitions. Result: {partition: PartitionState} as they are in the store now.

    Where there was a state already, that is the result. A partition whose topic is gone is missing.
    """

    states: Mapping[TopicPartition, PartitionState]


class WriteStates(NamedTuple):
    """Write states, each if the node's version is its `partition_epoch`.

    Result: {partition: PartitionState} with the new partition epochs. Missing: the version was another one, or the node
    is gone.
    """

    states: Mapping[TopicPartition, PartitionState]


class ReadUnclean(NamedTuple):
    """Result: those of the topics, as a set, whose configs allow unclean elections."""

    topics: frozenset[str]


class ReadBrokers(NamedTuple):
    """Result: {broker id: Broker} of those that are registered and not known to be dead all the same, watched."""


class ReadBrokerEpochs(NamedTuple):
    """Result: {broker id: epoch} of those of these brokers that are registered now."""

    broker_ids: tuple[int, ...]


class ReadTopicNames(NamedTuple):
    """Result: the names of all topics, as a set, watched."""


class ReadTopics(NamedTuple):
    """Result: {name: Topic}, without those that do not exist; each node is watched."""

    names: frozenset[str]


class WriteTopics(NamedTuple):
    """Write the nodes of topics. Result: the names of those that exist, as a set."""

    topics: Mapping[str, Topic]


class GiveIds(NamedTuple):
    """Write new ids into the nodes of topics without one. Result: {name: Topic} of those that still exist."""

    topics: Mapping[str, Topic]


class CreateTopics(NamedTuple):
    """Create the nodes of topics and of their configs. Result: {name: ErrorCode}."""

    topics: Mapping[str, tuple[Topic, Mapping[str, str]]]


class RemoveTopics(NamedTuple):
    """Remove the nodes of topics, of their partitions, configs and deletions. Result: None."""

    topics: Mapping[str, Collection[int]]
    """By name, the ids of the partitions that are known."""


class ReadDeletions(NamedTuple):
    """Result: the names of topics that are to be deleted, as a set, watched."""


class RequestDeletions(NamedTuple):
    """Create the nodes that ask for the deletion of topics. Result: None."""

    names: frozenset[str]


class DropDeletions(NamedTuple):
    """Remove the nodes that ask for the deletion of topics. Result: None."""

    names: frozenset[str]


class ReadReassignments(NamedTuple):
    """Result: {partition: target replicas} that a tool has asked for through the store, watched; {} if none."""


class WriteReassignments(NamedTuple):
    """Write what is left of them; nothing left: remove the node. Result: None."""

    targets: Mapping[TopicPartition, tuple[int, ...]]


class ReadPreferredElection(NamedTuple):
    """Result: the partitions for which a tool has asked a preferred election through the store, watched, as a tuple."""


class DropPreferredElection(NamedTuple):
    """Remove that node. Result: None."""


class ReadDirectoryEvents(NamedTuple):
    """Result: {node name: id of the broker whose log directory has failed}, watched."""


class DropDirectoryEvents(NamedTuple):
    """Remove these nodes. Result: None."""

    names: frozenset[str]


class ReadIsrChanges(NamedTuple):
    """Result: {node name: partitions whose states their leaders have changed themselves}, watched."""


class DropIsrChanges(NamedTuple):
    """Remove these nodes. Result: None."""

    names: frozenset[str]


class WatchToolNodes(NamedTuple):
    """Watch for the nodes of reassignments and preferred elections. Result: None."""


class AllocateIds(NamedTuple):
    """Take the next block of producer ids for a broker. Result: (first id, count), or an ErrorCode."""

    broker_id: int


class EnsureFeatures(NamedTuple):
    """Make sure that the node of finalized features is there. Result: None."""


class AddChannel(NamedTuple):
    """Begin to tell a broker what is sent to it. Result: None."""

    broker: Broker


class RemoveChannel(NamedTuple):
    """Drop what a broker was not told yet. Result: whether it may have been told roles since AddChannel."""

    broker_id: int


class Send(NamedTuple):
    """Queue requests for brokers, each behind those that were sent to it before. Does not wait. Result: None."""

    requests: tuple[tuple[int, ControlRequest], ...]


class Answer(NamedTuple):
    """Give the answer to the request that the rule serves, before the rule ends. Result: None."""

    value: Any


# --- what brokers are told --------------------------------------------------------------------------------------------


class LeaderAndIsrState(NamedTuple):
    state: PartitionState
    assignment: Assignment
    is_new: bool
    """Whether the broker has never had this replica."""


class LeaderAndIsr(NamedTuple):
    """Which partitions a broker leads and follows."""

    controller_epoch: int
    broker_epoch: int
    partitions: dict[TopicPartition, LeaderAndIsrState]
    topic_ids: dict[str, UUID]
    leaders: tuple[Broker, ...]


class MetadataState(NamedTuple):
    state: PartitionState
    replicas: tuple[int, ...]
    offline: tuple[int, ...]


class UpdateMetadata(NamedTuple):
    """All brokers, and what has changed of partitions."""

    controller_epoch: int
    broker_epoch: int
    partitions: dict[TopicPartition, MetadataState]
    topic_ids: dict[str, UUID]
    brokers: tuple[Broker, ...]


class StopState(NamedTuple):
    leader_epoch: int
    is_deletion: bool


class StopReplica(NamedTuple):
    """Which replicas a broker stops, and which of those it deletes."""

    controller_epoch: int
    broker_epoch: int
    partitions: dict[TopicPartition, StopState]


ControlRequest = LeaderAndIsr | UpdateMetadata | StopReplica


class LeaderAndIsrAnswer(NamedTuple):
    """A broker's answer; `errors` by partition, if `error` is NONE."""

    broker_id: int
    broker_epoch: int
    error: ErrorCode
    errors: Mapping[TopicPartition, ErrorCode]
    leader_epochs: Mapping[TopicPartition, int] = {}
    """The leader epochs that the broker was told."""


class StopReplicaAnswer(NamedTuple):
    """A broker's answer for the replicas that it was to delete."""

    broker_id: int
    broker_epoch: int
    error: ErrorCode
    errors: Mapping[TopicPartition, ErrorCode]
