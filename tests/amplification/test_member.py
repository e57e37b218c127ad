"""Requests between brokers cost a member of a cluster what they weigh, whoever sends them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from kbroker.protocol.api import SERVED, ApiKey
from tests.amplification.bounds import limit_of_member
from tests.amplification.furnished_broker import FurnishedBroker
from tests.amplification.furnishing import Furnisher
from tests.amplification.naming import RESTORED, given_for
from tests.amplification.shapes import Shape, shapes_of
from tests.kit.kafka import maven
from tests.kit.kafka.process import KafkaInMemory
from tests.kit.kafka.zookeeper import ZooKeeperProcess

OF_REPLICAS = (
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.WRITE_TXN_MARKERS,
)
OF_CONTROL = (
    ApiKey.ALTER_PARTITION,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.STOP_REPLICA,
    ApiKey.LEADER_AND_ISR,
    ApiKey.UPDATE_METADATA,
)
"""After these a broker believes much that is not so: another takes its place."""
NODE_ID, STRANGER = 7, 8
AS_BROKER: dict[str, Any] = {
    # The first controller's epoch, and a registration that is not looked at.
    "controller_id": NODE_ID,
    "controller_epoch": 1,
    "broker_epoch": -1,
    "broker_id": NODE_ID,
    "leader_epoch": 1 << 20,
    "leader": NODE_ID,
    "replicas": NODE_ID,
    "isr": NODE_ID,
    "replica_id": STRANGER,
    "replica_epoch": -1,
    "last_fetched_epoch": 1,
    "security_protocol": 0,
    "rack": None,
    "is_new": True,
}
SMALL, LARGE = 64 << 10, 1 << 20


@pytest.fixture(scope="module")
def broker() -> Iterator[FurnishedBroker]:
    try:
        KafkaInMemory.classpath()
    except maven.MavenFailed as missing:
        pytest.skip(str(missing))
    with ZooKeeperProcess() as server:
        numbers = itertools.count()

        def settings() -> dict[str, object]:
            return {"zookeeper.connect": f"{server.address}/heavy/{next(numbers)}", "broker.id": NODE_ID}

        made = FurnishedBroker(settings)
        yield made
        made.discard()


@pytest.fixture
def misled(broker: FurnishedBroker) -> Iterator[FurnishedBroker]:
    yield broker
    broker.discard()


def findings(broker: FurnishedBroker, shapes: Iterator[Shape], size: int) -> list[str]:
    found = []
    for shape in shapes:

        def build(furnisher: Furnisher, shape: Shape = shape) -> list[bytes]:
            if shape.api_key in RESTORED:
                getattr(furnisher, RESTORED[shape.api_key])()
            return [shape.build(given_for(shape.api_key, furnisher) | AS_BROKER, size)]

        what = broker.finding(build, partial(limit_of_member, shape.api_key))
        if what is not None:
            found.append(f"{shape}: {what}")
    return found


@pytest.mark.parametrize("api_key", OF_REPLICAS, ids=lambda key: key.label)
def test_what_replicas_and_coordinators_ask_costs_what_it_weighs(broker: FurnishedBroker, api_key: ApiKey) -> None:
    assert not findings(broker, shapes_of(api_key, SERVED[api_key].max), SMALL)


@pytest.mark.parametrize("api_key", OF_CONTROL, ids=lambda key: key.label)
def test_what_controllers_tell_and_are_asked_costs_what_it_weighs(misled: FurnishedBroker, api_key: ApiKey) -> None:
    assert not findings(misled, shapes_of(api_key, SERVED[api_key].max), SMALL)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("api_key", [*OF_REPLICAS, *OF_CONTROL], ids=lambda key: key.label)
def test_large_requests_cost_what_they_weigh(misled: FurnishedBroker, api_key: ApiKey) -> None:
    assert not findings(misled, shapes_of(api_key, SERVED[api_key].max), LARGE)
