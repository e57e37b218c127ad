"""A share of the transaction rounds, and that they can fail."""

import pytest

from tests.crash.transaction_rounds import Result, run
from tests.kit.crash.transaction_history import Outcome

SEEDS = [1, pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_transactions_show_no_anomaly_whatever_happens_to_the_broker_and_to_clients(seed: int) -> None:
    result = run(seed, seconds=5)
    assert not result.anomalies and not result.wrong, str(result)
    assert result.count(Outcome.ABORTED) > 5


@pytest.mark.timeout(300)
def test_a_reader_of_uncommitted_records_that_says_otherwise_is_found() -> None:
    wanted, found = {"aborted read (G1a)", "intermediate read (G1b)"}, set()
    for seed in range(4, 12):  # whether a seed shows the anomaly depends on timing
        result: Result = run(seed, seconds=1, faults=["drop_connections"], lies=True)
        assert {one.what.split(".")[0] for one in result.anomalies if "read" in one.kind} <= {"r1"}, str(result)
        found |= {one.kind for one in result.anomalies}
        if found >= wanted:
            break
    assert found >= wanted
