"""Fetch and its sessions do what the model does, for every history that hypothesis finds."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.kit.brokers.small import SmallBroker
from tests.kit.models.fetch_machine import FETCH_MAX_BYTES, FetchMachine


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallBroker]:
    with SmallBroker(
        tmp_path_factory.mktemp("fetch"), session_slots=3, min_eviction_ms=1000, fetch_max_bytes=FETCH_MAX_BYTES
    ) as broker:
        broker.advance_ms(0)
        yield broker


def test_every_answer_is_the_models(broker: SmallBroker) -> None:
    run_state_machine_as_test(
        lambda: FetchMachine(broker),
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
