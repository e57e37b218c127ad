"""The controllers of three members over a real ZooKeeper."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kbroker.clock import SystemClock
from kbroker.cluster.controller import Controller, ControllerConfig
from kbroker.cluster.topic_requests import CreateTopics, PlannedTopic
from kbroker.coordination import paths
from kbroker.coordination.store import Create, NodeExists, parent_of
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.model import Endpoint
from kbroker.protocol import messages as M
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.parts.control_cluster import ToldBroker

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def zookeeper(jars: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess() as server:
        yield server


class DirectPeers:
    """Peers without a network: a broker answers before the call returns."""

    def __init__(self, brokers: dict[int, ToldBroker]):
        self._brokers = brokers

    def send(self, node_id: int, message: M.Message, version: int, answered: Any, *, timeout_ms: int) -> None:
        answered(self._brokers[node_id].answer(type(message).decode(message.encode(version), version)))

    def set_brokers(self, brokers: Any) -> None: ...
    def keep(self, node_ids: Any) -> None: ...
    def on_refused(self, callback: Any) -> None: ...


class Members:
    """Three members, each with a session and a controller, driven by the test's thread."""

    def __init__(self, address: str):
        self.told = {node_id: ToldBroker(node_id) for node_id in (1, 2, 3)}
        self.stores = {node_id: ZooKeeperStore(address, 10.0) for node_id in self.told}
        self.wake = threading.Event()
        self.stores[1].make_chroot()
        for path in paths.PERSISTENT:
            self._make(path)
        peers: Any = DirectPeers(self.told)
        self.controllers = {
            node_id: Controller(
                node_id, peers, SystemClock(), ControllerConfig(auto_leader_rebalance_enable=False), lambda _: False,
                wake=self.wake.set,
            )
            for node_id in self.told
        }  # fmt: skip
        for node_id, store in self.stores.items():
            endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092)
            data = paths.encode_broker(paths.BrokerRegistration((endpoint,), None, 0))
            store.create(paths.broker_path(node_id), data, ephemeral=True)
            stat = store.exists(paths.broker_path(node_id))
            assert stat is not None
            self.told[node_id].epoch = stat.creation_id
            self.controllers[node_id].session_is(store, stat.creation_id)

    def _make(self, path: str) -> None:
        if path != "/":
            self._make(parent_of(path))
            try:
                self.stores[1].multi([Create(path)])
            except NodeExists:
                pass

    def run_until(self, is_done: Any) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self.wake.clear()
            if sum(each.step() for each in self.controllers.values()):
                continue
            if is_done():
                return
            assert time.monotonic() < deadline
            self.wake.wait(0.1)

    def stop(self, node_id: int) -> None:
        controller = self.controllers.pop(node_id)
        controller.resign()
        controller.step()
        self.stores.pop(node_id).close()

    def close(self) -> None:
        for node_id in list(self.controllers):
            self.stop(node_id)


@pytest.fixture
def members(zookeeper: ZooKeeperProcess, request: pytest.FixtureRequest) -> Iterator[Members]:
    made = Members(f"{zookeeper.address}/{request.node.name}")
    yield made
    made.close()


def test_leaders_are_elected_and_a_controller_is_replaced_with_a_real_zookeeper(members: Members) -> None:
    """250 partitions: states are written in several parcels. One of them is spoilt, and written singly."""
    members.run_until(lambda: members.told[1].alive == members.told[3].alive == {1, 2, 3})
    count = 250
    replicas = {each: ((each % 3) + 1, (each + 1) % 3 + 1, (each + 2) % 3 + 1) for each in range(count)}
    planned = PlannedTopic(paths.TopicAssignment(UUID(int=1), replicas, {}, {}), {"retention.ms": "1"})
    answers: list[Any] = []
    members.controllers[1].ask(CreateTopics({"t": planned}), answers.append)
    members.run_until(lambda: len(members.told[3].metadata) == count)
    assert answers == [{"t": 0}]
    spoilt = paths.partition_state_path("t", 7)
    data, _ = members.stores[2].get(spoilt)
    members.stores[2].set(spoilt, data)
    members.stop(1)
    members.told.pop(1)
    members.run_until(lambda: all(told.controller_epoch == 2 for told in members.told.values()))
    active = [node_id for node_id, each in members.controllers.items() if each.is_active]
    assert len(active) == 1
    leaders = {partition.partition_id: state.leader for partition, state in members.told[3].metadata.items()}
    assert leaders == {each: next(one for one in replicas[each] if one != 1) for each in range(count)}
    for told in members.told.values():
        for partition, role in told.roles.items():
            assert role.leader == leaders[partition.partition_id] and 1 not in role.isr
    state = paths.decode_partition_state(spoilt, members.stores[2].get(spoilt)[0])
    assert state.controller_epoch == 2 and state.leader == leaders[7]
