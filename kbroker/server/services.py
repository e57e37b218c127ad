"""What a request handler may use: one object, built by `server/broker.py`, read-only to handlers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker._core.processor import Connection
    from kbroker.clock import Clock
    from kbroker.cluster.broker_configs import BrokerConfigs
    from kbroker.cluster.consumer_offsets import ConsumerOffsets
    from kbroker.cluster.producer_ids import ProducerIds
    from kbroker.cluster.topics import Topics
    from kbroker.config.broker_config import BrokerConfig
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.model import Endpoint
    from kbroker.storage.log_manager import LogManager
    from kbroker.transactions.coordinator import TransactionCoordinator
    from kbroker.transactions.markers import MarkerWriter


@dataclass(slots=True)
class Services:
    """The broker's parts, by the names that handlers know them by."""

    config: BrokerConfig
    clock: Clock
    node_id: int
    cluster_id: str
    cluster: Topics
    broker_configs: BrokerConfigs
    logs: LogManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    markers: MarkerWriter
    consumer_offsets: ConsumerOffsets
    producer_ids: ProducerIds
    endpoints_for: Callable[[Connection], Endpoint]
    """Where this broker is reached by who came in on that connection (advertised.listeners, or what was dialled)."""
