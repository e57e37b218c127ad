from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client import AdminClient, ConsumerConnector, Producer
from kbroker.coordination.store import NoNode
from kbroker.coordination.zookeeper import ZooKeeperStore
from tests.kit.brokers.whole import WholeBroker
from tests.kit.clients.connectors import QUICK, Reading
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.parts.processors import wait_until

numbers = itertools.count()
PARTITIONS = 4
WAIT_S = 60.0


class Place:
    """A broker that is registered in a ZooKeeper, a topic of four partitions, and a group."""

    def __init__(self, address: str, broker: WholeBroker):
        self.address = address
        self.number = next(numbers)
        self.topic, self.group = f"topic-{self.number}", f"group-{self.number}"
        servers = f"127.0.0.1:{broker.port}"
        self.producer = Producer(bootstrap_servers=servers, partitioner="round_robin")
        self.admin = AdminClient(bootstrap_servers=servers)
        self.tree = ZooKeeperStore(address, 10)
        self.make_topic(self.topic)
        self.sent = 0

    def make_topic(self, name: str, partitions: int = PARTITIONS) -> None:
        self.admin.create_topic(name, partitions, 1)
        self.wait(lambda: self.tree.exists(f"/brokers/topics/{name}") is not None, "the topic is not shown")

    def send(self, count: int, topic: str | None = None) -> set[bytes]:
        values = {b"%d" % (self.sent + place) for place in range(count)}
        self.sent += count
        for value in sorted(values):
            self.producer.send_nowait(topic or self.topic, value)
        self.producer.flush()
        return values

    def options(self, **more: Any) -> dict[str, Any]:
        return {"zookeeper_connect": self.address, "group_id": self.group, **QUICK, **more}

    def connector(self, **more: Any) -> ConsumerConnector:
        return ConsumerConnector(**self.options(**more))

    def reading(self, streams: int = 1, **more: Any) -> Reading:
        return Reading({self.topic: streams}, **self.options(**more))

    def owners(self, topic: str | None = None) -> dict[int, str]:
        path = f"/consumers/{self.group}/owners/{topic or self.topic}"
        try:
            names = self.tree.children(path)
        except NoNode:
            return {}
        found = zip(names, self.tree.get_many([f"{path}/{name}" for name in names]), strict=True)
        return {int(name): node[0].decode() for name, node in found if node is not None}

    def offsets(self) -> dict[int, int]:
        path = f"/consumers/{self.group}/offsets/{self.topic}"
        try:
            return {int(name): int(self.tree.get(f"{path}/{name}")[0]) for name in self.tree.children(path)}
        except NoNode:
            return {}

    def is_shared_by(self, *members: ConsumerConnector) -> bool:
        """Whether ZooKeeper and the members say that each partition has one owner, and each member some."""
        owners = self.owners()
        ids = {number: owner.rpartition("-")[0] for number, owner in owners.items()}
        said = [(each.partition_id, member.consumer_id) for member in members for each in member.assignment()]
        return (
            len(owners) == PARTITIONS and sorted(said) == sorted(ids.items()) and len({*ids.values()}) == len(members)
        )

    def wait(self, is_so: Callable[[], bool], what: str = "it does not come to be") -> None:
        wait_until(is_so, what, WAIT_S)

    def close(self) -> None:
        self.producer.close()
        self.admin.close()
        self.tree.close()


@pytest.fixture(scope="module")
def registered(
    request: pytest.FixtureRequest, zookeeper: ZooKeeperProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, WholeBroker]]:
    address = f"{zookeeper.address}/a/{request.module.__name__}"
    folder: Path = tmp_path_factory.mktemp("registered")
    with WholeBroker(folder, {"zookeeper.connect": address, "auto.create.topics.enable": "false"}) as broker:
        yield address, broker


@pytest.fixture
def place(registered: tuple[str, WholeBroker]) -> Iterator[Place]:
    made = Place(*registered)
    yield made
    made.close()


@pytest.fixture
def own(tmp_path: Path, zookeeper: ZooKeeperProcess) -> Iterator[tuple[Place, ZooKeeperProcess]]:
    """With a ZooKeeper of its own, which can be stopped."""
    with ZooKeeperProcess() as server:
        settings = {"zookeeper.connect": f"{server.address}/own"}
        with WholeBroker(tmp_path, settings) as broker:
            place = Place(f"{server.address}/own", broker)
            try:
                yield place, server
            finally:
                place.close()
