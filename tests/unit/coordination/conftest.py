from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.kafka.zookeeper import ZooKeeperProcess


@pytest.fixture(scope="package")
def zookeeper(jars: Path) -> Iterator[ZooKeeperProcess]:
    """A real ZooKeeper; every test takes a chroot of its own."""
    with ZooKeeperProcess() as server:
        yield server
