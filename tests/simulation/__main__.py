"""Run seeds: `python -m tests.simulation --seed N` prints one history, `--seeds COUNT --first N` runs many.

Ends with status 1 if a promise was broken, and prints the seeds with what was broken.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time

from tests.simulation.simulation import Outcome, run_seed

HASH_SEED = "0"
"""Sets of names have the same order in each run then."""
MAX_BROKEN = 20


def run_quietly(seed: int) -> Outcome:
    """Run a seed, and leave its history behind: it can be had again."""
    return run_seed(seed)._replace(history="")


def run_many(seeds: range, processes: int) -> int:
    began = time.monotonic()
    outcomes: list[Outcome] = []
    broken = 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for outcome in pool.imap_unordered(run_quietly, seeds, chunksize=4):
            outcomes.append(outcome)
            if outcome.broken:
                broken += 1
                print(f"{outcome.summary}\n    again: python -m tests.simulation --seed {outcome.seed}", flush=True)
                if broken == MAX_BROKEN:
                    break
    steps, checks = sum(outcome.steps for outcome in outcomes), sum(outcome.checks for outcome in outcomes)
    seconds = time.monotonic() - began
    print(f"{len(outcomes)} seeds, {steps} steps, {checks} checks, {broken} broken, {seconds:.0f} s")
    return 1 if broken else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="print the history of this seed")
    parser.add_argument("--first", type=int, default=0, help="the first of many seeds")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many seeds at a time")
    arguments = parser.parse_args()
    if arguments.seed is None:
        return run_many(range(arguments.first, arguments.first + arguments.seeds), arguments.processes)
    outcome = run_seed(arguments.seed)
    sys.stdout.write(outcome.history)
    print(outcome.summary)
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        again = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": HASH_SEED})
    sys.exit(main())
