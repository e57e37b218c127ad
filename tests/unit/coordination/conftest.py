from collections.abc import Iterator

import pytest

from tests.kit.kafka import maven
from tests.kit.kafka.process import KafkaInMemory
from tests.kit.kafka.zookeeper import ZooKeeperProcess


@pytest.fixture(scope="package")
def zookeeper() -> Iterator[ZooKeeperProcess]:
    """A real ZooKeeper; every test takes a chroot of its own."""
    try:
        KafkaInMemory.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with ZooKeeperProcess() as server:
        yield server
