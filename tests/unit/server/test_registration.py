"""A broker that is registered in a real ZooKeeper: its nodes, while ZooKeeper and sessions come and go."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import WatchedEvent

from kbroker.cluster.new_topics import NewTopic
from kbroker.cluster.shown_nodes import CannotRegister
from kbroker.config.broker_config import load_config
from kbroker.coordination import paths
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.model import Endpoint
from kbroker.server.broker import Broker
from tests.kit.brokers.process import free_port
from tests.kit.kafka import maven
from tests.kit.kafka.process import KafkaInMemory
from tests.kit.kafka.zookeeper import ZooKeeperProcess
from tests.kit.proxies.dropping import DroppingProxy

WAIT_S = 30.0
COUNT = itertools.count()


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperProcess]:
    try:
        KafkaInMemory.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with ZooKeeperProcess() as server:
        yield server


class Registered:
    """A chroot in a ZooKeeper, a reader of it, and brokers to register there."""

    def __init__(self, server: ZooKeeperProcess, folder: Path, chroot: str = ""):
        self.server = server
        self.folder = folder
        self.chroot = chroot or f"/{next(COUNT)}/of-tests"
        self.address = server.address + self.chroot
        self.client = KazooClient(self.address, timeout=60.0)
        with warnings.catch_warnings(action="ignore"):  # that there is no chroot yet
            self.client.start()
        self.brokers: list[Broker] = []

    def broker(self, folder: str = "data", start: bool = True, **settings: object) -> Broker:
        given = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "zookeeper.connect": self.address,
            "zookeeper.session.timeout.ms": 30_000,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        overrides = [f"{name}={value}" for name, value in given.items()]
        broker = Broker(load_config(None, overrides, self.folder / folder, environment={}))
        self.brokers.append(broker)
        if start:
            broker.start()
        return broker

    def close(self) -> None:
        for broker in self.brokers:
            broker.stop()
        self.client.stop()
        self.client.close()

    def json(self, path: str) -> Any:
        return json.loads(self.client.get(path)[0])

    def await_node(self, path: str, is_there: bool = True) -> None:
        self.await_that(path, lambda: (self.client.exists(path) is not None) == is_there)

    def await_that(self, path: str, is_so: Callable[[], bool]) -> None:
        """Wait for a condition; check it again whenever something happens to the node."""
        deadline = time.monotonic() + WAIT_S
        while True:
            changed = threading.Event()

            def tell(_event: WatchedEvent, changed: threading.Event = changed) -> None:
                changed.set()

            if self.client.exists(path, tell) is not None:
                with contextlib.suppress(NoNodeError):  # it has gone in between, which the other watch tells
                    self.client.get_children(path, tell)
            if is_so():
                return
            assert changed.wait(max(0.0, deadline - time.monotonic())), path


@pytest.fixture
def registered(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Registered]:
    registered = Registered(zookeeper, tmp_path)
    yield registered
    registered.close()


class Told(logging.Handler):
    """Waits for a line in the log."""

    def __init__(self, text: str):
        super().__init__()
        self.text = text
        self.come = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.come.set()


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told("not in step with ZooKeeper, the broker serves on: ")
    logging.getLogger("kbroker").addHandler(told)
    yield told
    logging.getLogger("kbroker").removeHandler(told)


def create(broker: Broker, *names: str, partitions: int = 1) -> None:
    for result in broker._topics.create([NewTopic(name, partitions) for name in names]):
        assert not isinstance(result, Exception), result


def session_of(broker: Broker) -> ZooKeeperStore:
    registration = broker._registration
    assert registration is not None and registration._session is not None
    return registration._session


def test_a_broker_that_is_ready_is_found_with_its_topics_and_one_that_stops_is_gone(registered: Registered) -> None:
    broker = registered.broker(**{"broker.id": 7, "broker.rack": "r1"})
    port = broker.endpoints[0].port
    data, stat = registered.client.get("/brokers/ids/7")
    assert stat.ephemeralOwner == session_of(broker).session_id
    found = json.loads(data)
    assert abs(int(found.pop("timestamp")) - time.time() * 1000) < 600_000
    assert found == {
        "features": {},
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"],
        "rack": "r1",
        "jmx_port": -1,
        "port": port,
        "host": "127.0.0.1",
        "version": 5,
    }
    assert registered.json("/controller")["brokerid"] == 7
    assert registered.json("/cluster/id")["id"] == broker._topics.cluster_id
    for path in (*paths.PERSISTENT, paths.CONTROLLER_EPOCH):
        assert registered.client.exists(path), path
    create(broker, "t", partitions=2)
    registered.await_node("/brokers/topics/t/partitions/1/state")
    assert registered.json("/brokers/topics/t")["partitions"] == {"0": [7], "1": [7]}
    state = {"controller_epoch": 1, "leader": 7, "version": 1, "leader_epoch": 0, "isr": [7]}
    assert registered.json("/brokers/topics/t/partitions/1/state") == state
    broker._topics.add_partitions("t", 3)
    registered.await_node("/brokers/topics/t/partitions/2/state")
    broker._topics.delete("t")
    registered.await_node("/brokers/topics/t", is_there=False)
    create(broker, "kept")
    registered.await_node("/brokers/topics/kept/partitions/0/state")
    found: list[str] = ["not asked"]

    def look() -> None:
        found[:] = registered.client.get_children("/brokers/ids")

    # Between the first thing that stops and the next: nobody finds a broker that does not serve any more.
    broker._stops.insert(-1, ("look", look))
    broker.stop()
    assert found == []
    assert registered.client.exists("/controller") is None
    assert registered.client.get_children("/brokers/topics") == ["kept"]


def test_what_is_advertised_is_what_is_registered(registered: Registered) -> None:
    port = free_port()
    registered.broker(
        listeners=f"IN://127.0.0.1:0,OUT://127.0.0.1:{port}",
        **{
            "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
            "advertised.listeners": "IN://in.example:1,OUT://out.example:2",
            "inter.broker.listener.name": "IN",
        },
    )
    found = paths.decode_broker("/b", registered.client.get("/brokers/ids/1")[0])
    assert found.endpoints == (
        Endpoint("IN", "PLAINTEXT", "in.example", 1),
        Endpoint("OUT", "PLAINTEXT", "out.example", 2),
    )


def test_a_start_shows_what_has_changed_meanwhile(registered: Registered) -> None:
    broker = registered.broker()
    create(broker, "kept", "gone", partitions=2)
    broker.stop()
    alone = registered.broker(**{"zookeeper.connect": ""})
    assert registered.client.get_children("/brokers/ids") == []
    alone._topics.delete("gone")
    create(alone, "new")
    alone.stop()
    registered.broker()
    registered.await_that(
        "/brokers/topics", lambda: sorted(registered.client.get_children("/brokers/topics")) == ["kept", "new"]
    )
    registered.await_that("/controller_epoch", lambda: registered.client.get("/controller_epoch")[0] == b"3")


def test_a_session_that_expires_is_followed_by_a_new_registration(
    registered: Registered, caplog: pytest.LogCaptureFixture
) -> None:
    broker = registered.broker()
    create(broker, "before")
    registered.await_node("/brokers/topics/before/partitions/0/state")
    first = session_of(broker)
    caplog.set_level(logging.INFO)
    registered.server.expire(first)
    registered.await_that(
        "/brokers/ids",
        lambda: (
            registered.client.get_children("/brokers/ids") == ["1"]
            and registered.client.get("/brokers/ids/1")[1].ephemeralOwner != first.session_id
        ),
    )
    registered.await_node("/controller")
    assert registered.client.get("/controller")[1].ephemeralOwner == session_of(broker).session_id
    create(broker, "after")
    registered.await_node("/brokers/topics/after/partitions/0/state")
    said = [record.message for record in caplog.records]
    assert sum("has expired" in line for line in said) == 1
    assert sum(line.startswith("registered in ZooKeeper") for line in said) == 1


def test_a_registration_that_is_refused_is_tried_again(registered: Registered, told: Told) -> None:
    broker = registered.broker()
    registered.client.create("/brokers/ids/2", ephemeral=True)
    registered.server.expire(session_of(broker))
    assert told.come.wait(WAIT_S)
    assert registered.client.get_children("/brokers/ids") == ["2"]
    registered.client.delete("/brokers/ids/2")
    registered.await_node("/brokers/ids/1")


def test_nodes_that_somebody_removes_are_made_again(registered: Registered) -> None:
    broker = registered.broker()
    for path in ("/brokers/ids/1", "/controller"):
        registered.client.delete(path)
        registered.await_node(path)
        assert registered.client.get(path)[1].ephemeralOwner == session_of(broker).session_id
    # And with the broker's node whatever else is missing.
    create(broker, "t")
    registered.await_node("/brokers/topics/t/partitions/0/state")
    registered.client.delete("/brokers/topics/t", recursive=True)
    registered.client.delete("/brokers/ids/1")
    registered.await_node("/brokers/topics/t/partitions/0/state")


def test_a_broker_serves_on_without_its_zookeeper_and_catches_up(registered: Registered, told: Told) -> None:
    with DroppingProxy(registered.server.port) as proxy:
        broker = registered.broker(
            **{
                "zookeeper.connect": f"127.0.0.1:{proxy.port}{registered.chroot}",
                "zookeeper.session.timeout.ms": 1000,
                "zookeeper.connection.timeout.ms": 500,
            }
        )
        create(broker, "gone")
        registered.await_node("/brokers/topics/gone/partitions/0/state")
        proxy.target_port = free_port()
        proxy.drop(1.0, random.Random(0))
        create(broker, "made-meanwhile")
        broker._topics.delete("gone")
        registered.await_node("/brokers/ids/1", is_there=False)
        create(broker, "made-later")
        assert told.come.wait(WAIT_S)
        assert broker.is_ready
        proxy.target_port = registered.server.port
        registered.await_node("/brokers/topics/made-later/partitions/0/state")
        registered.await_node("/brokers/ids/1")
        assert sorted(registered.client.get_children("/brokers/topics")) == ["made-later", "made-meanwhile"]
        # A stop does not wait for a ZooKeeper that is away.
        proxy.target_port = free_port()
        proxy.drop(1.0, random.Random(0))
        broker.stop()


def test_a_broker_outlives_its_zookeeper(tmp_path: Path) -> None:
    with ZooKeeperProcess() as server:
        registered = Registered(server, tmp_path)
        broker = registered.broker(**{"zookeeper.session.timeout.ms": 60_000})
        server.kill()
        session = session_of(broker)
        create(broker, "t")
        server.start()
        session.exists("/")  # once its connection is back
        later = Registered(server, tmp_path, registered.chroot)
        later.await_node("/brokers/topics/t/partitions/0/state")
        assert later.client.get("/brokers/ids/1")[1].ephemeralOwner == session.session_id
        assert session_of(broker) is session
        later.close()
        registered.close()


def test_a_start_without_its_zookeeper_says_which_setting(registered: Registered) -> None:
    port = free_port()
    broker = registered.broker(
        start=False, **{"zookeeper.connect": f"127.0.0.1:{port}", "zookeeper.connection.timeout.ms": 300}
    )
    with pytest.raises(CannotRegister) as raised:
        broker.start()
    said = str(raised.value)
    assert said.startswith(f"zookeeper.connect=127.0.0.1:{port}: ")
    assert "cannot be reached" in said
    assert "zookeeper.connection.timeout.ms=300" in said
    assert "\n" not in said


def test_a_start_bears_a_zookeeper_that_goes_while_logs_are_opened(registered: Registered) -> None:
    with DroppingProxy(registered.server.port) as proxy:
        broker = registered.broker(
            start=False,
            **{
                "zookeeper.connect": f"127.0.0.1:{proxy.port}{registered.chroot}",
                "zookeeper.session.timeout.ms": 1000,
                "zookeeper.connection.timeout.ms": 20_000,
            },
        )
        broker._open_cluster()
        broker._open_server()
        first = session_of(broker)
        proxy.target_port = free_port()
        proxy.drop(1.0, random.Random(0))
        # Longer than the session lasts, and than a call waits.
        coming_back = threading.Timer(2.5, setattr, (proxy, "target_port", registered.server.port))
        coming_back.start()
        broker._start()
        assert session_of(broker) is not first
        assert registered.client.get("/brokers/ids/1")[1].ephemeralOwner == session_of(broker).session_id
        broker.stop()


def test_a_start_waits_for_the_session_of_the_broker_that_was_killed(
    registered: Registered, caplog: pytest.LogCaptureFixture
) -> None:
    """The old session ends while the start waits: ZooKeeper hears nothing of that session any more."""
    with DroppingProxy(registered.server.port) as proxy:
        way = f"127.0.0.1:{proxy.port}{registered.chroot}"
        old, older = ZooKeeperStore(way, 2.0), ZooKeeperStore(way, 3.0)
        old.make_chroot()
        for path in ("/brokers", "/brokers/ids"):
            old.create(path)
        dead = paths.BrokerRegistration((Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9),), None, 1)
        old.create("/brokers/ids/1", paths.encode_broker(dead), ephemeral=True)
        older.create("/controller", b"", ephemeral=True)
        proxy.target_port = free_port()
        proxy.drop(1.0, random.Random(0))
        broker = registered.broker()
        old.close()
        older.close()
    assert registered.client.get("/brokers/ids/1")[1].ephemeralOwner == session_of(broker).session_id
    said = [record.message for record in caplog.records if "still registered" in record.message]
    assert said == [
        f"broker.id=1 is still registered in ZooKeeper ({who}): waiting up to 60 s for that session to end"
        for who in ("PLAINTEXT://127.0.0.1:9", "as the controller")
    ]


def test_an_id_that_a_living_broker_has_is_refused(registered: Registered) -> None:
    other = ZooKeeperStore(registered.address, 30.0)
    other.make_chroot()
    for path in ("/brokers", "/brokers/ids"):
        other.create(path)
    living = paths.BrokerRegistration((Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", 9092),), None, 1)
    other.create("/brokers/ids/1", paths.encode_broker(living), ephemeral=True)
    broker = registered.broker(start=False, **{"zookeeper.session.timeout.ms": 1000})
    with pytest.raises(CannotRegister, match=r"broker\.id=1: .* alive \(PLAINTEXT://elsewhere:9092\)"):
        broker.start()
    assert other.get("/brokers/ids/1")[1].owner == other.session_id
    other.close()


def test_the_nodes_of_another_cluster_are_left_alone(registered: Registered) -> None:
    first = registered.broker("one")
    create(first, "t")
    first.stop()
    before = registered.server.nodes()
    with pytest.raises(CannotRegister, match=r"it holds cluster .* this broker is of cluster"):
        registered.broker("two")
    assert registered.server.nodes() == before


MODULES = """
import sys
from kbroker.config.broker_config import load_config
from kbroker.server.broker import Broker
overrides = ["listeners=PLAINTEXT://127.0.0.1:0", "zookeeper.connect=localhost:2181", "enable.zookeeper=false"]
broker = Broker(load_config(None, overrides, sys.argv[1], {}))
broker.start()
print("kazoo" in sys.modules, "kbroker.server.registration" in sys.modules)
broker.stop()
"""


def test_a_broker_that_is_not_registered_does_not_load_what_it_takes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MODULES, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=True, timeout=60).stdout == b"False False\n"
