"""The pytest plugin `kbroker`: fixtures for tests that need a broker. The guide is docs/TESTING.md.

pytest imports this module when it starts, so it imports nothing of kbroker. Each fixture imports what it needs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kbroker.client import Consumer, Producer
    from kbroker.testing.broker import Broker
    from kbroker.testing.cluster import Cluster
    from kbroker.testing.zookeeper import ZooKeeper

LONGEST_TOPIC_STEM = 200
_NUMBERS = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kbroker", "the broker of the fixture kbroker_broker")
    group.addoption(
        "--kbroker-setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the broker, by Kafka's name; wins over the ini file's",
    )
    parser.addini("kbroker_settings", "settings of kbroker_broker, one NAME=VALUE a line", type="linelist", default=[])
    parser.addini("kbroker_faults", "whether kbroker_broker has faults=True", type="bool", default=False)
    parser.addini("kbroker_zookeeper_jars", "a directory with the jars of a ZooKeeper, for kbroker_zookeeper")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kbroker_topic(partitions=1, **configs): how the topic of the fixture kbroker_topic is made"
    )
    config.addinivalue_line(
        "markers",
        "kbroker_cluster(brokers=3, cuts=False, racks=None, **settings): what the cluster of kbroker_cluster is like",
    )


@pytest.fixture(scope="session")
def kbroker_settings(pytestconfig: pytest.Config) -> dict[str, str]:
    """The settings of kbroker_broker, from the ini file and the command line. Override it to compute them."""
    settings = {}
    for line in [*pytestconfig.getini("kbroker_settings"), *pytestconfig.getoption("--kbroker-setting")]:
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise pytest.UsageError(f"{line!r} is not NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


@pytest.fixture(scope="session")
def kbroker_broker(kbroker_settings: dict[str, str], pytestconfig: pytest.Config) -> Iterator[Broker]:
    """One broker for all tests of the session; with pytest-xdist each worker has its own."""
    from kbroker.testing.broker import Broker

    with Broker(settings=kbroker_settings, faults=pytestconfig.getini("kbroker_faults")) as broker:
        yield broker


@pytest.fixture
def kbroker_topic(kbroker_broker: Broker, request: pytest.FixtureRequest) -> str:
    """The name of a new topic that no other test uses. The marker `kbroker_topic` gives its partitions and configs."""
    stem = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name)[:LONGEST_TOPIC_STEM]
    name = f"{stem}-{next(_NUMBERS)}"
    marker = request.node.get_closest_marker("kbroker_topic")
    kbroker_broker.create_topic(name, *(marker.args if marker else ()), **(marker.kwargs if marker else {}))
    return name


@pytest.fixture
def kbroker_producer(kbroker_broker: Broker) -> Iterator[Producer]:
    """A kbroker.client.Producer for this test alone. At its end it waits for the delivery of what was sent."""
    from kbroker.client import Producer

    with Producer(bootstrap_servers=kbroker_broker.bootstrap_servers) as producer:
        yield producer


@pytest.fixture
def kbroker_consumer(kbroker_broker: Broker, kbroker_topic: str) -> Iterator[Consumer]:
    """A kbroker.client.Consumer without a group that reads all of kbroker_topic from the first record on."""
    from kbroker.client import Consumer

    with Consumer(bootstrap_servers=kbroker_broker.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign_topics(kbroker_topic)
        yield consumer


@pytest.fixture(scope="session")
def kbroker_zookeeper(pytestconfig: pytest.Config) -> Iterator[ZooKeeper]:
    """A real ZooKeeper for the session. Tests that use it are skipped where Java or ZooKeeper's jars are missing."""
    from kbroker.testing.zookeeper import ZooKeeper, ZooKeeperMissing

    try:
        zookeeper = ZooKeeper(pytestconfig.getini("kbroker_zookeeper_jars") or None)
    except ZooKeeperMissing as missing:
        pytest.skip(str(missing))
    with zookeeper:
        yield zookeeper


@pytest.fixture
def kbroker_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three brokers and a ZooKeeper for this test alone. It is skipped where Java or ZooKeeper's jars are missing.

    The marker `kbroker_cluster` gives the number of brokers, `cuts` for `Cluster.isolate`, the brokers' `racks`, and
    settings with `_` for `.`: `min_insync_replicas=1`.
    """
    from kbroker.testing.cluster import Cluster
    from kbroker.testing.zookeeper import ZooKeeperMissing

    marker = request.node.get_closest_marker("kbroker_cluster")
    brokers, named = (marker.args, marker.kwargs) if marker else ((), {})
    of_the_cluster = ("brokers", "cuts", "racks")
    settings = {name.replace("_", "."): value for name, value in named.items() if name not in of_the_cluster}
    count = brokers[0] if brokers else named.get("brokers", 3)
    try:
        cluster = Cluster(
            count, settings=settings, cuts=named.get("cuts", False), racks=named.get("racks"),
            zookeeper_jars=request.config.getini("kbroker_zookeeper_jars") or None,
        )  # fmt: skip
    except ZooKeeperMissing as missing:
        pytest.skip(str(missing))
    with cluster:
        yield cluster
