"""The parts of the broker that request handlers may use: one object, built by `server/broker.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.server.handlers.shared.features import Features

if TYPE_CHECKING:
    from kbroker._core.server.peer import Connection
    from kbroker.clock import Clock
    from kbroker.cluster.broker_configs import BrokerConfigs
    from kbroker.cluster.cluster import Cluster
    from kbroker.cluster.consumer_offsets import ConsumerOffsets
    from kbroker.cluster.controller import Controller
    from kbroker.cluster.producer_ids import ProducerIdSource
    from kbroker.config.broker_config import BrokerConfig
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.model import Endpoint
    from kbroker.replication.acks import ReplicationWaits
    from kbroker.replication.partitions import ReplicatedPartitions
    from kbroker.storage.log_manager import LogManager
    from kbroker.transactions.coordinator import TransactionCoordinator
    from kbroker.transactions.markers import MarkerWriter
    from kbroker.transactions.verifier import Verifier


class Services:
    """The broker's parts, for handlers, which must not assign to its attributes.

    `groups` and `transactions` return the coordinators, which are made at their first use.
    """

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        node_id: int,
        cluster_id: str,
        cluster: Cluster,
        broker_configs: BrokerConfigs,
        logs: LogManager,
        groups: Callable[[], GroupCoordinator],
        transactions: Callable[[], TransactionCoordinator],
        markers: MarkerWriter,
        verifier: Verifier,
        consumer_offsets: ConsumerOffsets,
        producer_ids: ProducerIdSource,
        endpoints_for: Callable[[Connection], Endpoint],
        waits: ReplicationWaits,
        partitions: ReplicatedPartitions | None = None,
        controller: Controller | None = None,
    ):
        self.config = config
        self.clock = clock
        self.features = Features(cluster, clock)
        """What is served, by the kind of the cluster's members."""
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.cluster = cluster
        self.broker_configs = broker_configs
        self.logs = logs
        self._groups = groups
        self._transactions = transactions
        self.markers = markers
        """Writes markers to this broker's own logs."""
        self.verifier = verifier
        """Asks the coordinators of transactions, here or on other brokers."""
        self.consumer_offsets = consumer_offsets
        self.producer_ids = producer_ids
        self.endpoints_for = endpoints_for
        """This broker's endpoint for the client of a connection: the advertised one, else the one it connected to."""
        self.waits = waits
        """Calls who waits for replicas."""
        self.partitions = partitions
        """The partitions of this member of a cluster; None if the broker is alone."""
        self.controller = controller
        """This member's controller, active or not; None if the broker is alone."""

    @property
    def groups(self) -> GroupCoordinator:
        return self._groups()

    @property
    def transactions(self) -> TransactionCoordinator:
        return self._transactions()
