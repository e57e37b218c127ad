"""Between brokers, kbroker says what Apache Kafka 3.9.1 says: as the controller that tells, and as who is asked."""

from __future__ import annotations

import functools

import pytest

from tests.kit.cluster.nodes import AS_MEMBER
from tests.oracle.answers import Tree
from tests.oracle.control_answers import CASES, ask_all
from tests.oracle.control_story import Told, tell


@functools.cache
def told_by_kafka() -> dict[str, Told]:
    return tell(("kafka", "kafka"))


@functools.cache
def answered_by(kinds: tuple[str, str]) -> dict[str, list[Tree]]:
    return ask_all(kinds)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_apache_kafka_tells_is_the_same_each_time() -> None:
    assert tell(("kafka", "kafka")) == told_by_kafka()


@pytest.mark.slow
@pytest.mark.timeout(400)
@AS_MEMBER
@pytest.mark.parametrize("kinds", [("kbroker", "kbroker"), ("kbroker", "kafka"), ("kafka", "kbroker")], ids="-".join)
def test_a_controller_tells_brokers_what_apache_kafka_tells_them(kinds: tuple[str, str]) -> None:
    told = tell(kinds)
    for step, expected in told_by_kafka().items():
        assert told[step] == expected, step


@pytest.mark.slow
@pytest.mark.timeout(200)
@AS_MEMBER
@pytest.mark.parametrize("name", CASES)
def test_a_request_between_brokers_is_answered_as_apache_kafka_answers_it(name: str) -> None:
    assert answered_by(("kbroker", "kbroker"))[name] == answered_by(("kafka", "kafka"))[name]
