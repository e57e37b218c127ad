"""Between brokers, kbroker says what Apache Kafka 3.9.1 says: as the controller that tells, and as who is asked."""

from __future__ import annotations

import functools
import re

import pytest

from tests.oracle.answers import Tree
from tests.oracle.control_answers import CASES, ask_all
from tests.oracle.control_story import Told, tell

OTHERWISE = {
    "stop_replica_with_an_older_leader_epoch": "a follower of an unknown leader has noted the epoch",
    "alter_partition_with_replicas_that_cannot_be_in_sync": "only replicas of the partition can be in sync",
    "alter_partition_of_one_that_another_broker_leads": "only the leader says who is in sync",
    "alter_partition_that_changes_nothing_and_is_asked_twice": "what the two before have written in Kafka",
    "alter_partition_in_older_versions": "what the two before have written in Kafka",
    "topics_with_unknown_brokers_or_without_replicas": "a topic is not made where it could never be",
}
"""Cases in which kbroker is stricter than Kafka, or that follow one."""


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
@pytest.mark.parametrize("kinds", [("kbroker", "kbroker"), ("kbroker", "kafka"), ("kafka", "kbroker")], ids="-".join)
def test_a_controller_tells_brokers_what_apache_kafka_tells_them(kinds: tuple[str, str]) -> None:
    told = tell(kinds)
    for step, expected in told_by_kafka().items():
        assert told[step] - expected == frozenset(), step
        assert {line for line in expected - told[step] if not is_overtaken(line, told[step])} == set(), step


STATE = re.compile(r"(\w+) v\d+: .*, (\S+-\d+): .* partition epoch (\d+) ")


def is_overtaken(line: str, told: Told) -> bool:
    """Return whether a later state of the same partition was told in the same step: ours may leave the earlier out."""
    wanted = STATE.match(line)
    if wanted is None:
        return False
    others = [
        found for found in map(STATE.match, told) if found is not None and found.group(1, 2) == wanted.group(1, 2)
    ]
    return any(int(found[3]) > int(wanted[3]) for found in others)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", CASES)
def test_a_request_between_brokers_is_answered_as_apache_kafka_answers_it(name: str) -> None:
    ours, kafka = (answered_by(kinds)[name] for kinds in (("kbroker", "kbroker"), ("kafka", "kafka")))
    if name in OTHERWISE:
        assert ours != kafka, f"{name}: listed, but not there any more"
    else:
        assert ours == kafka
