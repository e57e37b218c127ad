from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker.coordination.zookeeper import ZooKeeperStore
from tests.kit import maven
from tests.kit.broker import KafkaInMemory
from tests.kit.zookeeper import ZooKeeperProcess


@pytest.fixture(scope="package")
def zookeeper() -> Iterator[ZooKeeperProcess]:
    """A real ZooKeeper; every test takes a chroot of its own."""
    try:
        KafkaInMemory.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with ZooKeeperProcess() as server:
        yield server


@pytest.fixture
def address(zookeeper: ZooKeeperProcess, request: pytest.FixtureRequest) -> str:
    """Of a chroot that is not there yet."""
    return f"{zookeeper.address}/{abs(hash(request.node.nodeid))}/chroot"


@pytest.fixture
def tree(address: str) -> Iterator[ZooKeeperStore]:
    """What somebody else does there: brokers that come and go."""
    store = ZooKeeperStore(address, 10)
    store.make_chroot()
    yield store
    store.close()
