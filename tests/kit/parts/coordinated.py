"""Three brokers with both coordinators each, on real logs that follow each other, in the test's own thread.

The test is the controller, the fetchers and the network: roles change by `move`, and `run` carries requests and records
from broker to broker until nothing is left to do.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from kbroker.cluster.image import Broker, MetadataImage, Partition, Topic
from kbroker.config.broker_config import Given, config_of
from kbroker.model import GROUP_OFFSETS_TOPIC, NO_UUID, TRANSACTION_STATE_TOPIC, Endpoint, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey, request_class, response_class
from kbroker.replication.acks import ReplicationWaits
from kbroker.replication.hosted import Hosted, Role
from kbroker.replication.lead_checks import LeadChecks
from kbroker.server.coordinators import Coordinators
from kbroker.server.dispatch import ROUTES
from kbroker.server.home import OtherBrokers
from kbroker.state_log.deadlines import Deadlines
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import LogHome, ManualClock
from tests.kit.parts.handlers import Call, Caller
from tests.kit.parts.peers import Sent, StandInPeers

NODES = (1, 2, 3)
DATA = [TopicPartition("t", partition_id) for partition_id in range(3)]
"""Partition i is first led by broker i + 1, as the partitions of both internal topics are by broker 1."""
GROUPS, TRANSACTIONS = TopicPartition(GROUP_OFFSETS_TOPIC, 0), TopicPartition(TRANSACTION_STATE_TOPIC, 0)


class View:
    """The metadata that every broker has: what of `cluster.Cluster` coordinators use."""

    is_alone = False
    only_kbrokers = True
    broker_epoch = 1
    controller_id = 1

    def __init__(self, node_id: int):
        self.node_id = node_id
        self.image = MetadataImage("cluster")
        self.listeners: list[Callable[[], None]] = []
        self.kind_listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        self.listeners.append(listener)

    def on_kind_change(self, listener: Callable[[], None]) -> None:
        self.kind_listeners.append(listener)

    def become(self, *, only_kbrokers: bool) -> None:
        """Have a Kafka join the cluster, or the last one leave."""
        self.only_kbrokers = only_kbrokers
        for listener in self.kind_listeners:
            listener()

    def ensure(self, names: Iterable[str]) -> list[Topic]:
        return [self.image.topics[name] for name in names]

    def show(self, image: MetadataImage) -> None:
        self.image = image
        for listener in self.listeners:
            listener()


class Node:
    """One broker."""

    def __init__(self, brokers: Brokers, node_id: int, path: Path):
        self.node_id = node_id
        self.view = View(node_id)
        self.peers = StandInPeers()
        self.waits = ReplicationWaits(brokers.clock)
        self.logs: dict[TopicPartition, Log] = {}
        for at in (*DATA, GROUPS, TRANSACTIONS):
            home = LogHome(path / f"{node_id}-{at}", options=LogOptions(min_in_sync=1), topic_partition=at)
            home.path.mkdir(parents=True)
            home.clock = brokers.clock
            self.logs[at] = home.create()
        checking = Deadlines("lead-checks", brokers.clock)

        def hosted(at: TopicPartition) -> Hosted | None:
            return brokers.hosted(node_id, at)

        self.coordinators = Coordinators(
            config_of([Given("offsets.topic.num.partitions", "1", "test")]),
            brokers.clock,
            cast(Any, self.view),
            cast(Any, self.logs),
            self.waits,
            cast(Any, None),
            limits_of_group=lambda _: {},
            expire_others=lambda: None,
            others=OtherBrokers(
                hosted,
                cast(Any, self.peers),
                LeadChecks(node_id, hosted, cast(Any, self.peers), checking.soon, timeout_ms=5_000),
                brokers.ask_controller,
            ),
        )
        made = (self.coordinators.groups.get(), self.coordinators.transactions.get())
        self.deadlines = [made[0]._deadlines, made[1]._deadlines, self.coordinators._between, checking]
        for deadlines in self.deadlines:
            deadlines._threaded = False  # type: ignore[union-attr]
        for coordinator in made:
            coordinator.shards._loader.submit = lambda load: load()  # type: ignore[method-assign]
        self.groups, self.transactions = made
        self.services = self

    # What handlers use of `Services`.
    @property
    def cluster(self) -> View:
        return self.view

    @property
    def markers(self) -> Any:
        return self.coordinators.markers


class Brokers:
    def __init__(self, path: Path):
        self.clock = ManualClock()
        self.roles = {at: (1 + at.partition_id, 0) for at in (*DATA, GROUPS, TRANSACTIONS)}
        """The leader and its epoch of each partition."""
        self.heard = {node_id: dict(self.roles) for node_id in NODES}
        """The roles of which each broker has heard."""
        self.next_id = 1000
        self.cut: set[int] = set()
        """Brokers that no request reaches, and whose answers do not arrive."""
        self.deaf: set[int] = set()
        """Brokers that the controller does not reach."""
        self.nodes = {node_id: Node(self, node_id, path) for node_id in NODES}
        for at in self.roles:
            self._take_roles(at)
        self._show()
        for node in self.nodes.values():
            node.coordinators.start()
        self.run()

    def hosted(self, node_id: int, at: TopicPartition) -> Hosted | None:
        leader, epoch = self.heard[node_id][at]
        role = Role.LEADER if leader == node_id else Role.FOLLOWER
        return Hosted(role, NO_UUID, leader, epoch, 0, NODES, NODES, (), ())

    def ask_controller(self, make: Any, api_key: int, highest_version: int, answered: Any) -> None:
        self.next_id += 1000
        answered(M.AllocateProducerIdsResponse(producer_id_start=self.next_id, producer_id_len=1000), 0)

    # --- roles
    def leader_of(self, at: TopicPartition) -> Node:
        return self.nodes[self.roles[at][0]]

    def move(self, at: TopicPartition, node_id: int) -> None:
        """Make another broker the leader, as the controller does: roles, then the metadata."""
        self.roles[at] = (node_id, self.roles[at][1] + 1)
        self._take_roles(at)
        self._show()

    def _take_roles(self, at: TopicPartition) -> None:
        leader, epoch = self.roles[at]
        for node in self.nodes.values():
            if node.node_id in self.deaf:
                continue
            self.heard[node.node_id][at] = (leader, epoch)
            log = node.logs[at]
            if node.node_id == leader:
                log.lead(epoch, {other: -1 for other in NODES if other != leader}, NODES)
                log.state.set_live(NODES)
                node.coordinators.roles.leads(at, epoch)
            else:
                log.follow(epoch)
                node.coordinators.roles.follows(at, epoch)

    def _show(self) -> None:
        topics: dict[str, Topic] = {}
        for name in sorted({at.topic for at in self.roles}):
            of_topic = sorted(at for at in self.roles if at.topic == name)
            partitions = tuple(Partition(at.partition_id, *self.roles[at], NODES, NODES) for at in of_topic)
            topics[name] = Topic(name, UUID(int=len(topics) + 1), partitions, {})
        image = MetadataImage("cluster", topics=topics, names={each.topic_id: name for name, each in topics.items()})
        endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092)
        image.brokers = {node_id: Broker(node_id, (endpoint,), None, 1) for node_id in NODES}
        for node in self.nodes.values():
            if node.node_id not in self.deaf:
                node.view.show(image)

    # --- what the test carries
    def run(self, milliseconds: int = 0) -> None:
        """Let time pass, then carry records and requests until nothing moves any more."""
        self.clock.now_ms += milliseconds
        while any([self._follow(), self._carry(), self._call()]):
            pass

    def _follow(self) -> bool:
        moved = False
        for at, (leader, epoch) in self.roles.items():
            source = self.nodes[leader].logs[at]
            for node in self.nodes.values():
                log = node.logs[at]
                if node.node_id == leader or node.node_id in self.cut or leader in self.cut:
                    continue
                if self.heard[node.node_id][at] != (leader, epoch):
                    continue
                if log.log_end_offset > source.log_end_offset:
                    log.truncate_to(source.log_end_offset)
                if log.log_end_offset < source.log_end_offset:
                    records = source.read(log.log_end_offset, 1 << 20, to_log_end=True)
                    assert log.state.append_as_follower(records, epoch, source.high_watermark, 0) == 0
                    moved = True
                end = log.log_end_offset
                assert source.state.follower_fetched(node.node_id, -1, end, 0, self.clock.now_ms) == 0
        return moved

    def _carry(self) -> bool:
        """Deliver the requests that are under way now."""
        under_way = deque((node, sent) for node in self.nodes.values() for sent in node.peers.sent)
        kept = 0
        for node, sent in under_way:
            node.peers.sent.remove(sent)
            if node.node_id in self.cut or sent.node_id in self.cut:
                node.peers.sent.append(sent)
                kept += 1
            else:
                self._serve(self.nodes[sent.node_id], sent)
        return len(under_way) > kept

    def _serve(self, node: Node, sent: Sent) -> None:
        api_key = ApiKey(type(sent.message).API_KEY)
        handler = importlib.import_module(f"kbroker.server.handlers.{ROUTES[api_key].module}")

        def answered(body: bytes) -> None:
            sent.answer(response_class(api_key).decode(body, sent.version))

        request = _Request(sent.version, Caller(), answered)
        message = request_class(api_key).decode(sent.message.encode(sent.version), sent.version)
        response = handler.handle(node.services, request, message)
        if response is not None:
            request.respond_with(response)

    def _call(self) -> bool:
        """Call who waited for replicas, and what is due."""
        ended = sum(node.waits.step() for node in self.nodes.values())
        before = [len(deadlines._heap) for node in self.nodes.values() for deadlines in node.deadlines]  # type: ignore[union-attr]
        for node in self.nodes.values():
            for deadlines in node.deadlines:
                deadlines.run_due()  # type: ignore[union-attr]
        after = [len(deadlines._heap) for node in self.nodes.values() for deadlines in node.deadlines]  # type: ignore[union-attr]
        return bool(ended) or before != after

    def stop(self) -> None:
        for node in self.nodes.values():
            node.coordinators.stop()
            for log in node.logs.values():
                log.close()


class _Request(Call):
    """A request between brokers."""

    def __init__(self, api_version: int, connection: Caller, answered: Callable[[bytes], None]):
        super().__init__(api_version, connection)
        self._answered = answered

    def respond(self, body: bytes) -> None:
        self._answered(bytes(body))
