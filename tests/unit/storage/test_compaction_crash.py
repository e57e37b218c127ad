"""Compaction loses nothing and mixes nothing when the power is cut, at whatever operation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.crash_compaction import CompactionRun
from tests.kit.crash_log import quick_directory


@pytest.fixture(params=[1, 2], scope="module")
def run(request: pytest.FixtureRequest) -> Iterator[CompactionRun]:
    with quick_directory() as home:
        run = CompactionRun(home, seed=request.param)
        run.live()
        yield run


def test_a_power_cut_at_every_operation_of_a_cleaning_keeps_the_newest(run: CompactionRun) -> None:
    for first, last in run.cleanings:
        assert last > first
        for position in range(first, last + 1):
            run.check_power_cut(position, seed=position)


def test_a_process_killed_at_every_operation_of_a_cleaning_keeps_the_newest(run: CompactionRun) -> None:
    first, last = run.cleanings[-1]
    for position in range(first, last + 1):
        run.check_kill(position)


def test_a_power_cut_in_the_recovery_of_a_swap_keeps_the_newest(run: CompactionRun) -> None:
    first, last = run.cleanings[-1]
    for position in range(first, last + 1, 2):
        run.check_power_cut_in_recovery(position, seed=position)
