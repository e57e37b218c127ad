"""The topics and configs of a cluster as one of its members sees and changes them; a `cluster.Cluster`.

Topics and brokers are known from the controller (UpdateMetadata), configs from the tree. Changes of topics are planned
here and made by the controller; new topics that a client only names, and configs, are written by any member.
Locks, in the order in which they are taken: `_reading` is held while configs that were known before are read, shown and
told to the broker, so that a later one never comes first. `_telling` is held while topics change and the broker is told
of it. `_lock` guards the image and is held while configs of new topics are read from the store.
"""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from kbroker.clock import Clock
from kbroker.cluster import members
from kbroker.cluster.awaited_topics import AwaitedTopics, IsDone
from kbroker.cluster.cluster import Answered, TopicResult
from kbroker.cluster.config_notifications import notification
from kbroker.cluster.image import MetadataImage, Partition, Topic
from kbroker.cluster.member_image import image_after
from kbroker.cluster.member_nodes import MemberNodes, OwnConfigs
from kbroker.cluster.new_topics import (
    MAX_PARTITIONS_PER_REQUEST,
    TOO_MANY_PARTITIONS,
    MorePartitions,
    NewTopic,
    TopicDefaults,
    are_too_many,
    check_configs,
    check_name,
    plan_more_partitions,
    plan_replicas,
    sized_to_cluster,
)
from kbroker.cluster.topic_requests import (
    AskForTopics,
    CreateTopics,
    DeleteTopics,
    GrowTopics,
    PlannedTopic,
    TopicCodes,
    TopicRequest,
)
from kbroker.coordination import paths
from kbroker.coordination.store import (
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    Operation,
    SetData,
    Store,
    StoreError,
    StoreUnavailable,
)
from kbroker.errors import ConfigError, ErrorCode, KbrokerError, ProtocolError
from kbroker.model import NO_UUID, TopicPartition
from kbroker.protocol import messages as M
from kbroker.rules.topic_names import listed

log = logging.getLogger(__name__)

MOST_NAMES = 5
"""How many names one line of the log gives."""
MOST_ATTEMPTS = 20
"""How often a change of configs is tried that others change at the same time."""
NO_BROKER_EPOCH = -1
"""The broker epoch before the first registration, and that of UpdateMetadata before version 5."""
RETRY_S = 1.0
"""The pause before configs that could not be read are read again."""


class MemberHost(Protocol):
    """What this broker does about changed metadata. Called by one thread at a time."""

    def topics_changed(self, changed: Sequence[Topic], removed: Sequence[Topic]) -> None:
        """Topics are new, or have other partitions, leaders or ISRs; or they are gone."""
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


