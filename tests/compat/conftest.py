"""The broker that other people's clients are run against: kbroker, or Apache Kafka 3.9 to test the tests themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.kit.broker import BrokerProcess, KafkaProcess


def new_broker() -> BrokerProcess:
    return KafkaProcess() if os.environ.get("KBROKER_COMPAT_AGAINST") == "kafka" else BrokerProcess()


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with new_broker() as started:
        yield started
