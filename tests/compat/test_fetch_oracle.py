"""Random histories of Fetch: Apache Kafka 3.9 answers as the model that our unit tests compare with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kit.brokers.process import BrokerProcess
from tests.kit.kafka.process import KafkaProcess
from tests.kit.models.fetch_machine import FETCH_MAX_BYTES, FetchMachine, WireWorld


@pytest.fixture(scope="module", params=[BrokerProcess, KafkaProcess], ids=["kbroker", "kafka"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    settings: dict[str, object] = {
        "fetch.max.bytes": FETCH_MAX_BYTES,
        "auto.create.topics.enable": "false",
        "log.retention.ms": -1,  # the records are of 1970
    }
    with request.param(settings) as started:
        yield started


@pytest.mark.slow
def test_every_answer_is_the_models(broker: BrokerProcess) -> None:
    run_state_machine_as_test(
        lambda: FetchMachine(WireWorld(broker.port)),
        settings=settings(
            max_examples=30,
            stateful_step_count=25,
            phases=[Phase.generate],  # shrinking takes long where every topic takes a tenth of a second
            suppress_health_check=list(HealthCheck),
        ),
    )
