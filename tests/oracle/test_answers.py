"""Every scenario at every version of its API: kbroker answers as Apache Kafka does, except for listed deviations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit import build
from tests.oracle import deviations, scenarios
from tests.oracle.answers import differences
from tests.oracle.cluster_deviations import IN_CLUSTERS
from tests.oracle.deviations import DEVIATIONS
from tests.oracle.errors import ERRORS
from tests.oracle.matrix import Case, Matrix
from tests.oracle.other_deviations import OTHERS
from tests.oracle.scenario import SCENARIOS, Run, codes_in

_ = scenarios

CASES: list[Case] = [(scenario, version) for scenario in SCENARIOS.values() for version in scenario.versions]
SEEN: dict[str, set[str]] = {}
"""The error codes that Kafka has given in this run, by API."""


def is_for_every_run(case: Case) -> bool:
    """Return whether a case is the first or last version of its scenario; `make test-all` runs those between, too."""
    scenario, version = case
    return version in (scenario.versions[0], scenario.versions[-1])


PARAMETERS = [
    pytest.param(case, id=f"{case[0].id}-v{case[1]}", marks=() if is_for_every_run(case) else pytest.mark.slow)
    for case in CASES
]


@pytest.fixture(scope="session")
def matrix(request: pytest.FixtureRequest) -> Iterator[Matrix]:
    """Both brokers; the scenarios of the session's tests are started already."""
    wanted = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.function is test_kbroker_answers_as_kafka_does
    ]
    with Matrix() as started:
        started.begin(wanted)
        yield started


def answered(run: Run) -> dict[str, object]:
    return {step.label: step.seen for step in run.steps}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", PARAMETERS)
def test_kbroker_answers_as_kafka_does(matrix: Matrix, case: Case) -> None:
    scenario, version = case
    kafka, ours = matrix.of(scenario, version)
    if kafka.stopped is not None:
        raise AssertionError(f"the scenario does not work with Kafka: {kafka.stopped!r}") from kafka.stopped
    for step in kafka.steps:
        SEEN.setdefault(step.api, set()).update(codes_in(step.seen))
    listed = [one for one in DEVIATIONS if one.is_about(scenario.id, version)]
    found = differences(answered(kafka), answered(ours))
    unlisted = [one for one in found if not any(deviation.covers(*one) for deviation in listed)]
    assert not unlisted, "\n".join(
        f"{path}\n    Kafka   {theirs}\n    kbroker {mine}" for path, theirs, mine in unlisted
    )
    gone = [deviation for deviation in listed if not any(deviation.covers(*one) for one in found)]
    assert not gone, f"listed, but not there any more: {gone}"


def test_deviations_name_scenarios_that_are_there() -> None:
    for deviation in DEVIATIONS:
        for pattern in deviation.scenarios:
            assert any(deviations.matches(pattern, one) for one in SCENARIOS), pattern


def test_other_deviations_have_a_test() -> None:
    for other in (*IN_CLUSTERS, *OTHERS):
        path, _, name = other.test.partition("::")
        assert f"def {name}(" in (build.ROOT / path).read_text(), other.test


def test_each_error_that_kafka_can_give_was_given(request: pytest.FixtureRequest) -> None:
    """The table of errors is right: Kafka has given the errors that it says are provoked, and no others."""
    ran = [item for item in request.session.items if item.name.startswith("test_kbroker_answers_as_kafka_does")]
    if len(ran) < len(CASES) / 4:
        pytest.skip("only some scenarios were run")
    for api, codes in ERRORS.items():
        provoked = {code.name for code, reason in codes.items() if reason is None}
        given = SEEN[api.label] - {"NONE"}
        assert given == provoked, api.label
