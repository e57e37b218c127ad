"""A kbroker that is the controller tells brokers what Apache Kafka 3.9.1 tells them, step by step of one story."""

from __future__ import annotations

import functools

import pytest

from kbroker.protocol.api import SERVED, ApiKey
from tests.oracle.control_story import Told, tell

CAN_BE_MEMBER = ApiKey.LEADER_AND_ISR in SERVED


@functools.cache
def told_by_kafka() -> dict[str, Told]:
    return tell(("kafka", "kafka"))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_apache_kafka_tells_is_the_same_each_time() -> None:
    assert tell(("kafka", "kafka")) == told_by_kafka()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not CAN_BE_MEMBER, reason="this kbroker cannot be a member of a cluster")
@pytest.mark.parametrize("kinds", [("kbroker", "kbroker"), ("kbroker", "kafka"), ("kafka", "kbroker")], ids="-".join)
def test_a_controller_tells_brokers_what_apache_kafka_tells_them(kinds: tuple[str, str]) -> None:
    told = tell(kinds)
    for step, expected in told_by_kafka().items():
        assert told[step] == expected, step
