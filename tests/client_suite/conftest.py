"""The five brokers. One runs at a time, and each is started once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.client import AdminClient
from tests.client_suite.features import IDEMPOTENCE
from tests.client_suite.java_peer import JavaPeer
from tests.client_suite.suite_broker import SETTINGS, SuiteBroker
from tests.kit.brokers.process import BrokerProcess
from tests.kit.kafka.process import Kafka4InMemory
from tests.kit.kafka.zookeeper import Kafka010, Kafka25, KafkaOnZooKeeper

HERE = Path(__file__).parent
Start = Callable[[dict[str, object]], BrokerProcess]
BROKERS: dict[str, Start] = {
    "kbroker": BrokerProcess,
    "kafka-0.10.2": Kafka010,
    "kafka-2.5": Kafka25,
    "kafka-3.9": KafkaOnZooKeeper,
    "kafka-4.3": Kafka4InMemory,
}
ALWAYS = ("kbroker", "kafka-0.10.2")
# Releases of the Java clients, the one for `make test` first. Those of Kafka 4 want a broker of 2.1 or later.
JAVA = {
    "kbroker": ("4.3.1", "3.9.1", "2.5.1", "0.10.2.2"),
    "kafka-0.10.2": ("0.10.2.2", "3.9.1"),
    "kafka-2.5": ("2.5.1", "4.3.1"),
    "kafka-3.9": ("3.9.1",),
    "kafka-4.3": ("4.3.1",),
}


def marks(name: str, release: str | None = None) -> list[pytest.MarkDecorator]:
    return [] if name in ALWAYS and release in (None, JAVA[name][0]) else [pytest.mark.slow]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each broker; a test with Java clients, also with each Java release that is used with the broker."""
    if "java" in metafunc.fixturenames:
        pairs = [pytest.param(name, release, marks=marks(name, release)) for name in BROKERS for release in JAVA[name]]
        metafunc.parametrize(("broker", "java"), pairs, indirect=True, scope="session")
    elif "broker" in metafunc.fixturenames:
        names = [pytest.param(name, marks=marks(name)) for name in BROKERS]
        metafunc.parametrize("broker", names, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put all tests of one broker together, and among these all tests with one Java release."""

    def place(item: pytest.Item) -> tuple[int, str]:
        params = item.callspec.params  # type: ignore[attr-defined]
        return list(BROKERS).index(params["broker"]), params.get("java", "")

    def is_one(item: pytest.Item) -> bool:
        return item.path.is_relative_to(HERE) and hasattr(item, "callspec") and "broker" in item.callspec.params

    here = [number for number, item in enumerate(items) if is_one(item)]
    ordered = sorted((items[number] for number in here), key=place)
    for number, item in zip(here, ordered, strict=True):
        items[number] = item


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[SuiteBroker]:
    process = BROKERS[request.param](SETTINGS)
    process.heap = "256m"  # type: ignore[attr-defined]
    with process:
        yield SuiteBroker(request.param, process)


@pytest.fixture(scope="session")
def java(request: pytest.FixtureRequest, broker: SuiteBroker) -> Iterator[JavaPeer]:
    with JavaPeer(request.param, broker.address, broker.has(IDEMPOTENCE)) as peer:
        yield peer


@pytest.fixture
def admin(broker: SuiteBroker) -> Iterator[AdminClient]:
    with broker.admin() as made:
        yield made
