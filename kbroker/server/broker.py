"""The broker: builds, starts and stops every part, in one visible order."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker._core.base.receive_buffers import release_free_memory
from kbroker._core.server.fetch.sessions import FetchSessions
from kbroker._core.server.peer import Connection
from kbroker.clock import SystemClock
from kbroker.cluster.broker_configs import BrokerConfigs
from kbroker.cluster.consumer_offsets import ConsumerOffsets
from kbroker.cluster.group_configs import effective_group_configs
from kbroker.config.broker_config import BrokerConfig, Reading
from kbroker.config.definitions import SETTINGS
from kbroker.config.listeners import parse_counts
from kbroker.model import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, Endpoint
from kbroker.net.endpoints import AdvertisedEndpoints
from kbroker.replication.acks import ReplicationWaits
from kbroker.server.acceptor import Acceptor, AddressLimits, ConnectionLimits, raise_descriptor_limit
from kbroker.server.alone import Alone
from kbroker.server.coordinators import Coordinators
from kbroker.server.dispatch import Dispatcher
from kbroker.server.found_logs import refuse_foreign
from kbroker.server.handler_pool import HandlerPool
from kbroker.server.handlers.shared.services import Services
from kbroker.server.local_partitions import LocalPartitions
from kbroker.server.log_options import storage_options
from kbroker.server.on_demand import late
from kbroker.server.processors import ProcessorLimits, Processors
from kbroker.server.replication_throttle import LEADER_RATE, replication_throttle
from kbroker.server.request_channel import RequestChannel
from kbroker.storage.log_manager import LogManager

if TYPE_CHECKING:
    from kbroker.cluster.cluster import Cluster
    from kbroker.server.home import Home

LOG = logging.getLogger(__name__)

# How long a thread that returns from compiled code waits for the GIL before the holder has to give it up. Python's
# default is 5 ms.
SWITCH_INTERVAL_S = 0.0005
RACK_AWARE = ("org.apache.kafka.common.replica.RackAwareReplicaSelector", "RackAwareReplicaSelector")
PER_IP_OVERRIDES = "max.connections.per.ip.overrides"


def _keep_for_others() -> None:
    """Keep the offsets in ZooKeeper, as Kafka does: consumers of 0.8 and other brokers commit there unseen."""


class Broker:
    """One broker, from `start` to `stop`. `stop` may be called at any time, also after `start` has failed."""

    def __init__(self, config: BrokerConfig):
        self.config = config
        self.clock = SystemClock()
        self.endpoints: tuple[Endpoint, ...] = ()
        """The bound listeners, each with its real port where port 0 was asked for."""
        self.is_ready = False
        self._has_started = False
        self._logs = LogManager(storage_options(config), clock=self.clock, is_member=config.zookeeper is not None)
        self._waits = ReplicationWaits()
        self._address_limits = AddressLimits(lambda: int(self.config["max.connections.per.ip"]))
        self._leader_throttle = replication_throttle(config, LEADER_RATE)
        self._services: Services | None = None
        self.on_fatal: Callable[[], object] = self._warn_of_going_on
        """Called on any thread when this broker must not go on as a member: its process is to stop it."""
        self._home: Home = self._member() if config.zookeeper else Alone(config, self._logs, self.clock)
        self._stops: list[tuple[str, Callable[[], object]]] = []

    def _member(self) -> Home:
        # Not imported by a broker that is alone: kazoo and the client take time.
        from kbroker.server.member import Member

        return Member(self.config, self._logs, self.clock, lambda: self.on_fatal())

    def _warn_of_going_on(self) -> None:
        LOG.error("broker %d goes on serving, but should be stopped", self.node_id)

    # --- start -------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start every part; requests are served when this returns.

        Raises KbrokerError (ConfigError, DirectoryInUse, StorageFailed, ...) if the broker cannot start.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        raise_descriptor_limit()
        self._open_cluster()
        self._open_server()
        self._start()

    def _open_cluster(self) -> None:
        """Open the log directories, the cluster that this broker is or is in, and the logs of its partitions."""
        config, logs, home = self.config, self._logs, self._home
        refuse_foreign(config.log_dirs)
        identity = logs.lock_directories()
        self._on_stop("logs", lambda: logs.stop(config["kbroker.stop.timeout.ms"] / 1000))
        home.open(identity, self._on_stop)
        self.node_id = home.node_id
        self._cluster: Cluster = home.cluster
        self._broker_configs = self._configs_over(config)
        self._partitions = LocalPartitions(logs, config, self.node_id, self._take_config)
        dynamic = self._cluster.dynamic_broker_configs()
        if dynamic:
            self._partitions.update_broker_configs(dynamic)
        logs.start(
            self._partitions.resolver(self._cluster),
            self.node_id,
            self._cluster.cluster_id,
            epoch_of=self._partitions.epoch_of(self._cluster),
        )
        self._waits.start()
        self._on_stop("replication waits", self._waits.stop)
        self._consumer_offsets = ConsumerOffsets(
            home.session,
            self.clock,
            config["kbroker.zookeeper.offsets.max.nodes"],
            config["offsets.retention.minutes"] * 60_000,
        )
        self._coordinators = Coordinators(
            config,
            self.clock,
            self._cluster,
            logs,
            self._waits,
            home.session,
            limits_of_group=self._limits_of_group,
            expire_others=self._consumer_offsets.expire if self._cluster.is_alone else _keep_for_others,
            others=home.others,
        )
        home.attach(self._partitions, self._coordinators.roles)

    def _limits_of_group(self, group_id: str) -> dict[str, int]:
        """The limits of a group that has configs of its own, by the field names of `ConsumerLimits`; {} for others."""
        image = self._cluster.image
        own = image.group_configs.get(group_id)
        if own is None:
            return {}
        values = effective_group_configs(group_id, own, self._broker_configs.lookup(image))
        return {name.removeprefix("consumer.").replace(".", "_"): value for name, value in values.items()}

    def _configs_over(self, config: BrokerConfig) -> BrokerConfigs:
        """The broker's configs in layers, over the settings that it was started with."""
        given = {name: each.text for name, each in config.given.items()}
        node_id = str(self.node_id)
        given |= {"broker.id": node_id, "node.id": node_id}
        return BrokerConfigs(self.node_id, SETTINGS, given, config.with_dynamic)

    def read_again(self, fresh: BrokerConfig) -> Reading:
        """Apply those settings in `fresh` that may change while the broker runs; the result names the others.

        Raises ConfigError, and changes nothing, if the settings do not go together.
        """
        reading = self._partitions.static.read_again(fresh)
        if reading.taken:
            self._cluster.rebase_broker_configs(lambda dynamic: self._partitions.rebase(reading.config, dynamic))
            assert self._services is not None, "read_again is for a broker that serves"
            self._broker_configs = self._services.broker_configs = self._configs_over(reading.config)
        return reading

    def _take_config(self, config: BrokerConfig) -> None:
        """Give the parts the settings that are in force after a dynamic change."""
        self.config = config
        self._home.take_config(config)
        self._leader_throttle.rate = config[LEADER_RATE]
        self._address_limits.override(parse_counts(config[PER_IP_OVERRIDES]))
        if self._services is not None:
            self._services.config = config

    def _open_server(self) -> None:
        """Make the processors and handlers and bind the listeners; nothing runs yet."""
        config, home = self.config, self._home
        self._services = Services(
            config=config,
            clock=self.clock,
            node_id=self.node_id,
            cluster_id=self._cluster.cluster_id,
            cluster=self._cluster,
            broker_configs=self._broker_configs,
            logs=self._logs,
            groups=self._coordinators.groups.get,
            transactions=self._coordinators.transactions.get,
            markers=self._coordinators.markers,
            verifier=self._coordinators.verifier,
            consumer_offsets=self._consumer_offsets,
            producer_ids=self._coordinators.producer_ids,
            endpoints_for=self._endpoints_for,
            waits=self._waits,
            partitions=home.partitions,
            controller=home.controller,
        )
        self._channel = RequestChannel(config["queued.max.requests"])
        lanes = home.lanes
        self._dispatcher = Dispatcher(self._services, self._channel, lanes=None if lanes is None else lanes.channels)
        self._handlers = HandlerPool(config["num.io.threads"], self._channel, self._dispatcher.serve)
        self._processors = Processors(
            config["num.network.threads"],
            self._logs.partition_table,
            FetchSessions(
                config["max.incremental.fetch.session.cache.slots"],
                fetch_max_bytes=config["fetch.max.bytes"],
                leader_of=partial(late("handlers.shared.current_leader", "current_leader"), self._services),
                read_replica_of=(
                    partial(late("handlers.shared.read_replicas", "read_replica_of"), self._services)
                    if config["replica.selector.class"] in RACK_AWARE
                    else None
                ),
                rack=config["broker.rack"],
                throttle=None if self._cluster.is_alone else self._leader_throttle,
            ),
            self._dispatcher.on_request,
            ProcessorLimits(
                max_request_size=config["socket.request.max.bytes"],
                idle_ms=config["connections.max.idle.ms"],
                max_inflated_size=config["kbroker.inflated.batch.max.bytes"],
                max_response_size=config["kbroker.response.max.bytes"],
            ),
            [endpoint.listener for endpoint in config.listeners],
        )
        self._address_limits.override(parse_counts(config[PER_IP_OVERRIDES]))
        limits = ConnectionLimits(
            max_connections=lambda: int(self.config["max.connections"]),
            max_connections_per_ip=self._address_limits.limit_for,
            send_buffer_size=config["socket.send.buffer.bytes"],
            receive_buffer_size=config["socket.receive.buffer.bytes"],
            backlog=config["socket.listen.backlog.size"],
        )
        self._acceptor = Acceptor(config.listeners, self._processors.all, limits)
        self.endpoints = self._acceptor.endpoints
        advertised = AdvertisedEndpoints(self.endpoints, config.advertised_listeners)
        self._registered = self._home.reachable(
            [advertised.endpoint_for(each.listener, each.host, each.port) for each in self.endpoints]
        )
        # Other members tell clients what is registered, so this one must not tell them anything else.
        self._advertised = (
            advertised if self._cluster.is_alone else AdvertisedEndpoints(self.endpoints, self._registered)
        )

    def _start(self) -> None:
        timeout_s = self.config["kbroker.stop.timeout.ms"] / 1000
        self._join_cluster()
        self._handlers.start()
        self._on_stop("handlers", lambda: self._handlers.stop(timeout_s))
        if (lanes := self._home.lanes) is not None:
            lanes.start(self._dispatcher.serve_in_turn)
            self._on_stop("control lanes", lambda: lanes.stop(timeout_s))
        self._processors.start()
        self._on_stop("processors", lambda: self._processors.stop(timeout_s))
        # Stopped before the processors: those wait until every request has its answer, and a JoinGroup waits for other
        # members.
        self._coordinators.start()
        self._on_stop("coordinators", self._coordinators.stop)
        self._start_http()
        self._acceptor.start()
        self._on_stop("acceptor", self._acceptor.stop)
        self._home.await_told()
        # Stopped before everything else, while this broker still serves: others take over what it leads.
        self._on_stop("leadership", self._home.leave)
        self._has_started = self.is_ready = True

    def _join_cluster(self) -> None:
        self._home.join(self._registered)
        self._logs.set_on_directory_failed(self._home.directory_failed)
        groups, transactions = self._coordinators.groups, self._coordinators.transactions
        self._partitions.serve(self._cluster, groups, transactions)
        if self._cluster.image.topic(GROUP_OFFSETS_TOPIC) is not None:
            groups.get()
        if self._cluster.image.topic(TRANSACTION_STATE_TOPIC) is not None:
            transactions.get()

    def _endpoints_for(self, connection: Connection) -> Endpoint:
        return self._advertised.endpoint_for(connection.listener, connection.local_host, connection.local_port)

    def _start_http(self) -> None:
        if self.config.http_address is None:
            return
        from kbroker.server.measurements import observe

        self._http = observe(
            self.config.http_address,
            node_id=self.node_id,
            cluster_id=self._cluster.cluster_id,
            logs=self._logs,
            acceptor=self._acceptor,
            processors=self._processors.all,
            channel=self._channel,
            handlers=self._handlers,
            groups=self._coordinators.groups.get(),
            transactions=self._coordinators.transactions.get(),
            is_ready=lambda: self.is_ready,
            problems=self._home.problems,
            clock=self.clock,
            most_lags=self.config["kbroker.metrics.lag.partitions.max"],
            measure_member=self._home.measure,
        )
        self._http.start()
        self._on_stop("http", self._http.stop)

    def finish_start(self) -> None:
        """Do what the start has left for later, while requests are served.

        Import modules, so that a broker whose files are replaced while it runs keeps the code that it was started with.
        Name the threads. Release the memory that only the start has used.
        """
        import kbroker.server.batch_compression
        import kbroker.server.handlers.shared.current_leader
        import kbroker.server.handlers.shared.read_replicas
        import kbroker.server.old_messages
        import kbroker.storage.compaction  # noqa: F401
        from kbroker.server.thread_names import name_threads

        self._coordinators.groups.get()
        self._coordinators.transactions.get()
        self._dispatcher.load_all()
        name_threads()
        release_free_memory()

    # --- stop --------------------------------------------------------------------------------------------
    def give_up_start(self) -> None:
        """Make a start that waits for ZooKeeper fail at once; otherwise a no-op. May be called by any thread."""
        if not self._has_started:
            self._home.give_up()

    def _on_stop(self, name: str, call: Callable[[], object]) -> None:
        self._stops.append((name, call))

    def stop(self) -> None:
        """Stop the parts in the reverse order of the start. Logs are flushed and their directories marked clean."""
        self.is_ready = False
        while self._stops:
            name, call = self._stops.pop()
            started = time.monotonic()
            try:
                call()
            except Exception:
                LOG.exception("stopping %s failed", name)
            LOG.debug("%s stopped in %.3f s", name, time.monotonic() - started)
