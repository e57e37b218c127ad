"""Run seeds: `python -m tests.simulation --seed N` prints one history, `--seeds COUNT --first N` runs many.

Ends with status 1 if a promise was broken, and names the seeds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulation.simulation import Outcome, run_seed

HASH_SEED = "0"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="print the history of this seed")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100, help="how many, from --first on")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        outcome = run_seed(arguments.seed)
        sys.stdout.write(outcome.history)
        print(outcome.summary)
        return 1 if outcome.broken else 0
    began = time.monotonic()
    outcomes = [run_seed(seed) for seed in range(arguments.first, arguments.first + arguments.seeds)]
    print(report(outcomes, time.monotonic() - began))
    return 1 if any(outcome.broken for outcome in outcomes) else 0


def report(outcomes: list[Outcome], seconds: float) -> str:
    """What many seeds came to."""
    broken = [outcome for outcome in outcomes if outcome.broken]
    lines = [outcome.summary for outcome in broken]
    steps, checks = sum(outcome.steps for outcome in outcomes), sum(outcome.checks for outcome in outcomes)
    figures = f"{len(outcomes)} seeds, {steps} steps, {checks} checks, {seconds / len(outcomes):.3f} s each"
    lines.append(f"{figures}; {len(broken)} broken")
    return "\n".join(lines)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # The order of sets of names is the same in each run then.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": HASH_SEED},
        )
    sys.exit(main())
