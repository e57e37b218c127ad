"""Joins the cluster's topics, the logs on this broker's disks, and the two coordinators whose state is in topics.

A broker that is alone has all of its topics' changes carried out here; `member_partitions.py` uses it for a member.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from kbroker.cluster.image import Partition, Topic
from kbroker.cluster.new_topics import NewTopic
from kbroker.config.broker_config import BrokerConfig
from kbroker.config.definitions import SETTINGS
from kbroker.errors import ConfigError
from kbroker.model import GROUP_OFFSETS_TOPIC, NO_LEADER_EPOCH, TRANSACTION_STATE_TOPIC, TopicPartition
from kbroker.rules.topic_names import listed
from kbroker.server.log_options import cleaner_options, log_options
from kbroker.storage.log_manager import EpochOf, LogManager, Resolve
from kbroker.storage.options import LogOptions

if TYPE_CHECKING:
    from kbroker.cluster.cluster import Cluster
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.server.on_demand import OnDemand
    from kbroker.transactions.coordinator import TransactionCoordinator

LOG = logging.getLogger(__name__)

MOVING_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"

MOST_NAMES = 100
"""How many topics one line of the log names."""


def internal_topics(config: BrokerConfig) -> dict[str, NewTopic]:
    """Return how the broker's internal topics are created, by name; as in Kafka."""
    offsets = NewTopic(
        GROUP_OFFSETS_TOPIC,
        config["offsets.topic.num.partitions"],
        config["offsets.topic.replication.factor"],
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config["offsets.topic.segment.bytes"]),
        },
    )
    transactions = NewTopic(
        TRANSACTION_STATE_TOPIC,
        config["transaction.state.log.num.partitions"],
        config["transaction.state.log.replication.factor"],
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config["transaction.state.log.min.isr"]),
            "segment.bytes": str(config["transaction.state.log.segment.bytes"]),
            "unclean.leader.election.enable": "false",
        },
    )
    return {GROUP_OFFSETS_TOPIC: offsets, TRANSACTION_STATE_TOPIC: transactions}


_Own = tuple[bool, bool, frozenset[tuple[str, str]]]
"""What the options of a topic's logs depend on: whether the topic's own settings are known, whether it may have more
than one replica, and its own settings."""


