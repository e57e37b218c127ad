"""The topics of the cluster and every change to them: create, grow, configure, delete.

A change is committed to the coordination store, then carried out by the `PartitionHost`, then seen in the image, and
only then does the caller hear yes. A broker that dies in between finishes it when it starts: what the store has is
made, what is marked for deletion goes. A log directory without a topic is therefore never a leftover of ours.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from kbroker.clock import Clock, SystemClock
from kbroker.cluster import registry
from kbroker.cluster.image import Broker, MetadataImage, Partition, Topic
from kbroker.cluster.loading import load_image
from kbroker.cluster.new_topics import (
    MAX_PARTITIONS_PER_REQUEST,
    NewTopic,
    Replicas,
    TopicDefaults,
    check_configs,
    check_name,
    plan_more_partitions,
    plan_replicas,
)
from kbroker.cluster.producer_ids import ids_before
from kbroker.coordination import paths
from kbroker.coordination.store import Check, Create, Delete, Operation, SetData, Store, StoreUnavailable
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.model import Endpoint, TopicPartition

log = logging.getLogger(__name__)

MIN_IN_SYNC = "min.insync.replicas"
TOO_MANY_PARTITIONS = ProtocolError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


class PartitionHost(Protocol):
    """Who keeps the logs of this broker. Called by one thread at a time."""

    def create_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Have their logs, durably, when this returns; those that are there already stay. StorageFailed if not."""
        ...

    def delete_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Have no such logs any more; no error for one that is not there. StorageFailed if it could not be done."""
        ...

    def update_topic(self, topic: Topic) -> None:
        """The topic's own configs are others now."""
        ...

    def update_broker_configs(self, configs: Mapping[str, str]) -> None:
        """This broker's dynamic configs, in all, are these now; those of topics may follow from them."""
        ...

    def update_group_configs(self, group_id: str) -> None:
        """What is set for this group is something else now."""
        ...


