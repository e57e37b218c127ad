from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.brokers.process import BrokerProcess
from tests.kit.brokers.small import SmallBroker
from tests.kit.clients.wire import WireClient
from tests.kit.cluster.members import Members
from tests.kit.kafka.zookeeper import ZooKeeperProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallBroker]:
    """A broker without topics. A module that needs topics, or a whole broker, has its own fixture of that name."""
    with SmallBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def client(broker: SmallBroker | BrokerProcess) -> Iterator[WireClient]:
    with WireClient("127.0.0.1", broker.port) as client:
        yield client


@pytest.fixture
def handed_over(broker: SmallBroker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The correlation ids of the requests that were handed to a handler."""
    handed: list[int] = []
    enqueue = broker.channel.enqueue

    def note(request: Any, processor: Any) -> bool:
        handed.append(request.correlation_id)
        return enqueue(request, processor)

    monkeypatch.setattr(broker.channel, "enqueue", note)
    return handed


@pytest.fixture
def own_zookeeper(jars: Path, tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper for one test, which may kill it and start it again."""
    server = ZooKeeperProcess(tmp_path / "zookeeper")
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def zookeeper(jars: Path) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess() as server:
        yield server


@pytest.fixture
def members(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[Members]:
    made = Members(zookeeper, tmp_path)
    yield made
    made.close()
