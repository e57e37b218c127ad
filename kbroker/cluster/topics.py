"""The topics of the cluster and all changes to them: create, grow, configure, delete.

A change is committed to the coordination store, then carried out by the `PartitionHost`, then shown in the image; only
then does the call return. A broker that dies in between finishes the change at its next start: it makes the logs of
topics in the store, and deletes topics that are marked for deletion. So a log without a topic is never our leftover.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from kbroker.clock import Clock, SystemClock
from kbroker.cluster import members
from kbroker.cluster.image import Broker, MetadataImage, Partition, Topic
from kbroker.cluster.loading import load_image
from kbroker.cluster.new_topics import (
    MAX_PARTITIONS_PER_REQUEST,
    TOO_MANY_PARTITIONS,
    MorePartitions,
    NewTopic,
    Replicas,
    TopicDefaults,
    are_too_many,
    check_configs,
    check_name,
    plan_more_partitions,
    plan_replicas,
    sized_to_cluster,
)
from kbroker.cluster.producer_ids import ids_before
from kbroker.coordination import paths
from kbroker.coordination.store import Check, Create, Delete, Operation, SetData, Store, StoreUnavailable
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import Endpoint, TopicPartition

if TYPE_CHECKING:
    from kbroker.cluster.cluster import Answered, TopicResult

log = logging.getLogger(__name__)


class PartitionHost(Protocol):
    """Keeps the logs of this broker's partitions. Called by one thread at a time."""

    def create_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Create the logs of `partitions`, durable on return; existing ones stay. Raises StorageFailed if it cannot."""
        ...

    def delete_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Delete the logs of `partitions`; one that does not exist is no error. Raises StorageFailed if it cannot."""
        ...

    def update_topic(self, topic: Topic) -> None:
        """Apply the topic's own configs, which have changed."""
        ...

    def update_broker_configs(self, configs: Mapping[str, str]) -> None:
        """Apply this broker's dynamic configs, of which `configs` are all; topics' effective configs may change too."""
        ...

    def update_group_configs(self, group_id: str) -> None:
        """Apply the group's configs, which have changed."""
        ...


class FoundPartition(NamedTuple):
    """A log that was on disk before the store had any topic.

    `topic_id` is None if a Kafka before 2.8 wrote the log. `leader_epoch` is the latest one in the log.
    """

    topic_partition: TopicPartition
    topic_id: UUID | None
    leader_epoch: int