class SharedTopics:
    """The metadata of a member, and the changes that its clients ask for. Any thread may read `image` at any time."""

    def __init__(
        self,
        store: Store,
        node_id: int,
        cluster_id: str,
        *,
        defaults: TopicDefaults,
        internal_topics: Mapping[str, NewTopic],
        exact_internal_topics: Collection[str],
        ask: AskForTopics,
        is_controller: Callable[[], bool],
        is_deleting: Callable[[str], bool],
        is_moving: Callable[[str], bool],
        clock: Clock,
        check_broker_config: Callable[[str, str], object] = lambda name, text: None,
        randomness: random.Random | None = None,
        draw_uuid: Callable[[], UUID] = uuid.uuid4,
    ):
        """Read from the store which logs this broker has to open, and all configs of brokers and groups.

        `internal_topics` says how the broker's internal topics are created, by name. The replication factor of those
        that are not in `exact_internal_topics` is lowered to the number of brokers. `ask` asks the controller in this
        process, `is_deleting` whether it is deleting a topic, and `is_moving` whether it moves replicas of one.
        `check_broker_config` raises ConfigError for a dynamic config that no broker may have: it is ignored.
        """
        self._store = store
        self._node_id = node_id
        self._defaults = defaults
        self._internal_topics = dict(internal_topics)
        self._exact = frozenset(exact_internal_topics)
        self._ask = ask
        self._is_controller = is_controller
        self._is_deleting = is_deleting
        self._is_moving = is_moving
        self._clock = clock
        self._random = randomness or random.Random()
        self._draw_uuid = draw_uuid
        self._reading = threading.Lock()
        self._telling = threading.Lock()
        self._lock = threading.Lock()
        self.on_due: Callable[[], object] = lambda: None
        """Called by any thread when `step` is due sooner than it said. It must not wait."""
        self.on_deleted: Callable[[Mapping[str, UUID]], object] = lambda topics: None
        """Called by `step`, under no lock, with the ids of topics whose deletion nobody has told this broker of."""
        self._must_compare = False
        """Whether topics may be known here that were deleted while the controller did not reach this broker."""
        self._leaving: frozenset[str] = frozenset()
        """Topics known here that the first metadata of this registration did not name: they are being deleted."""
        self._host: MemberHost | None = None
        self._listeners: list[Callable[[], None]] = []
        self._kind_listeners: list[Callable[[], None]] = []
        self._broker_epoch = NO_BROKER_EPOCH
        self._told_epoch: int | None = None
        """The broker epoch in the last UpdateMetadata that was obeyed; None before the first one."""
        self._foreign: frozenset[int] = frozenset()
        """The other registered brokers that are no kbrokers."""
        self._unread: set[str] = set()
        """Topics whose configs could not be read, or not all of them."""
        self._nodes = MemberNodes(check_broker_config)
        self._configured: dict[str, Topic] = {}
        """Topics that the controller has given partitions of before the metadata had them."""
        self._awaited = AwaitedTopics(clock)
        self.change_count = 0
        """How often the image has changed since the start."""
        self.leader_changes = 0
        """How many partitions were told to have another leader than before."""
        self.assigned = self._nodes.assigned(store)
        """The topics in the tree at the start, with their replicas, to find the owner of a log on disk."""
        self.untold: frozenset[str] = frozenset(self.assigned)
        self._image = MetadataImage(
            cluster_id,
            broker_configs=self._nodes.broker_configs(store, {}),
            group_configs=self._nodes.group_configs(store, {}),
        )

    # --- what is known --------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The metadata now, without topics and brokers until the controller has told of them."""
        return self._image

    @property
    def node_id(self) -> int:
        return self._node_id

    @property
    def cluster_id(self) -> str:
        return self._image.cluster_id

    @property
    def is_alone(self) -> bool:
        return False

    @property
    def is_controller(self) -> bool:
        return self._is_controller()

    @property
    def only_kbrokers(self) -> bool:
        return not self._foreign

    @property
    def controller_id(self) -> int:
        return self._image.controller_id

    @property
    def controller_epoch(self) -> int:
        return self._image.controller_epoch

    @property
    def broker_epoch(self) -> int:
        return self._broker_epoch

    @property
    def is_told(self) -> bool:
        """Whether the controller has told this broker, as it is registered now, that it is in the cluster.

        UpdateMetadata without a broker epoch counts for every registration.
        """
        return self._told_epoch in (NO_BROKER_EPOCH, self._broker_epoch) and self._node_id in self._image.brokers

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of `image`. It must not block: changes wait for it."""
        self._listeners.append(listener)

    def on_kind_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when `only_kbrokers` changes. It must not block."""
        self._kind_listeners.append(listener)

    def owner_of(self, topic_partition: TopicPartition) -> Topic | None:
        topic = self._image.topics.get(topic_partition.topic) or self.assigned.get(topic_partition.topic)
        if topic is None or topic_partition.partition_id >= len(topic.partitions):
            return None
        return topic if self._node_id in topic.partitions[topic_partition.partition_id].replicas else None

    def configured(self, name: str, topic_id: UUID) -> Topic:
        """Return the topic, or if the metadata has none yet, one without partitions that has its own configs."""
        topic = self._image.topics.get(name)
        if topic is not None and topic.topic_id == topic_id:
            return topic
        with self._lock:
            topic = self._configured.get(name)
            if topic is None or topic.topic_id != topic_id:
                configs = self._configs_of_locked([name])
                topic = Topic(name, topic_id, (), configs.get(name, {}), configs_given=name not in self._unread)
                self._configured[name] = topic
        return topic

    def serve(self, host: MemberHost) -> None:
        """Tell `host` of changes from now on."""
        self._host = host

    def _show_locked(self, image: MetadataImage, told_epoch: int | None = None) -> None:
        """Show an image. `told_epoch`: the broker epoch to which the controller has told it."""
        self._image = image
        if told_epoch is not None:
            self._told_epoch = told_epoch  # after the image, which is of this registration then
        self.change_count += 1
        for listener in self._listeners:
            listener()

    # --- told by the controller -----------------------------------------------------------------------------------

    def update(self, request: M.UpdateMetadataRequest) -> Collection[int]:
        """Apply UpdateMetadata. Returns the ids of the brokers that are alive now. Raises ProtocolError."""
        with self._telling:
            return self._update_telling(request)

    def _update_telling(self, request: M.UpdateMetadataRequest) -> Collection[int]:
        with self._lock:
            if request.controller_epoch > self._image.controller_epoch:
                self._must_compare = True
            unread = set(self._unread)
            self._configured.clear()
            update = image_after(self._image, request, self._configs_of_locked)
            image, changed = update.image, list(update.changed)
            if update.passed_over:
                shown = listed([repr(name) for name in update.passed_over], MOST_NAMES)
                log.error("the controller tells of partitions that cannot be; their topics are passed over: %s", shown)
            self.leader_changes += sum(_leader_changes(self._image.topics.get(each.name), each) for each in changed)
            if self._unread:
                changed = [each.changed(configs_given=each.name not in self._unread) for each in changed]
                image = image.with_topics(changed)
            named = {each.topic_name for each in request.topic_states}
            is_first = request.broker_epoch != self._told_epoch
            self._leaving = (frozenset(image.topics) if is_first else self._leaving) - named
            self._must_compare |= is_first and bool(self._leaving)
            self._show_locked(image, request.broker_epoch)
            if request.topic_states:
                self.untold = frozenset()  # a broker is told of all partitions at once
            self._unread -= {topic.name for topic in update.removed if topic.name not in image.topics}
            read_late = [image.topics[name] for name in unread - self._unread if name in image.topics]
        if self._host is not None:
            if changed or update.removed:
                self._host.topics_changed(changed, update.removed)
            for topic in read_late:
                self._host.update_topic(topic)
        self._awaited.look(image)
        if self._must_compare or self._unread:
            self.on_due()
        return image.brokers.keys()

    def _configs_of_locked(self, names: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        """Read the own configs of topics. If the store is away they are read later: see `step`."""
        try:
            found = self._nodes.topic_configs(self._store, names)
            self._note_unread_locked(found)
            return {name: configs for name, (configs, _) in found.items()}
        except (StoreUnavailable, StoreError) as error:
            log.warning("configs of topics (%s) are not known yet: %s", listed(sorted(names), MOST_NAMES), error)
            self._unread.update(names)
            return {}

    def _note_unread_locked(self, found: Mapping[str, OwnConfigs]) -> None:
        for name, (_, is_whole) in found.items():
            if is_whole:
                self._unread.discard(name)
            else:
                self._unread.add(name)

    # --- told by the membership -----------------------------------------------------------------------------------

    def registered(self, store: Store, broker_epoch: int) -> None:
        """Use this session from now on, and read all configs: notifications may have been missed."""
        self._store, self._broker_epoch = store, broker_epoch
        self._must_compare = True
        self.group_configs_changed()
        self._broker_configs_changed()
        self._read_topic_configs(None)

    def configs_changed(self, entity_paths: Sequence[str]) -> None:
        """Read configs anew; `entity_paths` are the paths of their nodes after "/config/". Others are ignored."""
        self._read_topic_configs([path.removeprefix("topics/") for path in entity_paths if path.startswith("topics/")])
        if any(path.startswith("brokers/") for path in entity_paths):
            self._broker_configs_changed()

    def group_configs_changed(self) -> None:
        """Read the configs of all groups anew. Among kbrokers only: they have nodes that Kafka does not know."""
        found = self._nodes.group_configs(self._store, self._image.group_configs)
        with self._lock:
            before = self._image.group_configs
            changed = [name for name in {**before, **found} if before.get(name) != found.get(name)]
            image = self._image
            for name in changed:
                image = image.with_group_configs(name, found.get(name, {}))
            if changed:
                self._show_locked(image)
        for name in changed:
            self._host_or_fail().update_group_configs(name)

    def _broker_configs_changed(self) -> None:
        with self._reading:
            found = self._nodes.broker_configs(self._store, self._image.broker_configs)
            with self._lock:
                before = self.dynamic_broker_configs()
                image = self._image
                for entity in {**image.broker_configs, **found}:
                    if image.broker_configs.get(entity, {}) != found.get(entity, {}):
                        image = image.with_broker_configs(entity, found.get(entity, {}))
                if image is not self._image:
                    self._show_locked(image)
                after = self.dynamic_broker_configs()
            if after == before:
                return
            try:
                self._host_or_fail().update_broker_configs(after)
            except ConfigError as error:
                log.error("the dynamic configs of this broker are not applied: %s", error)

    def _read_topic_configs(self, names: Collection[str] | None) -> None:
        """Read the own configs of those of the topics that are known; None: of all."""
        with self._reading:
            with self._telling:  # topics that are just being told of had their configs read already
                topics = self._image.topics
                asked = dict(topics) if names is None else {name: topics[name] for name in names if name in topics}
            if not asked:
                return
            found = self._nodes.topic_configs(self._store, asked)
            with self._telling:
                self._set_topic_configs(asked, found)

    def _set_topic_configs(self, asked: Mapping[str, Topic], found: Mapping[str, OwnConfigs]) -> None:
        """Show configs and tell the broker of them; `_telling` is held. A topic that was made again has its own."""
        with self._lock:
            there = {
                name: self._image.topics[name]
                for name, topic in asked.items()
                if name in self._image.topics and self._image.topics[name].topic_id == topic.topic_id
            }
            self._note_unread_locked({name: found[name] for name in there})
            configured = [
                topic.changed(configs=found[name].configs, configs_given=found[name].is_whole)
                for name, topic in there.items()
                if (topic.configs, topic.configs_given) != found[name]
            ]
            if configured:
                self._show_locked(self._image.with_topics(configured))
        for topic in configured:
            self._host_or_fail().update_topic(topic)

    def brokers_changed(self, kbroker_versions: Mapping[int, str | None]) -> None:
        """Note which other brokers are registered: the version of each kbroker by id, None for a Kafka."""
        before = self.only_kbrokers
        self._foreign = frozenset(node_id for node_id, version in kbroker_versions.items() if version is None)
        if before != self.only_kbrokers:
            if self._foreign:
                log.info(
                    "Apache Kafka is in the cluster (broker %s): consumer groups of KIP-848, transaction.version 2 and "
                    "configs of groups are not served until it has gone",
                    listed(list(map(str, sorted(self._foreign))), MOST_NAMES),
                )
            else:
                log.info("all brokers are kbrokers: everything is served that a broker alone serves")
            for listener in self._kind_listeners:
                listener()

    def step(self) -> float | None:
        """Answer requests whose time is over, and read configs that could not be read.

        Returns after how many seconds to call again; None: not before something is asked or told.
        """
        self._awaited.look(self._image)
        left = self._awaited.seconds_left()
        try:
            if self._must_compare or self._leaving:
                self._forget_gone()
            if self._unread_topics():
                self._read_topic_configs(self._unread_topics())
        except KbrokerError as error:
            log.debug("the tree is read again later: %s", error)
        if self._must_compare or self._leaving or self._unread_topics():
            return RETRY_S if left is None else min(RETRY_S, left)
        return left

    def _forget_gone(self) -> None:
        """Forget topics that are not in the tree any more.

        A controller tells a broker that it could not reach which topics it has deleted meanwhile. The next controller
        does not know of them. A broker that registers while a topic is being deleted, and has no replica of it any
        more, is told of it neither then nor later.
        """
        self._must_compare = False  # first: what comes from here on is compared again
        known = self._image.topics
        try:
            there = frozenset(self._store.children(paths.TOPICS))
        except KbrokerError:
            self._must_compare = True
            raise
        with self._telling:
            with self._lock:
                self.untold &= there
                now = self._image.topics
                gone = [
                    now[name]
                    for name, topic in known.items()
                    if name not in there and name in now and _is_same(now[name], topic)
                ]
                if gone:
                    self._show_locked(self._image.with_topics((), [topic.name for topic in gone]))
                    self._unread.difference_update(topic.name for topic in gone)
                self._leaving = self._leaving & self._image.topics.keys()
            if gone:
                log.info("topics that were deleted meanwhile: %s", listed([each.name for each in gone], MOST_NAMES))
                self._host_or_fail().topics_changed((), gone)
        if gone:
            self.on_deleted({each.name: each.topic_id for each in gone})

    def _unread_topics(self) -> list[str]:
        return [name for name in list(self._unread) if name in self._image.topics]

    # --- topics ---------------------------------------------------------------------------------------------------

    def create_topics(
        self, wanted: Sequence[NewTopic], timeout_ms: int, answered: Answered, *, validate_only: bool = False
    ) -> None:
        image = self._image
        names = [new.name for new in wanted]
        if are_too_many(wanted, self._defaults):
            answered([TOO_MANY_PARTITIONS for _ in wanted])
            return
        results: dict[str, TopicResult] = {}
        for new in wanted:
            try:
                results[new.name] = self._planned(new, image)
            except ProtocolError as error:
                results[new.name] = error
        planned = {name: result for name, result in results.items() if isinstance(result, Topic)}
        if validate_only or not planned:
            answered([results[name] for name in names])
            return
        request = CreateTopics({name: _plan_of(topic) for name, topic in planned.items()})
        self._change(request, names, results, planned, _led(planned), timeout_ms, answered)

    def _planned(self, new: NewTopic, image: MetadataImage) -> Topic:
        check_name(new.name, image, ())
        if self._is_deleting(new.name):
            raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{new.name}' is marked for deletion.")
        configs = check_configs(new.configs)
        placed = plan_replicas(new, image, self._defaults, self._random)
        partitions = (Partition(each, replicas[0], 0, replicas, replicas) for each, replicas in enumerate(placed))
        return Topic(new.name, members.random_id(self._draw_uuid), tuple(partitions), configs)

    def create_partitions(
        self, wanted: Sequence[MorePartitions], timeout_ms: int, answered: Answered, *, validate_only: bool = False
    ) -> None:
        image = self._image
        names = [each.topic for each in wanted]
        results: dict[str, TopicResult] = {}
        for name, count, assignments in wanted:
            try:
                if self._is_deleting(name):
                    raise ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
                topic = image.topics.get(name)
                if topic is None:
                    raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
                if self._is_moving(name):
                    raise ProtocolError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Replicas of the topic '{name}' move.")
                placed = plan_more_partitions(topic, count, assignments, image, self._random)
                added = (
                    Partition(each, replicas[0], 0, replicas, replicas)
                    for each, replicas in enumerate(placed, len(topic.partitions))
                )
                results[name] = topic.changed(partitions=(*topic.partitions, *added))
            except ProtocolError as error:
                results[name] = error
        planned = {name: result for name, result in results.items() if isinstance(result, Topic)}
        if validate_only or not planned:
            answered([results[name] for name in names])
            return
        request = GrowTopics(
            {
                name: {
                    each.partition_id: each.replicas for each in topic.partitions[len(image.topics[name].partitions) :]
                }
                for name, topic in planned.items()
            }
        )
        self._change(request, names, results, planned, _led(planned), timeout_ms, answered)

    def delete_topics(self, names: Sequence[str], timeout_ms: int, answered: Answered) -> None:
        topics = {name: topic for name in names if (topic := self._image.topics.get(name)) is not None}
        unknown = ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        results: dict[str, TopicResult] = {name: topics.get(name, unknown) for name in names}

        def is_gone(now: MetadataImage, name: str) -> TopicResult | None:
            topic = now.topics.get(name)
            return topics[name] if topic is None or topic.topic_id != topics[name].topic_id else None

        if not topics:
            answered([results[name] for name in names])
            return
        self._change(DeleteTopics(list(topics)), names, results, topics, is_gone, timeout_ms, answered)

    def _change(
        self,
        request: TopicRequest,
        names: Sequence[str],
        results: Mapping[str, TopicResult],
        planned: Mapping[str, Topic],
        is_done: IsDone,
        timeout_ms: int,
        answered: Answered,
    ) -> None:
        """Ask the controller, then wait until `is_done` for each of the `planned` topics, then answer for `names`."""

        def written(codes: TopicCodes) -> None:
            known = {name: result for name, result in results.items() if name not in planned}
            for name in planned:
                if code := codes.get(name, ErrorCode.UNKNOWN_SERVER_ERROR):
                    known[name] = ProtocolError(code)
            self._await(names, known, is_done, timeout_ms, answered)

        self._ask(request, written)

    def await_leaders(
        self, leaders: Mapping[TopicPartition, int], timeout_ms: int, shown: Callable[[frozenset[TopicPartition]], None]
    ) -> None:
        by_topic: dict[str, dict[TopicPartition, int]] = {}
        for partition, leader in leaders.items():
            by_topic.setdefault(partition.topic, {})[partition] = leader
        names = list(by_topic)

        def is_shown(image: MetadataImage, name: str) -> TopicResult | None:
            for partition, leader in by_topic[name].items():
                found = image.partition(partition)
                if found is None or found.leader != leader:
                    return None
            return image.topics[name]

        def answered(results: list[TopicResult]) -> None:
            late = [name for name, result in zip(names, results, strict=True) if isinstance(result, ProtocolError)]
            shown(frozenset(each for name in late for each in by_topic[name]))

        self._await(names, {}, is_shown, timeout_ms, answered)

    def _await(
        self, names: Sequence[str], known: dict[str, TopicResult], is_done: IsDone, timeout_ms: int, answered: Answered
    ) -> None:
        self._awaited.add(names, known, is_done, timeout_ms, answered, lambda: self._image)
        if self._awaited.seconds_left() is not None:
            self.on_due()

    def ensure(self, names: Iterable[str]) -> list[TopicResult]:
        # Through a generator: over a list of a million names the loop in C would keep all other threads waiting.
        distinct = list(dict.fromkeys(name for name in names))
        topics = self._image.topics
        absent = [name for name in distinct if name not in topics]
        if len(absent) > MAX_PARTITIONS_PER_REQUEST:
            return [topics.get(name, TOO_MANY_PARTITIONS) for name in distinct]
        refused = self._write_new(absent) if absent else {}
        return [topics[name] if name in topics else refused[name] for name in distinct]

    def _write_new(self, names: Sequence[str]) -> dict[str, ProtocolError]:
        """Write the nodes of new topics with their defaults, as any member may. Returns why each is not there yet."""
        image = self._image
        results: dict[str, ProtocolError] = {}
        planned: dict[str, Topic] = {}
        for name in names:
            try:
                planned[name] = self._planned(self._as_default(name, image), image)
            except ProtocolError as error:
                results[name] = error
        try:
            self._write_topics(list(planned.values()))
        except (StoreUnavailable, StoreError) as error:
            results |= {name: ProtocolError(error.code, str(error)) for name in planned}
        is_coming = ProtocolError(ErrorCode.LEADER_NOT_AVAILABLE)
        return {name: results.get(name, is_coming) for name in names}

    def _as_default(self, name: str, image: MetadataImage) -> NewTopic:
        new = self._internal_topics.get(name)
        if new is None:
            return NewTopic(name)
        if name in self._exact:
            return new
        sized = sized_to_cluster(new, len(image.brokers))
        if sized.replication_factor < new.replication_factor:
            log.warning(
                "%s gets %d of its %d replicas, for no more brokers are there; once they are: kbroker reassign plan %s "
                "--replication-factor %d --execute",
                name, sized.replication_factor, new.replication_factor, name, new.replication_factor,
            )  # fmt: skip
        return sized

    def _write_topics(self, topics: Sequence[Topic]) -> None:
        """Write the configs and assignments of new topics. A topic that exists already is left as it is."""
        outcomes = self._store.multi_many([_creation(topic, has_configs=False) for topic in topics])
        again = [
            topic
            for topic, outcome in zip(topics, outcomes, strict=True)
            if isinstance(outcome, NodeExists) and outcome.path == paths.topic_config_path(topic.name)
        ]
        # A node of configs without a topic is left of one that was deleted.
        outcomes += self._store.multi_many([_creation(topic, has_configs=True) for topic in again])
        made = [
            topic.name
            for topic, outcome in zip([*topics, *again], outcomes, strict=True)
            if not isinstance(outcome, StoreError)
        ]
        if made:
            log.info("topics created by being named: %s", listed(made, MOST_NAMES))

    # --- configs --------------------------------------------------------------------------------------------------

    def set_topic_configs(self, name: str, change: Callable[[Topic], Mapping[str, str]]) -> None:
        topic = self._image.topics.get(name)
        if topic is None:
            raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        self._write_configs(f"topics/{name}", lambda current: change(topic.changed(configs=current)))
        self._read_topic_configs([name])

    def set_broker_configs(self, entity: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        self._write_configs(f"brokers/{entity}", change)
        self._broker_configs_changed()

    def _write_configs(self, entity_path: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Replace configs in the tree by what `change` makes of them, and tell all members.

        It is called again if others have changed them meanwhile.
        """
        path = f"/config/{entity_path}"
        for _ in range(MOST_ATTEMPTS):
            found = self._store.get_many([path])[0]
            data = paths.encode_config(change({} if found is None else self._nodes.configs_in(path, found[0])))
            write = Create(path, data) if found is None else SetData(path, data, found[1].version)
            try:
                self._store.multi([write, notification(entity_path)])
                return
            except (BadVersion, NodeExists, NoNode) as error:
                if error.path != path:
                    raise
        raise StoreUnavailable(f"{path} is changed by others again and again; nothing was changed")

    def set_group_configs(self, group_id: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        if not self.only_kbrokers:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Groups have no configs while a Kafka is a member.")
        path = paths.group_config_path(group_id)
        for _ in range(MOST_ATTEMPTS):
            root, found = self._store.get_many([paths.GROUP_CONFIGS, path])
            configs = change({} if found is None else self._nodes.configs_in(path, found[0]))
            # Kafka's notifications are not for groups: a Kafka that joins later would stop at one. The version of the
            # parent tells the others.
            steps: list[Operation] = [
                Create(paths.GROUP_CONFIGS) if root is None else SetData(paths.GROUP_CONFIGS, b"", root[1].version)
            ]
            if configs:
                data = paths.encode_config(configs)
                steps.append(Create(path, data) if found is None else SetData(path, data, found[1].version))
            elif found is not None:
                steps.append(Delete(path, found[1].version))
            try:
                self._store.multi(steps)
                self.group_configs_changed()
                return
            except (BadVersion, NodeExists, NoNode):
                continue
        raise StoreUnavailable(f"{path} is changed by others again and again; nothing was changed")

    def rebase_broker_configs(self, rebase: Callable[[Mapping[str, str]], None]) -> None:
        rebase(self.dynamic_broker_configs())

    def dynamic_broker_configs(self) -> dict[str, str]:
        configs = self._image.broker_configs
        return {**configs.get(paths.DEFAULT_ENTITY, {}), **configs.get(str(self._node_id), {})}

    def _host_or_fail(self) -> MemberHost:
        assert self._host is not None, "SharedTopics.serve has not been called"
        return self._host


def _led(planned: Mapping[str, Topic]) -> IsDone:
    """Return a function that says whether all partitions of a planned topic are there, each with a leader."""

    def is_done(image: MetadataImage, name: str) -> TopicResult | None:
        topic = image.topics.get(name)
        if topic is None or len(topic.partitions) < len(planned[name].partitions):
            return None
        return topic if all(each.leader >= 0 for each in topic.partitions) else None

    return is_done


def _is_same(topic: Topic, other: Topic) -> bool:
    """Whether a topic is another state of the other one, and not one that was made later with its name."""
    return topic is other or topic.topic_id == other.topic_id != NO_UUID


def _leader_changes(before: Topic | None, after: Topic) -> int:
    if before is None or before.topic_id != after.topic_id:
        return 0
    pairs = zip(before.partitions, after.partitions, strict=False)
    return sum(old.leader != new.leader and new.leader >= 0 for old, new in pairs)


def _plan_of(topic: Topic) -> PlannedTopic:
    return PlannedTopic(_assignment_of(topic), topic.configs)


def _assignment_of(topic: Topic) -> paths.TopicAssignment:
    replicas = {partition.partition_id: partition.replicas for partition in topic.partitions}
    return paths.TopicAssignment(topic.topic_id, replicas, {}, {})


def _creation(topic: Topic, *, has_configs: bool) -> list[Operation]:
    """The operations that create a topic; the controller makes its partitions then."""
    path, data = paths.topic_config_path(topic.name), paths.encode_config(topic.configs)
    assignment = paths.encode_topic(_assignment_of(topic))
    return [
        SetData(path, data) if has_configs else Create(path, data),
        Create(paths.topic_path(topic.name), assignment),
    ]
