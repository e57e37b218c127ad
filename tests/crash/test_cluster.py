"""A share of the cluster rounds, and that they can fail."""

from __future__ import annotations

import pytest

from tests.crash import migration
from tests.crash.cluster_rounds import run
from tests.kit.cluster.nodes import AS_MEMBER
from tests.kit.crash.transaction_history import Outcome

KBROKERS = ("kbroker", "kbroker", "kbroker")
KAFKAS = ("kafka", "kafka", "kafka")
MIXED = ("kbroker", "kbroker", "kafka")
MOSTLY_KAFKA = ("kafka", "kafka", "kbroker")


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("brokers", "seed"),
    [
        pytest.param(KBROKERS, 1, marks=AS_MEMBER),
        pytest.param(MIXED, 2, marks=AS_MEMBER),
        pytest.param(KBROKERS, 3, marks=[AS_MEMBER, pytest.mark.slow]),
        pytest.param(MOSTLY_KAFKA, 4, marks=[AS_MEMBER, pytest.mark.slow]),
        pytest.param(KAFKAS, 5, marks=pytest.mark.slow),
    ],
)
def test_nothing_acknowledged_is_lost_whatever_happens_to_brokers_and_networks(
    brokers: tuple[str, ...], seed: int
) -> None:
    result = run(seed, brokers=brokers, seconds=6)
    assert not result.is_bad, result
    assert result.outcomes[Outcome.COMMITTED] > 30 and result.records > 1000, result


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("plant", "fault"), [("acks=1", "isolate_leader"), ("unclean", "kill_in_order")])
@pytest.mark.parametrize("brokers", [KAFKAS, pytest.param(KBROKERS, marks=AS_MEMBER)], ids="-".join)
def test_records_that_only_a_lost_leader_had_are_missed(brokers: tuple[str, ...], plant: str, fault: str) -> None:
    result = run(1, brokers=brokers, seconds=4, faults=[fault], plant=plant)
    assert any("crash-" in line and "plain" in line for line in result.wrong), result


@pytest.mark.slow
@pytest.mark.timeout(600)
@AS_MEMBER
def test_kafkas_become_kbrokers_and_kafkas_again_under_load_and_nothing_is_lost() -> None:
    result = migration.run()
    assert not result.is_bad, result
    assert result.outcomes[Outcome.COMMITTED] > 30 and result.records > 1000, result
