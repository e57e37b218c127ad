"""No promise is broken in the first histories, and each is the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.simulation import Plan, run_seed

ROOT = Path(__file__).parents[2]
SEEDS = 300
"""In make test; the others are in make test-all and `make simulate`."""
MORE_SEEDS = 10_000


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys; from tests.simulation.__main__ import main; sys.exit(main())", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_no_promise_is_broken(first: int) -> None:
    done = simulate("--first", str(first), "--seeds", "50", "--processes", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("50 seeds")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_promise_is_broken_in_many_histories() -> None:
    done = simulate("--first", str(SEEDS), "--seeds", str(MORE_SEEDS - SEEDS))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("seed", [69, 80])
def test_a_broker_that_was_paused_beyond_its_session_comes_back(seed: int) -> None:
    """69: a read of the tree was repeated when the session had ended, for ever. 80: a replica was moved away, and its
    topic deleted, before the broker was back."""
    faults = ("tree", "cut", "pause", "reset", "admin")
    assert run_seed(seed, plan=replace(Plan.of(seed), faults=faults)).broken == ""


@pytest.mark.parametrize("seed", [1, 3])
def test_a_seed_is_the_same_history_in_each_process(seed: int) -> None:
    histories = {simulate("--seed", str(seed), hash_seed=hash_seed).stdout for hash_seed in ("0", "1")}
    assert len(histories) == 1
    assert histories.pop().count("\n") > 100
