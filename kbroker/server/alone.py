"""The cluster of a broker that is alone: its coordination store in SQLite, and its topics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.clock import Clock
from kbroker.cluster.new_topics import TopicDefaults
from kbroker.cluster.topics import Topics
from kbroker.config.broker_config import BrokerConfig
from kbroker.config.definitions import DEFAULT_NODE_ID
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.store import Store
from kbroker.model import Endpoint, TopicPartition
from kbroker.server.found_logs import find_store, found_partitions, refuse_carried
from kbroker.server.local_partitions import LocalPartitions, internal_topics
from kbroker.storage.directory import MetaProperties
from kbroker.storage.log_manager import LogManager

if TYPE_CHECKING:
    from kbroker.replication.surroundings import RoleListeners
    from kbroker.server.home import OnStop


class Alone:
    """A `home.Home` for a broker that is the whole cluster."""

    partitions: None = None
    controller: None = None
    others: None = None
    measure: None = None
    lanes: None = None

    def __init__(self, config: BrokerConfig, logs: LogManager, clock: Clock):
        self._config = config
        self._logs = logs
        self._clock = clock

    def open(self, identity: MetaProperties | None, on_stop: OnStop) -> None:
        config, logs = self._config, self._logs
        refuse_carried(config.log_dirs)
        self._store_path = find_store(logs)
        self._store = EmbeddedStore(self._store_path)
        on_stop("store", self._store.stop)
        self.session: Store = self._store.connect()
        self.node_id = config.node_id
        if self.node_id < 0:
            self.node_id = DEFAULT_NODE_ID if identity is None or identity.node_id is None else identity.node_id
        self.cluster = Topics(
            self.session,
            self.node_id,
            defaults=TopicDefaults(config["num.partitions"], config["default.replication.factor"]),
            cluster_id=identity.cluster_id if identity else None,
            internal_topics=internal_topics(config),
            found_partitions=lambda: found_partitions(logs.usable_directories),
            clock=self._clock,
        )

    def attach(self, partitions: LocalPartitions, listeners: RoleListeners) -> None:
        self._local = partitions

    def reachable(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        return endpoints

    def join(self, endpoints: Sequence[Endpoint]) -> None:
        """Become the controller of the cluster, and finish what the last run has left unfinished."""
        self.cluster.register(endpoints, self._config["broker.rack"])
        self.cluster.start(self._local, new_leader_epochs=not self._logs.was_stopped_cleanly)

    def await_told(self) -> None:
        """No-op: a broker that is alone knows its cluster."""

    def leave(self) -> None:
        """No-op: there is nobody to hand over to."""

    def directory_failed(self, directory: str, partitions: Sequence[TopicPartition]) -> None:
        """Take the partitions in a failed directory offline; if the store was in it, it takes no more changes."""
        if Path(self._store_path).parent == Path(directory):
            self._store.fail(f"log directory {directory} is offline")
        self.cluster.mark_failed(partitions)

    def give_up(self) -> None:
        """No-op: the start waits for nobody."""

    def take_config(self, config: BrokerConfig) -> None:
        """No-op: nothing here is changed while the broker runs."""

    def problems(self) -> list[str]:
        return []