class FoundPartition(NamedTuple):
    """A log that was on disk before this cluster knew anything. No id: by a Kafka before 2.8. Epoch: the last one."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    leader_epoch: int


class Topics:
    """The only writer of topics and configs in this process, and the holder of the image.

    `image` may be read by any thread at any time. Changes come one after the other (`_change_lock`) and block: they
    wait for the store and for the host.
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
        """Read the cluster's state. `cluster_id` is for a cluster that has none yet. `internal_topics`: how those are
        created that the broker itself needs, by name; their replication factor is a wish, cut to the brokers there are.
        `found_partitions` is asked when nobody has used the store before: the topics of those logs are taken up.
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
        registry.ensure_layout(store)
        known_id = registry.ensure_cluster_id(store, cluster_id, lambda: self._heritage(found_partitions()))
        self._image, self._doomed = load_image(store, known_id)
        self._pending: list[tuple[str, Callable[[], None]]] = []
        """What is to be taken back of refused changes, by topic; not in the store: a restart lets it stand."""

    def _heritage(self, found: Iterable[FoundPartition]) -> Iterator[Operation]:
        """The topics of logs that another broker left on disk (Apache Kafka, say). Their configs are not there, but for
        those of internal topics, which are always the same."""
        by_topic: dict[str, dict[int, FoundPartition]] = {}
        for each in found:
            by_topic.setdefault(each.topic_partition.topic, {})[each.topic_partition.partition_id] = each
        if by_topic:
            # Producers of these logs are known by ids that somebody else has given out: ours begin where none was.
            given = ids_before(self._clock.wall_ms(), self._node_id)
            yield SetData(paths.PRODUCER_ID_BLOCK, paths.encode_producer_id_block(given))
        for name, logs in by_topic.items():
            log.info("taking up topic %s, found on disk with %d partitions", name, len(logs))
            known = next((each.topic_id for each in logs.values() if each.topic_id), None)
            # Numbers that are missing are of logs that other brokers have; here they begin empty.
            partitions = tuple(
                self._new_partition(each, (self._node_id,), logs[each].leader_epoch + 1 if each in logs else 0)
                for each in range(max(logs) + 1)
            )
            new = self._internal_topics.get(name)
            own = new.configs if new is not None else {}
            configs = {key: text for key, text in own.items() if text is not None}
            topic_id = known or registry.random_id(self._draw_uuid)
            yield from self._creation(Topic(name, topic_id, partitions, configs, configs_given=new is not None))

    @property
    def image(self) -> MetadataImage:
        """What is agreed on now. Take it once per request."""
        return self._image

    @property
    def node_id(self) -> int:
        return self._node_id

    @property
    def cluster_id(self) -> str:
        return self._image.cluster_id

    @property
    def controller_epoch(self) -> int:
        """That of the last broker that became the controller, which is this one. After `register`."""
        return self._controller_epoch

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call whenever `image` is another one. `listener` must not wait for anything: changes wait for it."""
        self._listener = listener

    def _show(self, image: MetadataImage) -> None:
        self._image = image
        self.change_count += 1
        if self._listener is not None:
            self._listener()

    # --- start ----------------------------------------------------------------------------------------------------

    def owner_of(self, topic_partition: TopicPartition) -> Topic | None:
        """The topic that a log found on disk belongs to, one whose deletion was begun included; None: nobody's."""
        topic = self._image.topics.get(topic_partition.topic) or self._doomed.get(topic_partition.topic)
        if topic is None or topic_partition.partition_id >= len(topic.partitions):
            return None
        return topic

    def register(self, endpoints: Sequence[Endpoint], rack: str | None = None) -> None:
        """Join the cluster, and control it. BrokerIdTaken when another broker has this id."""
        with self._change_lock:
            broker = registry.register_broker(self._store, self._node_id, tuple(endpoints), rack, self._clock)
            epoch, version = registry.become_controller(self._store, self._node_id, self._clock)
            self._controller_epoch = epoch
            self._fence = [Check(paths.CONTROLLER_EPOCH, version)]
            self._replace_brokers({self._node_id: broker})

    def start(self, host: PartitionHost, *, new_leader_epochs: bool = False) -> None:
        """Make logs and store agree, whatever the last run was in the middle of. After `register`.

        `new_leader_epochs`: the last run ended unclean and may have lost records that were not flushed; consumers can
        notice that by the epoch (KIP-320).
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
        """These logs' directory is gone: this broker leads them no longer. Until the next start; not in the store."""
        with self._change_lock:
            self._failed |= {(self._node_id, topic_partition) for topic_partition in failed}
            self._replace_brokers(self._image.brokers)

    def _replace_brokers(self, brokers: Mapping[int, Broker]) -> None:
        self._show(self._image.with_brokers(brokers, self._node_id, self._failed))

    # --- create ---------------------------------------------------------------------------------------------------

    def create(self, wanted: Sequence[NewTopic], *, validate_only: bool = False) -> list[Topic | ProtocolError]:
        """Each topic as it was made, or why it was not. The names must be different ones."""
        with self._change_lock:
            return self._create_locked(wanted, validate_only)

    def ensure(self, names: Iterable[str]) -> list[Topic | ProtocolError]:
        """The topics of these names; those missing are created with the broker's defaults, and waited for."""
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
        factor = min(new.replication_factor, max(1, len(self._image.brokers)))
        configs = dict(new.configs)
        if wish := configs.get(MIN_IN_SYNC):  # a wish, too
            configs[MIN_IN_SYNC] = str(min(int(wish), factor))
        return NewTopic(name, new.partition_count, factor, configs=configs)

    def _create_locked(self, wanted: Sequence[NewTopic], validate_only: bool) -> list[Topic | ProtocolError]:
        if not validate_only:
            try:
                self._undo_pending()
            except ProtocolError as error:
                return [error for _ in wanted]
        total = sum(
            len(new.assignment)
            or (self._defaults.partition_count if new.partition_count == -1 else new.partition_count)
            for new in wanted
        )
        if total > MAX_PARTITIONS_PER_REQUEST:
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
        return Topic(new.name, registry.random_id(self._draw_uuid), tuple(partitions), configs)

    def _new_partition(self, partition_id: int, replicas: Replicas, leader_epoch: int = 0) -> Partition:
        return Partition(partition_id, replicas[0], leader_epoch, replicas, replicas)

    def _carry_out_creation(self, topics: Sequence[Topic]) -> dict[str, ProtocolError]:
        """Commit, make logs, show. Topics whose logs cannot be made are taken back, with the reason by name."""
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
        # On disk: a topic without a config node is one whose configs nobody has given yet.
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
        """The topic with `count` partitions. ProtocolError if it cannot be."""
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
        """Store first: a log without its partition does no harm, being empty, and is taken when it is added again."""
        deletion = (Delete(path) for partition in added for path in _partition_paths(topic.name, partition))
        assignment = SetData(paths.topic_path(topic.name), self._assignment_of(topic))
        self._store.multi([*self._fence, assignment, *deletion])
        try:
            self._host_or_fail().delete_partitions(topic, self._mine(added))
        except KbrokerError as error:
            log.error("topic %s: not all of its new partitions could be removed: %s", topic.name, error)

    # --- delete ---------------------------------------------------------------------------------------------------

    def delete(self, name: str) -> Topic:
        """Delete a topic, its logs and its configs; what it was. ProtocolError if there is none.

        Once its mark is in the store the topic is gone for everybody, even if its logs resist until the next start.
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
        """Logs first: while the mark is there, the next start knows what they were."""
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
        """Replace a topic's own configs by what `change` makes of it; whatever that raises leaves them as they were.

        From then on they are given, even if there are none.
        """
        with self._change_lock:
            topic = self._image.topics.get(name)
            if topic is None:
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            configs = dict(change(topic))
            self._put(paths.topic_config_path(name), paths.encode_config(configs))
            configured = topic.changed(configs=configs, configs_given=True)
            self._show(self._image.with_topics([configured]))
            self._host_or_fail().update_topic(configured)

    def set_broker_configs(self, entity: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """The same for the dynamic configs of a broker (its id), or of all (paths.DEFAULT_ENTITY)."""
        with self._change_lock:
            configs = dict(change(self._image.broker_configs.get(entity, {})))
            self._put(paths.broker_config_path(entity), paths.encode_config(configs))
            self._show(self._image.with_broker_configs(entity, configs))
            self._host_or_fail().update_broker_configs(self.dynamic_broker_configs())

    def set_group_configs(self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """The same for what is set for one group, whether there is such a group or not. No node for nothing."""
        with self._change_lock:
            configs = dict(change(self._image.group_configs.get(group_id, {})))
            path = paths.group_config_path(group_id)
            if configs:
                if self._store.exists(paths.GROUP_CONFIGS) is None:
                    self._put(paths.GROUP_CONFIGS, b"")
                self._put(path, paths.encode_config(configs))
            elif self._store.exists(path) is not None:
                self._store.multi([*self._fence, Delete(path)])
            self._show(self._image.with_group_configs(group_id, configs))
            self._host_or_fail().update_group_configs(group_id)

    def rebase_broker_configs(self, rebase: Callable[[Mapping[str, str]], None]) -> None:
        """What this broker was started with is something else now: `rebase` is called with its dynamic configs, while
        nothing of these changes."""
        with self._change_lock:
            rebase(self.dynamic_broker_configs())

    def dynamic_broker_configs(self) -> dict[str, str]:
        """What holds for this broker: its own over those of all brokers."""
        configs = self._image.broker_configs
        return {**configs.get(paths.DEFAULT_ENTITY, {}), **configs.get(str(self._node_id), {})}

    def _put(self, path: str, data: bytes) -> None:
        exists = self._store.exists(path) is not None
        self._store.multi([*self._fence, SetData(path, data) if exists else Create(path, data)])

    # --- taking back ----------------------------------------------------------------------------------------------

    def _undo(self, name: str, step: Callable[[], None]) -> None:
        """Take back what was made of a refused change; where the store resists, before the next change of topics."""
        try:
            step()
        except KbrokerError as error:
            log.error("topic %s: what was made of it could not be taken back yet: %s", name, error)
            self._pending.append((name, step))

    def _undo_pending(self) -> None:
        """ProtocolError while there is something that cannot be taken back: the store would hold it against us."""
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


def _partition_paths(topic: str, partition: Partition) -> tuple[str, str]:
    """A partition's nodes, the lowest first."""
    state_path = paths.partition_state_path(topic, partition.partition_id)
    return state_path, paths.partition_path(topic, partition.partition_id)