class LocalPartitions:
    """Keeps this broker's logs as the cluster's metadata says; a `cluster.topics.PartitionHost`."""

    def __init__(self, logs: LogManager, config: BrokerConfig, node_id: int, on_config: Callable[[BrokerConfig], None]):
        self._logs = logs
        self._node_id = node_id
        self._is_member = config.zookeeper is not None
        self.static = config
        """The settings that the broker was started with, and those it has read again since; dynamic ones go on top."""
        self._config = config
        self._on_config = on_config
        self._topics: Cluster | None = None
        self._groups: OnDemand[GroupCoordinator] | None = None
        self._transactions: OnDemand[TransactionCoordinator] | None = None
        logs.moves.set_rate(config[MOVING_RATE])

    def resolver(self, topics: Cluster) -> Resolve:
        """Return a function, for one start, that gives the topic id and options of a log found on disk, or None.

        Topics with the same settings of their own share one options object: making it costs more than everything else
        that is done for such a log.
        """
        shared: dict[_Own, LogOptions] = {}

        def resolve(topic_partition: TopicPartition) -> tuple[UUID, LogOptions] | None:
            topic = topics.owner_of(topic_partition)
            if topic is None:
                return None
            is_replicated = self._is_member and topic.may_be_replicated
            own = (topic.configs_given, is_replicated, frozenset(topic.configs.items()))
            options = shared.get(own)
            if options is None:
                options = shared[own] = self.options_of(topic)
            return topic.topic_id, options

        return resolve

    @staticmethod
    def epoch_of(topics: Cluster) -> EpochOf:
        """Return a function that gives a partition's leader epoch by the metadata, for the logs found at the start."""
        image = topics.image

        def epoch(topic_partition: TopicPartition) -> int:
            partition = image.partition(topic_partition)
            return NO_LEADER_EPOCH if partition is None else partition.leader_epoch

        return epoch

    def serve(
        self, topics: Cluster, groups: OnDemand[GroupCoordinator], transactions: OnDemand[TransactionCoordinator]
    ) -> None:
        """From now on, tell groups and transactions of changes too. Warns of topics that are not fully served."""
        self._topics, self._groups, self._transactions = topics, groups, transactions
        strangers = [topic.name for topic in topics.image.topics.values() if not topic.configs_given]
        if strangers:
            LOG.warning(
                "nothing is deleted from or compacted in %d topics whose settings are not known: %s; give them with "
                "`kbroker configs alter topic NAME`, or all of them with `kbroker cluster import`",
                len(strangers), listed(sorted(strangers), MOST_NAMES),
            )  # fmt: skip
        elsewhere = [
            topic.name
            for topic in topics.image.topics.values()
            if any(topics.node_id not in partition.replicas for partition in topic.partitions)
        ]
        if elsewhere:
            LOG.warning(
                "this is broker %d, and partitions of %d topics belong to others, so that nobody serves them: %s; is "
                "broker.id right, in the settings or in meta.properties?",
                topics.node_id, len(elsewhere), listed(sorted(elsewhere), MOST_NAMES),
            )  # fmt: skip

    def create_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        options = self.options_of(topic)
        for partition in partitions:
            log = self._logs.get(TopicPartition(topic.name, partition.partition_id))
            if log is None:
                # During the start (`_topics` is None) a log that is not found is not new: its directory may be offline.
                is_new = self._topics is not None
                log = self._logs.create(topic.name, topic.topic_id, partition.partition_id, options, is_new=is_new)
            if log.leader_epoch != partition.leader_epoch:
                log.be_alone(partition.leader_epoch)
        # A coordinator opens the partitions of its new topic when they are first asked for (`StateTopic.replica`).

    def delete_partitions(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            coordinator = self._coordinator_of(topic.name)
            if coordinator is not None:
                coordinator.shards.resign(partition.partition_id)
            self._logs.delete(TopicPartition(topic.name, partition.partition_id))
        if topic.name != GROUP_OFFSETS_TOPIC and (groups := self._made_groups()) is not None:
            groups.offsets.forget_topics([topic.name])

    def topics_deleted(self, names: Sequence[str]) -> None:
        """Let the groups forget their offsets of topics that are deleted; soon, on another thread."""
        if names and (groups := self._made_groups()) is not None:
            groups.forget_topics(names)

    def _made_groups(self) -> GroupCoordinator | None:
        """The group coordinator, or None if it is not made yet."""
        return None if self._groups is None else self._groups.made

    def _coordinator_of(self, topic_name: str) -> GroupCoordinator | TransactionCoordinator | None:
        """The coordinator that keeps its state in the topic; None if there is none or it is not made yet."""
        if topic_name == GROUP_OFFSETS_TOPIC:
            return self._made_groups()
        if topic_name == TRANSACTION_STATE_TOPIC and self._transactions is not None:
            return self._transactions.made
        return None

    def follow_topic(self, topic: Topic) -> None:
        """Give the topic's logs its options, if they have others."""
        options = self.options_of(topic)
        logs = [self._logs.get(TopicPartition(topic.name, partition.partition_id)) for partition in topic.partitions]
        if any(log is not None and log.options != options for log in logs):
            self._set_options(topic, options)

    def update_topic(self, topic: Topic) -> None:
        self._set_options(topic, self.options_of(topic))
        self._logs.free_space()

    def options_of(self, topic: Topic) -> LogOptions:
        """Return the options of the topic's logs."""
        return self._options(topic, self._config)

    def _options(self, topic: Topic, config: BrokerConfig) -> LogOptions:
        return log_options(
            topic.configs,
            config,
            self._node_id,
            configs_given=topic.configs_given,
            is_replicated=self._is_member and topic.may_be_replicated,
        )

    def _set_options(self, topic: Topic, options: LogOptions) -> None:
        logs = [self._logs.get(TopicPartition(topic.name, partition.partition_id)) for partition in topic.partitions]
        was_compacted = any(log is not None and log.options.compacted for log in logs)
        for log in logs:
            if log is not None:
                log.update_options(options)
        if was_compacted and not options.compacted:
            # From now on recovery takes a gap above the recovery point for damage. Compaction may have left gaps there,
            # so move the recovery point past them.
            self._logs.write_checkpoints()

    def rebase(self, static: BrokerConfig, dynamic: Mapping[str, str]) -> None:
        """Put the dynamic configs on top of other static settings than before.

        Raises ConfigError, and changes nothing, if they do not go together.
        """
        before, self.static = self.static, static
        try:
            self.update_broker_configs(dynamic)
        except ConfigError:
            self.static = before
            raise

    def update_broker_configs(self, configs: Mapping[str, str]) -> None:
        # The store may hold names that this broker does not know or cannot change while it runs, as in Kafka: a broker
        # of another release may know them. They are ignored here.
        known = {name: text for name, text in configs.items() if name in SETTINGS and SETTINGS[name].dynamic}
        before, self._config = self._config, self.static.with_dynamic(known)
        self._on_config(self._config)
        self._logs.producer_id_expiration_ms = self._config["producer.id.expiration.ms"]
        self._logs.moves.set_rate(self._config[MOVING_RATE])
        self._logs.cleaner.update_options(cleaner_options(self._config))
        if self._topics is not None:
            self._follow_configs(self._topics.image.topics.values(), before)
            self._logs.free_space()

    def update_group_configs(self, group_id: str) -> None:
        if (groups := self._made_groups()) is not None:
            groups.consumers.update_limits(group_id)

    def _follow_configs(self, topics: Iterable[Topic], before: BrokerConfig) -> None:
        """Update the logs whose options have changed since the configs were `before`.

        Topics with the same settings of their own share the work.
        """
        changed: dict[_Own, LogOptions | None] = {}
        for topic in topics:
            is_replicated = self._is_member and topic.may_be_replicated
            own = (topic.configs_given, is_replicated, frozenset(topic.configs.items()))
            if own not in changed:
                options = self.options_of(topic)
                options_before = self._options(topic, before)
                changed[own] = None if options == options_before else options
            options_now = changed[own]
            if options_now is not None:
                self._set_options(topic, options_now)
