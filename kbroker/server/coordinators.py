"""The coordinators of groups and transactions, and what joins them to logs, to metadata and to other brokers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.clock import Clock
from kbroker.cluster.producer_ids import AllocatedProducerIds, ProducerIds, ProducerIdSource
from kbroker.coordination.store import Store
from kbroker.model import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from kbroker.replication.acks import ReplicationWaits
from kbroker.rules.java_hash import java_string_hash
from kbroker.server.group_topics import image_topics
from kbroker.server.local_markers import LocalMarkers
from kbroker.server.on_demand import OnDemand
from kbroker.server.state_topics import CoordinatorRoles, StateTopic
from kbroker.storage.log_manager import LogManager
from kbroker.transactions.verifier import LocalVerifier, Verifier

if TYPE_CHECKING:
    from kbroker.cluster.cluster import Cluster
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.server.home import OtherBrokers
    from kbroker.state_log.deadlines import Deadlines
    from kbroker.transactions.coordinator import TransactionCoordinator
    from kbroker.transactions.marker_sender import MarkerSender
    from kbroker.transactions.markers import MarkerWriter

LOG = logging.getLogger(__name__)


class Coordinators:
    """Both coordinators, each made at its first use. `others` is None for a broker that is alone.

    `limits_of_group` returns the limits of a group that has configs of its own; `expire_others` expires offsets that
    are kept elsewhere.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        clock: Clock,
        cluster: Cluster,
        logs: LogManager,
        waits: ReplicationWaits,
        store: Store,
        *,
        limits_of_group: Callable[[str], dict[str, int]],
        expire_others: Callable[[], object],
        others: OtherBrokers | None = None,
    ):
        self._config = config
        self._clock = clock
        self._cluster = cluster
        self._logs = logs
        self._waits = waits
        self._limits_of_group = limits_of_group
        self._expire_others = expire_others
        self._hosted = None if others is None else others.hosted
        self.groups: OnDemand[GroupCoordinator] = OnDemand(self._make_groups)
        self.transactions: OnDemand[TransactionCoordinator] = OnDemand(self._make_transactions)
        self.markers = LocalMarkers(cluster, logs, waits, self.groups, config["request.timeout.ms"])
        """Writes to this broker's own logs."""
        self.roles = CoordinatorRoles(self.groups, self.transactions)
        """What is to be told of the partitions that a member leads."""
        self._sender: MarkerSender | None = None
        self._lead_checks = None if others is None else others.lead_checks
        self._allocated: AllocatedProducerIds | None = None
        self._between: Deadlines | None = None
        """The thread that carries out what other brokers have answered; made with `others`."""
        self.producer_ids: ProducerIdSource
        self.verifier: Verifier = LocalVerifier(self.transactions.get)
        if others is None:
            self.producer_ids = ProducerIds(store, cluster.node_id)
        else:
            self.producer_ids = self._join_others(others)

    def _join_others(self, others: OtherBrokers) -> ProducerIdSource:
        from kbroker.state_log.deadlines import Deadlines
        from kbroker.transactions.marker_sender import MarkerSender
        from kbroker.transactions.peer_verifier import PeerVerifier

        cluster, timeout_ms = self._cluster, int(self._config["request.timeout.ms"])
        between = self._between = Deadlines("coordinator-peers", self._clock)
        self._sender = MarkerSender(
            cluster.node_id, self.markers, self._leader_of, others.peers, between.soon, timeout_ms
        )
        self.verifier = PeerVerifier(
            cluster.node_id,
            self.verifier,
            self._transaction_coordinator_of,
            others.peers,
            between,
            timeout_ms=timeout_ms,
            add_wait_ms=self._config["add.partitions.to.txn.retry.backoff.max.ms"],
        )
        self._allocated = AllocatedProducerIds(cluster.node_id, lambda: cluster.broker_epoch, others.ask_controller)
        cluster.on_change(self._metadata_changed)
        cluster.on_kind_change(self._kind_changed)
        return self._allocated

    # --- life --------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Serve from now on. Groups are started first: they are told of the markers that are written."""
        self.groups.start()
        self.transactions.start()

    def stop(self) -> None:
        """Stop serving. Requests that wait are answered with COORDINATOR_NOT_AVAILABLE."""
        self.transactions.stop()
        self.groups.stop()
        if self._between is not None:
            self._between.stop()

    # --- making ------------------------------------------------------------------------------------------
    def _make_groups(self) -> GroupCoordinator:
        from kbroker.groups.coordinator import GroupCoordinator
        from kbroker.groups.options import GroupOptions

        config = self._config
        return GroupCoordinator(
            self._state_topic(
                GROUP_OFFSETS_TOPIC, config["offsets.topic.num.partitions"], config["offsets.commit.timeout.ms"]
            ),
            GroupOptions.from_settings(config, self._limits_of_group),
            self._clock,
            topics=lambda: image_topics(self._cluster.image),
            expire_others=self._expire_others,
            are_consumer_groups_served=lambda: self._cluster.only_kbrokers,
        )

    def _make_transactions(self) -> TransactionCoordinator:
        from kbroker.transactions.coordinator import TransactionCoordinator
        from kbroker.transactions.options import TransactionOptions

        config = self._config
        writer: MarkerWriter = self.markers if self._sender is None else self._sender
        return TransactionCoordinator(
            self._state_topic(
                TRANSACTION_STATE_TOPIC, config["transaction.state.log.num.partitions"], config["request.timeout.ms"]
            ),
            TransactionOptions.from_settings(config),
            self._clock,
            writer,
            self.producer_ids.next,
        )

    def _state_topic(self, name: str, partition_count: int, timeout_ms: int) -> StateTopic:
        return StateTopic(
            name,
            self._cluster,
            self._logs,
            self._waits,
            partition_count,
            timeout_ms,
            self._hosted,
            self._lead_checks,
        )

    # --- what the metadata says --------------------------------------------------------------------------
    def _metadata_changed(self) -> None:
        """Look again for leaders of partitions whose markers wait. It does not wait."""
        if self._sender is not None:
            self._sender.metadata_changed()
        if self.transactions.made is not None:
            self.transactions.made.metadata_changed()
        if self._allocated is not None and self._cluster.controller_id >= 0:
            self._allocated.fetch_ahead()

    def _kind_changed(self) -> None:
        """Let the groups look which protocols are served now. It does not wait."""
        if self.groups.made is not None:
            self.groups.made.kind_changed()

    def _leader_of(self, partition: TopicPartition) -> int | None:
        """The broker id of the partition's leader; -1 if it has none now, None if there is no such partition."""
        image = self._cluster.image
        known = image.partition(partition)
        if known is None:
            # Before the controller has told everything, a partition that is not known may be there all the same.
            return None if image.topic(TRANSACTION_STATE_TOPIC) is not None else -1
        return known.leader

    def _transaction_coordinator_of(self, transactional_id: str) -> int:
        """The broker id of the transactional id's coordinator; -1 if it is not known now."""
        topic = self._cluster.image.topic(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return -1
        return topic.partitions[java_string_hash(transactional_id) % len(topic.partitions)].leader
