"""A client's network core on its thread, and brokers to talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.client.config.network import NETWORK
from kbroker.client.config.parsing import parse_options
from kbroker.client.network.cluster import Cluster, begin
from kbroker.client.network.thread import ClientThread
from kbroker.coordination.zookeeper import ZooKeeperStore
from tests.kit.brokers.whole import WholeBroker
from tests.kit.kafka.zookeeper import ZooKeeperProcess

MakeCluster = Callable[..., Cluster]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeBroker]:
    with WholeBroker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def cluster_of() -> Iterator[MakeCluster]:
    """Makes a Cluster of options; its thread is stopped with the test."""
    threads: list[ClientThread] = []

    def make(port: int | None = None, **options: Any) -> Cluster:
        if port is not None:
            options.setdefault("bootstrap_servers", f"127.0.0.1:{port}")
        cluster = begin(parse_options(NETWORK, None, options))
        threads.append(cluster.network.thread)
        return cluster

    yield make
    assert all(thread.stop(10) for thread in threads)


@pytest.fixture
def descriptors() -> Callable[[], int]:
    return lambda: len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(scope="package")
def zookeeper(jars: Path) -> Iterator[ZooKeeperProcess]:
    """A real ZooKeeper; every test takes a chroot of its own."""
    with ZooKeeperProcess() as server:
        yield server


@pytest.fixture
def address(zookeeper: ZooKeeperProcess, request: pytest.FixtureRequest) -> str:
    """The address of a chroot that is not there yet."""
    return f"{zookeeper.address}/{abs(hash(request.node.nodeid))}/chroot"


@pytest.fixture
def tree(address: str) -> Iterator[ZooKeeperStore]:
    """What somebody else does there: brokers that come and go."""
    store = ZooKeeperStore(address, 10)
    store.make_chroot()
    yield store
    store.close()
