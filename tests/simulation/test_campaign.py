"""Many seeds, in this process and in others, have the same outcomes."""

from __future__ import annotations

from tests.simulation.campaign import outcomes


def test_processes_have_the_outcomes_that_one_has() -> None:
    found = []
    for processes in (1, 2):
        with outcomes(range(3), processes) as coming:
            found.append(sorted((each.seed, each.steps, each.checks, each.broken) for each in coming))
    assert [seed for seed, *_ in found[0]] == [0, 1, 2]
    assert found[0] == found[1]
