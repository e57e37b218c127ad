"""The five brokers. One runs at a time: pytest puts the tests of a session's fixture together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kbroker.client import AdminClient
from tests.client_suite.java_peer import JavaPeer
from tests.client_suite.suite_broker import SETTINGS, SuiteBroker
from tests.kit.broker import BrokerProcess, Kafka4InMemory
from tests.kit.zookeeper import Kafka010, Kafka25, KafkaOnZooKeeper

Start = Callable[[dict[str, object]], BrokerProcess]
BROKERS: dict[str, Start] = {
    "kbroker": BrokerProcess,
    "kafka-0.10.2": Kafka010,
    "kafka-2.5": Kafka25,
    "kafka-3.9": KafkaOnZooKeeper,
    "kafka-4.3": Kafka4InMemory,
}
# The Java clients of the broker's own release; the newest ones for kbroker.
JAVA = {
    "kbroker": "4.3.1",
    "kafka-0.10.2": "0.10.2.2",
    "kafka-2.5": "2.5.1",
    "kafka-3.9": "3.9.1",
    "kafka-4.3": "4.3.1",
}
ALWAYS = ("kbroker", "kafka-0.10.2")


@pytest.fixture(
    scope="session",
    params=[pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.slow) for name in BROKERS],
)
def broker(request: pytest.FixtureRequest) -> Iterator[SuiteBroker]:
    process = BROKERS[request.param](SETTINGS)
    process.heap = "256m"  # type: ignore[attr-defined]
    with process:
        yield SuiteBroker(request.param, process)


@pytest.fixture(scope="session")
def java(broker: SuiteBroker) -> Iterator[JavaPeer]:
    with JavaPeer(JAVA[broker.name], broker.address) as peer:
        yield peer


@pytest.fixture
def admin(broker: SuiteBroker) -> Iterator[AdminClient]:
    with broker.admin() as made:
        yield made
