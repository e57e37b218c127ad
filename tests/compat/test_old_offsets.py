"""A client that assumes a broker before Kafka 0.9: where it commits, and which ends of a log it is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat.clients import named
from tests.compat.test_clients import create_topic, produce_arguments
from tests.kit.brokers.process import BrokerProcess

CLIENT = named("kafka-python-2.0")
COUNT = 20


def old_offsets(broker: BrokerProcess, topic: str, version: tuple[int, ...], offset: int | None) -> dict[str, Any]:
    return CLIENT.run(
        "old_offsets", bootstrap=broker.address, topic=topic, group=topic, api_version=version, offset=offset
    )


@pytest.mark.slow
@pytest.mark.parametrize("version", [(0, 8, 1), (0, 8, 2), (0, 9), (0, 10)], ids=str)
def test_a_client_of_an_old_broker_finds_what_it_has_committed(broker: BrokerProcess, version: tuple[int, ...]) -> None:
    topic = create_topic(broker, 1)
    CLIENT.run("produce", **produce_arguments(broker, topic, count=COUNT))
    ends = {"earliest": 0, "latest": COUNT}
    assert old_offsets(broker, topic, version, 7) == {"before": None, "committed": 7, "position": 7, **ends}
    assert old_offsets(broker, topic, version, None) == {"before": 7, "committed": 7, "position": 7, **ends}


@pytest.mark.slow
def test_a_client_of_0_8_1_and_a_newer_one_do_not_see_each_others_offsets(broker: BrokerProcess) -> None:
    topic = create_topic(broker, 1)
    old_offsets(broker, topic, (0, 8, 1), 0)
    assert old_offsets(broker, topic, (0, 8, 2), None)["committed"] is None
