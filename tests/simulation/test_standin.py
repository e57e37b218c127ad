"""The simulator itself: a small cluster that is right keeps every promise; what is wrong with it is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.simulation import run_seed
from tests.simulation.standin import Mistakes, StandInKit

ROOT = Path(__file__).parents[2]
SEEDS = 40


@pytest.mark.parametrize("seed", range(10))
def test_a_cluster_without_mistakes_keeps_every_promise(seed: int) -> None:
    outcome = run_seed(seed, StandInKit())
    assert not outcome.broken, outcome.summary
    assert outcome.checks > 100


@pytest.mark.parametrize("mistake", Mistakes._fields)
def test_a_mistake_is_found(mistake: str) -> None:
    kit = StandInKit(Mistakes(**{mistake: True}))
    assert any(run_seed(seed, kit).broken for seed in range(SEEDS))


def test_a_seed_is_the_same_history_in_each_process() -> None:
    histories = {
        subprocess.run(
            [sys.executable, "-c", "from tests.simulation.simulation import run_seed; print(run_seed(3).history)"],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, check=True,
        ).stdout
        for hash_seed in ("0", "1")
    }  # fmt: skip
    assert len(histories) == 1
    assert len(histories.pop()) > 1000
