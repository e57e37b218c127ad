"""Members with listeners of their own for clients, for each other, and for the controller: what arrives where."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kbroker.client import AdminClient, Producer
from kbroker.coordination import paths
from kbroker.protocol.api import ApiKey
from kbroker.protocol.headers import decode_request_header
from tests.kit.brokers.process import BrokerProcess, free_port
from tests.kit.cluster.members import Members, await_that
from tests.kit.proxies.dropping import DroppingProxy, Pair

TOPIC = "t"
REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 2
"""Each broker leads two partitions, one for each of the two fetchers of each follower."""
OF_A_CLIENT = "client"
FROM_THE_CONTROLLER = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA}
TO_THE_CONTROLLER = {ApiKey.CONTROLLED_SHUTDOWN, ApiKey.ALTER_PARTITION}

Asked = dict[ApiKey, set[str | None]]
"""The client ids of the requests that came, by API. ApiVersions come on every connection."""


class Door(DroppingProxy):
    """Stands before one listener, and notes which requests come there."""

    def __init__(self, port: int, asked: Asked):
        super().__init__(port)
        self.asked = asked
        self._unread: dict[Pair, bytes] = {}

    def on_sent(self, pair: Pair, data: bytes) -> None:
        data = self._unread.get(pair, b"") + data
        while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4])):
            header, _ = decode_request_header(data[4:end])
            self.asked.setdefault(ApiKey(header.request_api_key), set()).add(header.client_id)
            data = data[end:]
        self._unread[pair] = data


class DooredMember(BrokerProcess):
    """A member with three listeners, each behind a door whose address is advertised while the process lives."""

    def __init__(self, node_id: int, zookeeper: str, folder: Path):
        super().__init__(folder=folder)
        self.node_id = node_id
        self.ports = {"CLIENT": self.port, "INSIDE": free_port(), "CONTROL": free_port()}
        self.asked: dict[str, Asked] = {name: {} for name in self.ports}
        self.doors: dict[str, Door] = {}
        self._opened = ExitStack()
        self.overrides = {
            "broker.id": node_id,
            "zookeeper.connect": zookeeper,
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in self.ports),
            "inter.broker.listener.name": "INSIDE",
            "control.plane.listener.name": "CONTROL",
            "num.replica.fetchers": 2,
        }

    def start(self) -> None:
        self.doors = {name: Door(port, self.asked[name]) for name, port in self.ports.items()}
        for door in self.doors.values():
            self._opened.enter_context(door)
        advertised = (f"{name}://127.0.0.1:{door.port}" for name, door in self.doors.items())
        self.overrides["advertised.listeners"] = ",".join(advertised)
        super().start()

    def stop(self) -> int:
        with self._opened:
            return super().stop()

    def kill(self) -> None:
        with self._opened:
            super().kill()


@pytest.fixture
def three(members: Members, tmp_path: Path) -> Iterator[dict[int, DooredMember]]:
    """Members 1 to 3; number 3 is the controller."""
    with ExitStack() as stack:
        yield {
            each: stack.enter_context(DooredMember(each, members.address, tmp_path / str(each))) for each in (3, 1, 2)
        }


def test_what_brokers_ask_of_each_other_arrives_at_the_listener_that_is_for_it(
    members: Members, three: dict[int, DooredMember]
) -> None:
    """Replication with two fetchers for each leader, a stop, and the death of the controller and its replacement."""
    servers = ",".join(f"127.0.0.1:{each.doors['CLIENT'].port}" for each in three.values())
    with (
        AdminClient(bootstrap_servers=servers, client_id=OF_A_CLIENT) as admin,
        Producer(bootstrap_servers=servers, client_id=OF_A_CLIENT) as producer,
    ):

        def send() -> None:
            for number in range(60):
                producer.send(TOPIC, b"%d" % number, partition=number % len(REPLICAS))
            producer.flush(30)

        def await_replicas(in_sync: set[int], controllers: set[int]) -> None:
            """Wait until these brokers lead all partitions, are in sync, and know one of these as the controller."""

            def are_there() -> bool:
                partitions = admin.describe_topics([TOPIC])[TOPIC].partitions
                replicas = [(each.leader in in_sync, set(each.in_sync)) for each in partitions]
                return replicas == [(True, in_sync)] * len(REPLICAS)

            await_that(are_there)
            await_that(lambda: admin.describe_cluster().controller_id in controllers)

        await_that(lambda: len(admin.describe_cluster().brokers) == len(three))
        assert not any(each.asked["INSIDE"] for each in three.values()), "the controller is watched at its own listener"
        admin.create_topic(TOPIC, assignments=REPLICAS)
        await_replicas({1, 2, 3}, {3})
        send()
        for leader in three:
            assert three[leader].asked["INSIDE"][ApiKey.FETCH] == {
                f"broker-{each}-fetcher-{leader}-{number}" for each in three if each != leader for number in (0, 1)
            }

        three[2].stop()
        assert three[3].asked["CONTROL"][ApiKey.CONTROLLED_SHUTDOWN] == {"2"}
        await_replicas({1, 3}, {3})
        send()
        three[2].start()
        await_replicas({1, 2, 3}, {3})
        assert "1" in three[3].asked["CONTROL"][ApiKey.ALTER_PARTITION]

        three[3].kill()
        await_replicas({1, 2}, {1, 2})
        assert members.store.exists(paths.broker_path(3)) is not None, "its port told that it is gone, not its session"
        send()
        members.store.delete(paths.broker_path(3))
        shutil.rmtree(three[3].data)
        three[3].start()
        await_replicas({1, 2, 3}, {1, 2})
        send()
        admin.delete_topics([TOPIC])
        await_that(lambda: members.store.exists(paths.topic_path(TOPIC)) is None)

    inside, control = ({key for each in three.values() for key in each.asked[name]} for name in ("INSIDE", "CONTROL"))
    control_apis = {ApiKey.API_VERSIONS} | FROM_THE_CONTROLLER | TO_THE_CONTROLLER
    assert control - {ApiKey.ALLOCATE_PRODUCER_IDS} == control_apis
    assert inside <= {ApiKey.API_VERSIONS, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH}
    of_clients = {client for each in three.values() for asked in each.asked["CLIENT"].values() for client in asked}
    assert of_clients == {OF_A_CLIENT}
