"""Apache Kafka in ZooKeeper mode, a real ZooKeeper below it, and ZooKeeper's tree of nodes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from kbroker.coordination.store import Store
from kbroker.coordination.zookeeper import ZooKeeperStore
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.testing import zookeeper
from tests.kit.brokers.process import ServerProcess, write_properties
from tests.kit.clients.wire import ConnectionClosed, WireClient
from tests.kit.kafka import maven
from tests.kit.kafka.java_program import java
from tests.kit.kafka.process import KAFKA_ALONE, KafkaInMemory

TIMEOUT_S = 30.0


class Node(NamedTuple):
    """A node of the tree as a reader sees it."""

    data: bytes
    is_ephemeral: bool
    version: int


Nodes = Mapping[str, Node]


def zookeeper_jars() -> Path:
    """Return the folder of jars that `kbroker.testing.Cluster` can take ZooKeeper from."""
    return Path(KafkaInMemory.classpath().split(os.pathsep)[0]).parent


class ZooKeeperProcess(ServerProcess):
    """A ZooKeeper server of the release that comes with Kafka 3.9.1."""

    def command(self) -> list[str]:
        settings = zookeeper.properties(self.data, self.port, self.host.address)
        properties = write_properties(self.folder / "zookeeper.properties", settings)
        machine = java(KafkaInMemory.classpath(), *zookeeper.JAVA_OPTIONS)
        return [*machine, zookeeper.MAIN_CLASS, str(properties)]

    def is_ready(self) -> bool:
        return zookeeper.serves(self.port, self.host.address)

    def expire(self, session: ZooKeeperStore) -> None:
        """End a session, as this server does with one it hears nothing from: by closing it elsewhere. Returns when the
        session has noticed."""
        ended = threading.Event()
        session.on_end(ended.set)
        client_id = session._client.client_id
        deadline = time.monotonic() + TIMEOUT_S
        while not ended.is_set():
            assert time.monotonic() < deadline, "the session does not end"
            # The two take the session from each other until one of them has closed it.
            other = KazooClient(self.address, timeout=TIMEOUT_S, client_id=client_id)
            with contextlib.suppress(KazooTimeoutError):
                other.start(1)
                other.stop()
                other.close()
            ended.wait(1)

    def nodes(self) -> dict[str, Node]:
        """Return all nodes except ZooKeeper's own."""
        client = KazooClient(self.address, timeout=TIMEOUT_S, read_only=True)
        client.start(TIMEOUT_S)
        try:
            found = {}
            waiting = ["/"]
            while waiting:
                path = waiting.pop()
                try:
                    data, stat = client.get(path)
                    names = client.get_children(path)
                except NoNodeError:  # it has gone since its parent was read
                    continue
                found[path] = Node(data or b"", stat.ephemeralOwner != 0, stat.version)
                waiting += [f"{path.rstrip('/')}/{name}" for name in names if name != "zookeeper"]
            return found
        finally:
            client.stop()
            client.close()


class KafkaOnZooKeeper(KafkaInMemory):
    """Apache Kafka 3.9.1 in ZooKeeper mode, the oracle of files and nodes. The ZooKeeper outlives `stop`, as an
    ensemble would; the end of the context ends both."""

    def __init__(self, overrides: dict[str, object] | None = None, folder: Path | None = None):
        super().__init__(overrides, folder)
        self.zookeeper = ZooKeeperProcess(self.folder / "zookeeper")

    def command(self) -> list[str]:
        settings = {
            "broker.id": 0,
            "zookeeper.connect": self.zookeeper.address,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": self.data,
            **KAFKA_ALONE,
            **self.overrides,
        }
        properties = write_properties(self.folder / "server.properties", settings)
        return [*self.java(), "kafka.Kafka", str(properties)]

    def await_end_of_session(self) -> None:
        """Wait until ZooKeeper has noticed that a killed broker is gone. The broker cannot start again before."""
        deadline = time.monotonic() + TIMEOUT_S
        while any(node.is_ephemeral for node in self.zookeeper.nodes().values()):
            assert time.monotonic() < deadline, "the session of a killed broker does not end"
            time.sleep(0.05)

    def start(self) -> None:
        if self.zookeeper.process is None:
            self.zookeeper.start()
        super().start()

    def is_ready(self) -> bool:
        """Whether topics can be made: a broker answers before it has registered itself in ZooKeeper."""
        try:
            with WireClient("127.0.0.1", self.port) as client:
                return bool(client.call(ApiKey.METADATA, 0, M.MetadataRequest(topics=[])).brokers)
        except (OSError, ConnectionClosed):
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.process is not None and self.process.poll() is None:
                self.kill() if kind else self.stop()
        finally:
            self.zookeeper.kill()
            super().__exit__(kind, error, trace)


def nodes_of(store: Store) -> dict[str, Node]:
    """Return all nodes of one of our coordination stores."""
    found = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        data, stat = store.get(path)
        found[path] = Node(data, stat.owner != 0, stat.version)
        waiting += [f"{path.rstrip('/')}/{name}" for name in store.children(path)]
    return found


class Kafka25(KafkaOnZooKeeper):
    """Apache Kafka 2.5.1."""

    version = "2.5.1"
    heap = "256m"

    @classmethod
    def classpath(cls) -> str:
        return maven.fetch([f"org.apache.kafka:kafka_2.13:{cls.version}"])


class Kafka010(KafkaOnZooKeeper):
    """Apache Kafka 0.10.2.2: messages of magic 1, the first years of ApiVersions."""

    version = "0.10.2.2"
    heap = "256m"

    @classmethod
    def classpath(cls) -> str:
        # What Java had itself until version 9.
        return maven.fetch([f"org.apache.kafka:kafka_2.11:{cls.version}", "javax.xml.bind:jaxb-api:2.3.1"])


class OldKafka(KafkaOnZooKeeper):
    """Apache Kafka 0.9.0.1, which knows messages of magic 0 only and no ApiVersions."""

    version = "0.9.0.1"

    @classmethod
    def classpath(cls) -> str:
        return maven.fetch([f"org.apache.kafka:kafka_2.11:{cls.version}"])
