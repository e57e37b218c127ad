"""The broker that other people's clients are run against: kbroker, or Apache Kafka 3.9 to test the tests themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pytest

from tests.kit.brokers.process import BrokerProcess
from tests.kit.kafka.process import KafkaProcess


def new_broker(settings: Mapping[str, object] | None = None) -> BrokerProcess:
    kind = KafkaProcess if os.environ.get("KBROKER_COMPAT_AGAINST") == "kafka" else BrokerProcess
    return kind(None if settings is None else dict(settings))


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with new_broker() as started:
        yield started
