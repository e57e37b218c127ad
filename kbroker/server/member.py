"""A broker's place in a cluster in ZooKeeper: its session, its metadata, its part in control and replication."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from kbroker import __version__
from kbroker.clock import Clock
from kbroker.cluster.client_quotas import ClientQuotas
from kbroker.cluster.controller import Controller, ControllerConfig
from kbroker.cluster.controller_flows import UncleanElectionEnabled
from kbroker.cluster.current_session import CurrentSession
from kbroker.cluster.joining import InterBrokerListeners
from kbroker.cluster.membership import Membership, MembershipOptions
from kbroker.cluster.new_topics import TopicDefaults
from kbroker.cluster.peers import PeerNetwork
from kbroker.cluster.shared_topics import SharedTopics
from kbroker.config.broker_config import BrokerConfig
from kbroker.config.definitions import SETTINGS
from kbroker.config.listeners import WILDCARD_HOSTS
from kbroker.coordination.store import Store, StoreUnavailable
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.errors import ConfigError, ErrorCode
from kbroker.metrics.registry import Sample
from kbroker.model import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, Endpoint, TopicPartition
from kbroker.replication.hosted import Hosted, Role
from kbroker.replication.lead_checks import LeadChecks
from kbroker.replication.partitions import ReplicatedPartitions
from kbroker.replication.surroundings import RoleListeners
from kbroker.server.control_lanes import ControlLanes
from kbroker.server.controlled_shutdown import HandOver, hand_over
from kbroker.server.controller_channel import ControllerChannel, endpoints_on
from kbroker.server.home import OnStop, OtherBrokers
from kbroker.server.local_partitions import LocalPartitions, internal_topics
from kbroker.server.member_measurements import measure_member
from kbroker.server.member_partitions import UNCLEAN_ELECTION, MemberPartitions
from kbroker.server.own_store import mark_as_members, refuse_own_store
from kbroker.server.replica_fetchers import ReplicaFetchers
from kbroker.server.stepped_thread import SteppedThread
from kbroker.state_log.deadlines import Deadlines
from kbroker.storage.directory import MetaProperties
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager

LOG = logging.getLogger(__name__)

TOLD_S = 5.0
"""How long a start waits for the controller."""
STOP_S = 10.0
"""How long a stop waits for one of the threads; it may be in the middle of connecting."""
_SIZED_BY = {
    GROUP_OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.replication.factor",
}
"""The settings with the replication factors of internal topics, by topic."""


class Member:
    """A `home.Home` for a member of a cluster in ZooKeeper.

    It is also the `cluster.membership.Member`: its membership tells it of sessions and configs.
    """

    def __init__(self, config: BrokerConfig, logs: LogManager, clock: Clock, must_stop: Callable[[], object]):
        """`must_stop` is called if the broker may not go on."""
        self._config = config
        self._logs = logs
        self._clock = clock
        self._must_stop = must_stop
        self._sessions = _Sessions(config)
        self.session = CurrentSession()
        self._quotas = ClientQuotas()
        self.lanes = ControlLanes()
        listeners = InterBrokerListeners(config.inter_broker_listener, config.control_plane_listener)
        self._listeners = listeners
        self._membership = Membership(
            MembershipOptions(
                self._sessions.address,
                self._sessions.session_timeout_s,
                listeners,
                __version__,
                config["reserved.broker.max.id"],
                config["broker.id.generation.enable"],
            ),
            self._sessions.open,
            clock,
            self,
        )
        self.partitions: ReplicatedPartitions | None = None
        self._is_told = threading.Event()

    # --- start ----------------------------------------------------------------------------------------------------

    def open(self, identity: MetaProperties | None, on_stop: OnStop) -> None:
        """Connect to ZooKeeper, check that this broker may join, and read which logs are its own.

        Raises CannotJoin; before that ConfigError, for an id or a listener that no member may have.
        """
        config = self._config
        self._on_stop = on_stop
        node_id, known_cluster_id = config.node_id, None
        if identity is not None:
            known_cluster_id = identity.cluster_id
            if node_id < 0 and identity.node_id is not None:
                node_id = identity.node_id
        highest = config["reserved.broker.max.id"]
        if config.node_id > highest and config["broker.id.generation.enable"]:
            raise ConfigError(
                f"broker.id={node_id} is above reserved.broker.max.id={highest}, and higher ids are generated: set "
                "broker.id.generation.enable=false if they are not"
            )
        advertised = {each.listener for each in config.advertised_listeners}
        for each in config.listeners:
            if each.host and each.host in WILDCARD_HOSTS and each.listener not in advertised:
                raise ConfigError(f"listener {each}: set advertised.listeners, for no other broker can connect to that")
        refuse_own_store(config.log_dirs, self._sessions.address)
        session = self._membership.connect(node_id, known_cluster_id)
        on_stop("session", self._membership.leave)
        self.session.use(session)
        self.node_id = self._membership.node_id
        LOG.info(
            "broker %d of cluster %s, with inter.broker.protocol.version %s",
            self.node_id, self._membership.cluster_id, config["inter.broker.protocol.version"],
        )  # fmt: skip
        self._network = PeerNetwork(self.node_id)
        on_stop("peers", self._network.close)
        self._controller_peers = self._network.peers()
        self._to_controller = self._network.peers()
        self._coordinator_peers = self._network.peers()
        self._replica_peers = self._network.peers()
        controller_wakes = threading.Event()
        self.controller = Controller(
            self.node_id,
            self._controller_peers,
            self._clock,
            ControllerConfig(
                inter_broker_listener=self._listeners.inter_broker,
                control_plane_listener=self._listeners.control_plane or None,
                auto_leader_rebalance_enable=config["auto.leader.rebalance.enable"],
                leader_imbalance_per_broker_percentage=config["leader.imbalance.per.broker.percentage"],
                leader_imbalance_check_interval_s=config["leader.imbalance.check.interval.seconds"],
                delete_topic_enable=config["delete.topic.enable"],
                request_timeout_ms=config["request.timeout.ms"],
            ),
            self._allows_unclean,
            wake=controller_wakes.set,
        )
        self.cluster = SharedTopics(
            session,
            self.node_id,
            self._membership.cluster_id,
            defaults=TopicDefaults(config["num.partitions"], config["default.replication.factor"]),
            internal_topics=internal_topics(config),
            exact_internal_topics=[name for name, setting in _SIZED_BY.items() if setting in config.given],
            ask=self.controller.ask,
            is_controller=lambda: self.controller.is_active,
            is_deleting=self.controller.is_deleting,
            is_moving=self.controller.is_moving,
            clock=self._clock,
            check_broker_config=check_broker_config,
        )
        self.cluster.on_due = self._membership.woken.set
        self._ask_controller = ControllerChannel(
            self._to_controller, lambda: self.cluster.controller_id, config["controller.socket.timeout.ms"]
        )
        self._fetchers = ReplicaFetchers(self.node_id, config, self._replica_peers)
        on_stop("replica fetchers", self._fetchers.close)
        checking = Deadlines("lead-checks", self._clock)
        on_stop("lead checks", checking.stop)
        self._lead_checks = LeadChecks(
            self.node_id,
            self._hosted,
            self._replica_peers,
            checking.soon,
            config["offsets.commit.timeout.ms"],
        )
        self.others = OtherBrokers(self._hosted, self._coordinator_peers, self._lead_checks, self._ask_controller)
        self.cluster.on_change(self._follow_brokers)
        self._controller_thread = SteppedThread("controller", self._step_controller, controller_wakes)
        self._membership_thread = SteppedThread("membership", self._step_membership, self._membership.woken)
        self._news = self._logs.partition_table.news
        self._replication_thread = SteppedThread("replication", self._step_replication, wake=self._wake_replication)

    def attach(self, partitions: LocalPartitions, listeners: RoleListeners) -> None:
        """Make the parts that need the logs: they are open, and nobody is served yet."""
        self._host = MemberPartitions(
            self._logs, partitions, self.cluster, lambda topic: self.controller.post(UncleanElectionEnabled(topic))
        )
        self.cluster.serve(self._host)
        self.partitions = ReplicatedPartitions(
            self.node_id,
            self._host,
            self._fetchers.fetchers,
            self._ask_controller,
            self.cluster,
            self._clock,
            listeners,
            max_lag_ms=self._config["replica.lag.time.max.ms"],
        )
        self.partitions.on_due = self._wake_replication
        self.partitions.on_usable = self._membership.ask_for_roles
        self.cluster.on_deleted = self.partitions.topics_deleted
        self._logs.cleaner.on_damaged = self._make_good

    def reachable(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Return the endpoints with this machine's name where there is no host."""
        return [each if each.host else each._replace(host=socket.gethostname()) for each in endpoints]

    def join(self, endpoints: Sequence[Endpoint]) -> None:
        """Register, so that the controller tells this broker its partitions, and run for controller. Raises CannotJoin.

        Requests of the controller have to be served soon after.
        """
        self._on_stop("controller", self._stop_threads)
        self._controller_thread.start()
        self._fetchers.start()
        self._replication_thread.start()
        self._membership.register(endpoints, self._config["broker.rack"])
        mark_as_members(self._config.log_dirs, self._sessions.address)
        self._membership_thread.start()

    def leave(self) -> None:
        """Have the controller move the leadership of this broker's partitions away (controlled.shutdown.enable)."""
        config = self._config
        if not config["controlled.shutdown.enable"]:
            return
        options = HandOver(
            config["controlled.shutdown.max.retries"],
            config["controlled.shutdown.retry.backoff.ms"] / 1000,
            config["controller.socket.timeout.ms"] / 1000,
        )
        others = self._others_live
        hand_over(self._ask_controller, self.node_id, lambda: self.cluster.broker_epoch, others, options)

    def _others_live(self) -> bool:
        return any(node_id != self.node_id for node_id in self.cluster.image.brokers)

    def _stop_threads(self) -> None:
        self._membership_thread.stop(STOP_S)
        self.controller.resign()
        self._controller_thread.stop(STOP_S)
        self._replication_thread.stop(STOP_S)
        if self.partitions is not None:
            self.partitions.stop()
        self._membership.leave()

    def give_up(self) -> None:
        """Make a start that waits for ZooKeeper fail at once. May be called by any thread."""
        self._sessions.give_up()
        self._membership.leave()

    def _allows_unclean(self, topic: str) -> bool:
        return bool(self._config[UNCLEAN_ELECTION])

    def take_config(self, config: BrokerConfig) -> None:
        """Use the settings that are in force after a dynamic change."""
        allowed_before, self._config = self._config[UNCLEAN_ELECTION], config
        self._fetchers.take_config(config)
        if config[UNCLEAN_ELECTION] and not allowed_before:
            self.controller.post(UncleanElectionEnabled())

    # --- the threads ----------------------------------------------------------------------------------------------

    def _step_controller(self) -> float:
        while self.controller.step():
            pass
        return self.controller.idle_ms() / 1000

    def _step_membership(self) -> float:
        pause_s = self._membership.step()
        left_s = self.cluster.step()
        return pause_s if left_s is None else min(pause_s, left_s)

    def _step_replication(self) -> float:
        assert self._news is not None and self.partitions is not None
        pause_ms = self.partitions.tick()
        if self._news.wait(pause_ms):
            news = [TopicPartition(*each) for each in self._news.take()]
            self.partitions.on_news(news)
            for each in news:
                self._check_doubted(each)
        return 0.0

    def _check_doubted(self, topic_partition: TopicPartition) -> None:
        """Check the lead of a partition if a client knows of more records than this leader has."""
        log = self._logs.get(topic_partition)
        if log is None or not log.state.take_lead_doubt():
            return
        leader_epoch, began_ms = log.leader_epoch, int(self._clock.monotonic() * 1000)

        def checked(code: ErrorCode) -> None:
            if code == ErrorCode.NONE:
                log.state.lead_is_checked(leader_epoch, began_ms)

        self._lead_checks.check(topic_partition, checked)

    def _wake_replication(self) -> None:
        assert self._news is not None
        self._news.wake()

    def _hosted(self, topic_partition: TopicPartition) -> Hosted | None:
        return None if self.partitions is None else self.partitions.get(topic_partition)

    def await_told(self) -> None:
        """Wait until the controller has told this broker who is in the cluster, so that its first client learns it too.

        While there is no controller, or one that does not reach this broker, it serves all the same.
        """
        if not self._is_told.wait(TOLD_S):
            LOG.warning("no controller has told this broker of the cluster yet: until then clients learn nothing here")

    def _follow_brokers(self) -> None:
        brokers = self.cluster.image.brokers
        if self.node_id in brokers:
            self._is_told.set()
        inter_broker = endpoints_on(self._listeners.inter_broker, brokers)
        self._coordinator_peers.set_brokers(inter_broker)
        self._replica_peers.set_brokers(inter_broker)
        self._fetchers.set_brokers(inter_broker)
        control_plane = self._listeners.control_plane or self._listeners.inter_broker
        self._to_controller.set_brokers(endpoints_on(control_plane, brokers))

    # --- cluster.membership.Member --------------------------------------------------------------------------------

    def session_ended(self) -> None:
        self.controller.resign()

    def registered(self, store: Store, broker_epoch: int) -> None:
        self.session.use(store)
        self._fetchers.set_broker_epoch(broker_epoch)
        self.cluster.registered(store, broker_epoch)
        self._quotas.look(store)
        self.controller.session_is(store, broker_epoch)

    def configs_changed(self, entity_paths: Sequence[str]) -> None:
        self.cluster.configs_changed(entity_paths)
        self._quotas.look_if_changed(self.session, entity_paths)

    def group_configs_changed(self) -> None:
        self.cluster.group_configs_changed()

    def brokers_changed(self, kbroker_versions: Mapping[int, str | None]) -> None:
        self.cluster.brokers_changed(kbroker_versions)

    def must_stop(self, reason: str) -> None:
        LOG.error("this broker cannot go on: %s", reason)
        self._must_stop()

    # --- the broker -----------------------------------------------------------------------------------------------

    def directory_failed(self, directory: str, partitions: Sequence[TopicPartition]) -> None:
        """Take the partitions in a failed directory offline, and have the controller told."""
        if self.partitions is not None:
            self.partitions.directory_failed(partitions)
        self._membership.ask_for_roles()

    def _make_good(self, log: Log) -> bool:
        """Give up a replica in whose log damage was found. Returns whether it will be made good from another one."""
        assert self.partitions is not None
        for segment in log.state.segments():
            offset = log.find_damage(segment.base_offset)
            if offset is not None:
                return self.partitions.damaged(log.topic_partition, offset)
        return False

    def measure(self) -> Iterator[Sample]:
        """What `/metrics` tells of this member; valid after `attach`."""
        assert self.partitions is not None
        yield Sample("kbroker_zookeeper_connected", self._sessions.is_connected)
        yield Sample("kbroker_registered", self._membership.is_registered and self.cluster.is_told)
        yield from measure_member(self.cluster, self.controller, self.partitions, self._fetchers, self._logs)

    def problems(self) -> list[str]:
        """Return what is amiss: no registration, no word of it or of roles, replicas that are not in sync."""
        if not self._membership.is_registered:
            limit = f"zookeeper.session.timeout.ms={self._config['zookeeper.session.timeout.ms']}"
            return [
                "this broker is not registered in ZooKeeper: its session has ended, "
                f"or has heard nothing of ZooKeeper for longer than {limit}"
            ]
        if not self.cluster.is_told:
            return ["no controller has told this broker yet that it is in the cluster"]
        known = self._replicas_here()
        hosted = {} if self.partitions is None else self.partitions.all()
        found = []
        if idle := sum(not _has_role(hosted.get(at), leader_epoch) for at, leader_epoch in known.items()):
            found.append(
                f"this broker neither leads nor follows {idle} of its partitions: "
                "their roles have not come, or could not be taken"
            )
        if lacking := sum(self._lacks_replicas(at, each) for at, each in hosted.items()):
            found.append(f"{lacking} of the partitions here have replicas that are not in sync")
        return found

    def _replicas_here(self) -> dict[TopicPartition, int]:
        """Return the leader epochs of partitions with a replica here, told or not: by the metadata, else by the tree.

        The tree does not know leader epochs: they are 0.
        """
        untold = self.cluster.untold  # first: what is told afterwards is in the image
        topics = {name: topic for name in untold if (topic := self.cluster.assigned.get(name)) is not None}
        topics.update(self.cluster.image.topics)
        return {
            TopicPartition(name, each.partition_id): each.leader_epoch
            for name, topic in topics.items()
            for each in topic.partitions
            if self.node_id in each.replicas
        }

    def _lacks_replicas(self, at: TopicPartition, hosted: Hosted) -> bool:
        """Return whether a partition is under-replicated. Only its leader knows the ISR before the metadata does."""
        known = self.cluster.image.partition(at)
        leads = hosted.is_leader and (known is None or known.leader_epoch <= hosted.leader_epoch)
        isr = hosted.isr if leads or known is None else known.isr
        return hosted._replace(isr=tuple(isr)).is_under_replicated


