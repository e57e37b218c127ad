"""The five brokers. One runs at a time: pytest puts the tests of a session's fixture together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kbroker.client import AdminClient
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


@pytest.fixture
def admin(broker: SuiteBroker) -> Iterator[AdminClient]:
    with broker.admin() as made:
        yield made
