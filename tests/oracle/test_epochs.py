"""Every scenario of versions that only Kafka 4.3 has: kbroker answers what Apache Kafka 4.3.1 answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.kafka.process import Kafka4InMemory
from tests.oracle.answers import differences
from tests.oracle.matrix import Case, Matrix
from tests.oracle.scenario import NEWER
from tests.oracle.scenarios import epochs, tools
from tests.oracle.test_answers import answered

_ = epochs, tools

CASES: list[Case] = [(scenario, scenario.versions[0]) for scenario in NEWER.values()]
SLOW = "end_txn.epochs_that_are_used_up"
"""The only scenario with 64,000 requests."""


@pytest.fixture(scope="module")
def newer_matrix() -> Iterator[Matrix]:
    with Matrix(kafka=Kafka4InMemory) as started:
        started.begin(case for case in CASES if case[0].id != SLOW)
        yield started


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case[0].id, marks=pytest.mark.slow if case[0].id == SLOW else ()) for case in CASES],
)
def test_kbroker_answers_as_kafka_4_does(newer_matrix: Matrix, case: Case) -> None:
    if case[0].id == SLOW:
        newer_matrix.begin([case])
    kafka, ours = newer_matrix.of(*case)
    if kafka.stopped is not None:
        raise AssertionError(f"the scenario does not work with Kafka: {kafka.stopped!r}") from kafka.stopped
    assert ours.stopped is None
    found = differences(answered(kafka), answered(ours))
    assert not found, "\n".join(f"{path}\n    Kafka   {theirs}\n    kbroker {mine}" for path, theirs, mine in found)