def _has_role(hosted: Hosted | None, leader_epoch: int) -> bool:
    """Return whether a replica leads or follows, in this leader epoch or a later one."""
    return hosted is not None and hosted.role is not Role.OFFLINE and hosted.leader_epoch >= leader_epoch


def check_broker_config(name: str, text: str) -> None:
    """Raise ConfigError if a setting that may be changed while the broker runs may not have this value."""
    setting = SETTINGS.get(name)
    if setting is not None and setting.dynamic:
        setting.parse(text)


class _Sessions:
    """Opens sessions with the ZooKeeper of the settings. May be given up by any thread."""

    def __init__(self, config: BrokerConfig):
        self.address = config.zookeeper or ""
        self.session_timeout_s = config["zookeeper.session.timeout.ms"] / 1000
        limit_ms = config["zookeeper.connection.timeout.ms"] or config["zookeeper.session.timeout.ms"]
        self._connect_timeout_s = limit_ms / 1000
        self._opening: ZooKeeperStore | None = None
        self._is_given_up = False

    def open(self) -> Store:
        """Open a session, and make the chroot. Raises StoreUnavailable after zookeeper.connection.timeout.ms."""
        LOG.info(
            "waiting for ZooKeeper at %s, for up to %.0f s (zookeeper.connection.timeout.ms)",
            self.address, self._connect_timeout_s,
        )  # fmt: skip
        opening = ZooKeeperStore(
            self.address, self.session_timeout_s, connect_timeout_s=self._connect_timeout_s, connects=False
        )
        self._opening = opening
        if self._is_given_up:
            opening.close()
        try:
            opening.connect()
            opening.make_chroot()
        except StoreUnavailable as error:
            opening.close()
            limit = f"{self._connect_timeout_s * 1000:.0f}"
            raise StoreUnavailable(f"{error} (zookeeper.connection.timeout.ms={limit})") from error
        return opening

    @property
    def is_connected(self) -> bool:
        """Whether the newest session has a connection to a server now."""
        return self._opening is not None and self._opening.is_connected

    def give_up(self) -> None:
        self._is_given_up = True
        if self._opening is not None:
            self._opening.close()