class Topics:
    """The only writer of topics and configs in this process, and the holder of the image.

    Any thread may read `image` at any time. Changes are made one at a time (`_change_lock`). They block: they wait for
    the store and for the host.
    """

    def __init__(
        self,
        store: Store,
        node_id: int,
        *,
        defaults: TopicDefaults,
        cluster_id: str | None = None,
        internal_topics: Mapping[str, NewTopic] | None = None,
        found_partitions: Callable[[], Iterable[FoundPartition]] = tuple,
        clock: Clock | None = None,
        randomness: random.Random | None = None,
        draw_uuid: Callable[[], UUID] = uuid.uuid4,
    ):
        """Read the cluster's metadata from the store.

        `cluster_id` becomes the id of a cluster that has none yet. `internal_topics` says how the broker's internal
        topics are created, by name; their replication factor is lowered to the number of brokers. `found_partitions` is
        called if the store is new: the topics of the logs that it returns are taken over.
        """
        self._store = store
        self._node_id = node_id
        self._defaults = defaults
        self._internal_topics = dict(internal_topics or {})
        self._clock = clock or SystemClock()
        self._random = randomness or random.Random()
        self._draw_uuid = draw_uuid
        self._change_lock = threading.Lock()
        self._host: PartitionHost | None = None
        self._listener: Callable[[], None] | None = None
        self._controller_epoch = 0
        self.change_count = 0
        """How often the image has changed since the start."""
        self._fence: list[Operation] = []
        self._failed: frozenset[tuple[int, TopicPartition]] = frozenset()
        members.ensure_layout(store)
        known_id = members.ensure_cluster_id(store, cluster_id, lambda: self._heritage(found_partitions()))
        self._image, self._doomed = load_image(store, known_id)
        self._pending: list[tuple[str, Callable[[], None]]] = []
        """(topic, call) to undo refused changes that could not be undone yet. Not in the store: after a restart the
        changes stay."""

    def _heritage(self, found: Iterable[FoundPartition]) -> Iterator[Operation]:
        """The operations that create, in a new store, the topics of logs that another broker has left on disk.

        Such a broker is Apache Kafka. The configs of these topics are not known, except those of internal topics, which
        are always the same.
        """
        by_topic: dict[str, dict[int, FoundPartition]] = {}
        for each in found:
            by_topic.setdefault(each.topic_partition.topic, {})[each.topic_partition.partition_id] = each
        if by_topic:
            # These logs have producer ids that another broker gave out: ours begin above all of them.
            given = ids_before(self._clock.wall_ms(), self._node_id)
            yield SetData(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(given))
        for name, logs in by_topic.items():
            log.info("taking up topic %s, found on disk with %d partitions", name, len(logs))
            known = next((each.topic_id for each in logs.values() if each.topic_id), None)
            # The logs of missing partition ids are on other brokers; here these partitions begin empty.
            partitions = tuple(
                self._new_partition(each, (self._node_id,), logs[each].leader_epoch + 1 if each in logs else 0)
                for each in range(max(logs) + 1)
            )
            new = self._internal_topics.get(name)
            own = new.configs if new is not None else {}
            configs = {key: text for key, text in own.items() if text is not None}
            topic_id = known or members.random_id(self._draw_uuid)
            yield from self._creation(Topic(name, topic_id, partitions, configs, configs_given=new is not None))

    @property
    def image(self) -> MetadataImage:
        """The metadata now. Take it once per request."""
        return self._image

    @property
    def node_id(self) -> int:
        return self._node_id

    @property
    def cluster_id(self) -> str:
        return self._image.cluster_id

    @property
    def untold(self) -> Collection[str]:
        return ()

    @property
    def is_alone(self) -> bool:
        return True

    @property
    def is_controller(self) -> bool:
        return True

    @property
    def only_kbrokers(self) -> bool:
        return True

    def on_kind_change(self, listener: Callable[[], None]) -> None:
        """Do nothing: a broker that is alone is always the only one."""

    @property
    def controller_id(self) -> int:
        return self._image.controller_id

    @property
    def broker_epoch(self) -> int:
        own = self._image.brokers.get(self._node_id)
        return -1 if own is None else own.epoch

    @property
    def controller_epoch(self) -> int:
        """The controller epoch of this broker, which is the controller; valid after `register`."""
        return self._controller_epoch

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of `image`. It must not block: changes wait for it."""
        self._listener = listener

    def _show(self, image: MetadataImage) -> None:
        self._image = image
        self.change_count += 1
        if self._listener is not None:
            self._listener()

    # --- start ----------------------------------------------------------------------------------------------------

    def owner_of(self, topic_partition: TopicPartition) -> Topic | None:
        """The topic of a log found on disk, also one whose deletion has begun; None if it belongs to no topic."""
        topic = self._image.topics.get(topic_partition.topic) or self._doomed.get(topic_partition.topic)
        if topic is None or topic_partition.partition_id >= len(topic.partitions):
            return None
        return topic

    def register(self, endpoints: Sequence[Endpoint], rack: str | None = None) -> None:
        """Join the cluster and become its controller. Raises BrokerIdTaken if another broker has this id."""
        with self._change_lock:
            broker = members.register_broker(self._store, self._node_id, tuple(endpoints), rack, self._clock)
            epoch, version = members.become_controller(self._store, self._node_id, self._clock)
            self._controller_epoch = epoch
            self._fence = [Check(paths.CONTROLLER_EPOCH, version)]
            self._replace_brokers({self._node_id: broker})

    def start(self, host: PartitionHost, *, new_leader_epochs: bool = False) -> None:
        """Finish what the last run has left unfinished, so that logs and store agree. To be called after `register`.

        `new_leader_epochs` is for a start after an unclean stop, which may have lost records that were not flushed: by
        the new epochs consumers can notice that (KIP-320).
        """
        with self._change_lock:
            self._host = host
            for topic in list(self._doomed.values()):
                log.info("finishing the deletion of topic %s", topic.name)
                self._finish_deletion(topic)
                del self._doomed[topic.name]
            if new_leader_epochs:
                self._bump_leader_epochs()
            for topic in self._image.topics.values():
                host.create_partitions(topic, self._mine(topic.partitions))

    def _bump_leader_epochs(self) -> None:
        changed = []
        operations: list[Operation] = []
        for topic in self._image.topics.values():
            partitions = []
            for partition in topic.partitions:
                if partition.leader == self._node_id:
                    partition = partition._replace(
                        leader_epoch=partition.leader_epoch + 1, state_version=partition.state_version + 1
                    )
                    path = paths.partition_state_path(topic.name, partition.partition_id)
                    operations.append(SetData(path, self._state_of(partition), partition.state_version - 1))
                partitions.append(partition)
            changed.append(topic.changed(partitions=tuple(partitions)))
        if operations:
            self._store.multi([*self._fence, *operations])
            self._show(self._image.with_topics(changed))

    def mark_failed(self, failed: Iterable[TopicPartition]) -> None:
        """Take partitions offline whose log directory has failed: this broker does not lead them any more.

        This lasts until the next start and is not in the store.
        """
        with self._change_lock:
            self._failed |= {(self._node_id, topic_partition) for topic_partition in failed}
            self._replace_brokers(self._image.brokers)

    def _replace_brokers(self, brokers: Mapping[int, Broker]) -> None:
        self._show(self._image.with_brokers(brokers, self._node_id, self._failed))

    # --- asked by clients: see `cluster.Cluster` ------------------------------------------------------------------

    def create_topics(
        self, wanted: Sequence[NewTopic], timeout_ms: int, answered: Answered, *, validate_only: bool = False
    ) -> None:
        answered(self.create(wanted, validate_only=validate_only))

    def create_partitions(
        self, wanted: Sequence[MorePartitions], timeout_ms: int, answered: Answered, *, validate_only: bool = False
    ) -> None:
        answered(
            [
                _result_of(
                    functools.partial(
                        self.add_partitions,
                        each.topic,
                        each.partition_count,
                        each.assignments,
                        validate_only=validate_only,
                    )
                )
                for each in wanted
            ]
        )

    def delete_topics(self, names: Sequence[str], timeout_ms: int, answered: Answered) -> None:
        answered([_result_of(functools.partial(self.delete, name)) for name in names])

    # --- create ---------------------------------------------------------------------------------------------------

    def create(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[Topic | ProtocolError]:
        """Create topics, whose names must be distinct. Returns each created topic, or the error, in their order."""
        with self._change_lock:
            return self._create_locked(wanted, validate_only)

    def await_leaders(
        self, leaders: Mapping[TopicPartition, int], timeout_ms: int, shown: Callable[[frozenset[TopicPartition]], None]
    ) -> None:
        shown(frozenset())

    def ensure(self, names: Iterable[str]) -> list[Topic | ProtocolError]:
        """Return the topics of these names, each once. Missing ones are created with the broker's defaults first."""
        # Through a generator: over a list of a million names the loop in C would keep all other threads waiting.
        distinct = list(dict.fromkeys(name for name in names))
        topics = self._image.topics
        if all(name in topics for name in distinct):
            return [topics[name] for name in distinct]
        with self._change_lock:
            topics = self._image.topics
            absent = [name for name in distinct if name not in topics]
            if len(absent) > MAX_PARTITIONS_PER_REQUEST:
                return [topics.get(name, TOO_MANY_PARTITIONS) for name in distinct]
            missing = [self._as_default(name) for name in absent]
            made = {new.name: result for new, result in zip(missing, self._create_locked(missing, False), strict=True)}
            return [made.get(name) or self._image.topics[name] for name in distinct]

    def _as_default(self, name: str) -> NewTopic:
        new = self._internal_topics.get(name)
        if new is None:
            return NewTopic(name)
        return sized_to_cluster(new, len(self._image.brokers))

    def _create_locked(self, wanted: Sequence[NewTopic], validate_only: bool) -> list[Topic | ProtocolError]:
        if not validate_only:
            try:
                self._undo_pending()
            except ProtocolError as error:
                return [error for _ in wanted]
        if are_too_many(wanted, self._defaults):
            return [TOO_MANY_PARTITIONS] * len(wanted)
        results: list[Topic | ProtocolError] = []
        for new in wanted:
            try:
                results.append(self._planned(new))
            except ProtocolError as error:
                results.append(error)
        topics = [result for result in results if isinstance(result, Topic)]
        if validate_only or not topics:
            return results
        refused = self._carry_out_creation(topics)
        return [refused.get(each.name, each) if isinstance(each, Topic) else each for each in results]

    def _planned(self, new: NewTopic) -> Topic:
        check_name(new.name, self._image, self._doomed)
        configs = check_configs(new.configs)
        placed = plan_replicas(new, self._image, self._defaults, self._random)
        partitions = (self._new_partition(partition_id, replicas) for partition_id, replicas in enumerate(placed))
        return Topic(new.name, members.random_id(self._draw_uuid), tuple(partitions), configs)

    def _new_partition(self, partition_id: int, replicas: Replicas, leader_epoch: int = 0) -> Partition:
        return Partition(partition_id, replicas[0], leader_epoch, replicas, replicas)

    def _carry_out_creation(self, topics: Sequence[Topic]) -> dict[str, ProtocolError]:
        """Commit the topics to the store, make their logs, show them in the image.

        Topics whose logs cannot be made are removed again; returns their errors by name.
        """
        host = self._host_or_fail()
        steps = [step for topic in topics for step in self._creation(topic)]
        try:
            self._store.multi([*self._fence, *steps])
        except StoreUnavailable as error:
            return {topic.name: ProtocolError(error.code, str(error)) for topic in topics}
        refused: dict[str, ProtocolError] = {}
        for topic in topics:
            try:
                host.create_partitions(topic, self._mine(topic.partitions))
            except KbrokerError as error:
                log.error("topic %s is not created: %s", topic.name, error)
                refused[topic.name] = ProtocolError(error.code, str(error))
                self._undo(topic.name, functools.partial(self._delete_locked, topic))
        self._show(self._image.with_topics(topic for topic in topics if topic.name not in refused))
        return refused

    def _creation(self, topic: Topic) -> list[Operation]:
        # On disk: a topic without a config node is one whose own configs are not known.
        configs = [Create(paths.topic_config_path(topic.name), paths.encode_config(topic.configs))]
        return [
            *(configs if topic.configs_given else ()),
            Create(paths.topic_path(topic.name), self._assignment_of(topic)),
            Create(paths.partitions_path(topic.name)),
            *(step for partition in topic.partitions for step in self._partition_creation(topic.name, partition)),
        ]

    def _partition_creation(self, topic: str, partition: Partition) -> list[Operation]:
        return [
            Create(paths.partition_path(topic, partition.partition_id)),
            Create(paths.partition_state_path(topic, partition.partition_id), self._state_of(partition)),
        ]

    def _assignment_of(self, topic: Topic) -> bytes:
        replicas = {partition.partition_id: partition.replicas for partition in topic.partitions}
        return paths.encode_topic(paths.TopicAssignment(topic.topic_id, replicas, {}, {}))

    def _state_of(self, partition: Partition) -> bytes:
        return paths.encode_partition_state(
            paths.PartitionRegistration(partition.leader, partition.leader_epoch, partition.isr, self._controller_epoch)
        )

    # --- grow -----------------------------------------------------------------------------------------------------

    def add_partitions(
        self, name: str, count: int, assignments: Sequence[Replicas] | None = None, *, validate_only: bool = False
    ) -> Topic:
        """Add partitions so that the topic has `count`. Returns the grown topic.

        Raises ProtocolError if it may not grow so.
        """
        with self._change_lock:
            topic = self._image.topics.get(name)
            if topic is None:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            placed = plan_more_partitions(topic, count, assignments, self._image, self._random)
            added = [self._new_partition(each, replicas) for each, replicas in enumerate(placed, len(topic.partitions))]
            grown = topic.changed(partitions=(*topic.partitions, *added))
            if validate_only:
                return grown
            self._undo_pending()
            assignment = SetData(paths.topic_path(name), self._assignment_of(grown))
            creation = (step for partition in added for step in self._partition_creation(name, partition))
            self._store.multi([*self._fence, assignment, *creation])
            try:
                self._host_or_fail().create_partitions(grown, self._mine(added))
            except KbrokerError as error:
                log.error("topic %s does not grow: %s", name, error)
                self._undo(name, functools.partial(self._shrink_back, topic, added))
                raise
            self._show(self._image.with_topics([grown]))
            return grown

    def _shrink_back(self, topic: Topic, added: Sequence[Partition]) -> None:
        """Undo the growth of a topic, in the store first.

        An empty log without a partition does no harm, and may be used later.
        """
        deletion = (Delete(path) for partition in added for path in _partition_paths(topic.name, partition))
        assignment = SetData(paths.topic_path(topic.name), self._assignment_of(topic))
        self._store.multi([*self._fence, assignment, *deletion])
        try:
            self._host_or_fail().delete_partitions(topic, self._mine(added))
        except KbrokerError as error:
            log.error("topic %s: not all of its new partitions could be removed: %s", topic.name, error)

    # --- delete ---------------------------------------------------------------------------------------------------

    def delete(self, name: str) -> Topic:
        """Delete a topic, its logs and its configs. Returns the topic. Raises ProtocolError if it does not exist.

        The topic is gone once its mark is in the store. If its logs cannot be deleted now, the next start does it.
        """
        with self._change_lock:
            topic = self._image.topics.get(name)
            if topic is None:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._undo_pending()
            self._delete_locked(topic)
            return topic

    def _delete_locked(self, topic: Topic) -> None:
        self._store.multi([*self._fence, Create(paths.delete_topic_path(topic.name))])
        self._show(self._image.with_topics((), self._image.topics.keys() & {topic.name}))
        try:
            self._finish_deletion(topic)
        except KbrokerError as error:
            log.error("topic %s: its deletion goes on with the next start: %s", topic.name, error)
            self._doomed[topic.name] = topic

    def _finish_deletion(self, topic: Topic) -> None:
        """Delete the logs, then the nodes: as long as the mark is there, the next start knows that they have to go."""
        self._host_or_fail().delete_partitions(topic, self._mine(topic.partitions))
        node_paths = [
            *(path for partition in topic.partitions for path in _partition_paths(topic.name, partition)),
            paths.partitions_path(topic.name),
            paths.topic_path(topic.name),
            paths.topic_config_path(topic.name),
            paths.delete_topic_path(topic.name),
        ]
        present = zip(node_paths, self._store.get_many(node_paths), strict=True)
        self._store.multi([*self._fence, *(Delete(path) for path, found in present if found is not None)])

    # --- configure ------------------------------------------------------------------------------------------------

    def set_topic_configs(self, name: str, change: Callable[[Topic], Mapping[str, str]]) -> None:
        """Replace a topic's own configs by those that `change` returns for it. If `change` raises, nothing changes.

        From then on the topic's own configs count as known, even if there are none.
        """
        with self._change_lock:
            topic = self._image.topics.get(name)
            if topic is None:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            configs = dict(change(topic))
            self._write_node(paths.topic_config_path(name), paths.encode_config(configs))
            configured = topic.changed(configs=configs, configs_given=True)
            self._show(self._image.with_topics([configured]))
            self._host_or_fail().update_topic(configured)

    def set_broker_configs(self, entity: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Do what `set_topic_configs` does, for dynamic configs of a broker (its id) or all (paths.DEFAULT_ENTITY)."""
        with self._change_lock:
            configs = dict(change(self._image.broker_configs.get(entity, {})))
            self._write_node(paths.broker_config_path(entity), paths.encode_config(configs))
            self._show(self._image.with_broker_configs(entity, configs))
            self._host_or_fail().update_broker_configs(self.dynamic_broker_configs())

    def set_group_configs(self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Do what `set_topic_configs` does, for the configs of a group, whether the group exists or not.

        A group without configs has no node.
        """
        with self._change_lock:
            configs = dict(change(self._image.group_configs.get(group_id, {})))
            path = paths.group_config_path(group_id)
            if configs:
                if self._store.exists(paths.GROUP_CONFIGS) is None:
                    self._write_node(paths.GROUP_CONFIGS, b"")
                self._write_node(path, paths.encode_config(configs))
            elif self._store.exists(path) is not None:
                self._store.multi([*self._fence, Delete(path)])
            self._show(self._image.with_group_configs(group_id, configs))
            self._host_or_fail().update_group_configs(group_id)

    def rebase_broker_configs(self, rebase: Callable[[Mapping[str, str]], None]) -> None:
        """Call `rebase` with this broker's dynamic configs, which do not change meanwhile.

        For a broker whose static settings have changed.
        """
        with self._change_lock:
            rebase(self.dynamic_broker_configs())

    def dynamic_broker_configs(self) -> dict[str, str]:
        """Return the dynamic configs that hold for this broker: its own, and those of all brokers where it has none."""
        configs = self._image.broker_configs
        return {**configs.get(paths.DEFAULT_ENTITY, {}), **configs.get(str(self._node_id), {})}

    def _write_node(self, path: str, data: bytes) -> None:
        exists = self._store.exists(path) is not None
        self._store.multi([*self._fence, SetData(path, data) if exists else Create(path, data)])

    # --- taking back ----------------------------------------------------------------------------------------------

    def _undo(self, name: str, step: Callable[[], None]) -> None:
        """Undo a refused change. If the store fails, it is tried again before the next change of topics."""
        try:
            step()
        except KbrokerError as error:
            log.error("topic %s: what was made of it could not be taken back yet: %s", name, error)
            self._pending.append((name, step))

    def _undo_pending(self) -> None:
        """Undo what could not be undone before.

        Raises ProtocolError if that fails again: what is left in the store would conflict with later changes.
        """
        pending, self._pending = self._pending, []
        for name, step in pending:
            self._undo(name, step)
        if self._pending:
            names = ", ".join(sorted({name for name, _ in self._pending}))
            raise ProtocolError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"What was begun with {names} cannot be taken back; is the disk full?"
            )

    # --- shared ---------------------------------------------------------------------------------------------------

    def _mine(self, partitions: Iterable[Partition]) -> list[Partition]:
        return [partition for partition in partitions if self._node_id in partition.replicas]

    def _host_or_fail(self) -> PartitionHost:
        assert self._host is not None, "Topics.start has not been called"
        return self._host


def _result_of(change: Callable[[], Topic]) -> TopicResult:
    try:
        return change()
    except ProtocolError as error:
        return error
    except KbrokerError as error:
        return ProtocolError(error.code, error.client_message or "")


def _partition_paths(topic: str, partition: Partition) -> tuple[str, str]:
    """The paths of a partition's nodes, children first."""
    state_path = paths.partition_state_path(topic, partition.partition_id)
    return state_path, paths.partition_path(topic, partition.partition_id)
