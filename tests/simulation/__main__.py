"""Run seeds: `python -m tests.simulation --seed N` prints one history, `--seeds COUNT --first N` runs many.

Ends with status 1 if a promise was broken, and prints the seeds with what was broken.
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.campaign import run_many
from tests.simulation.simulation import run_seed

HASH_SEED = "0"
"""Sets of names have the same order in each run then."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="print the history of this seed")
    parser.add_argument("--first", type=int, default=0, help="the first of many seeds")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many seeds at a time")
    arguments = parser.parse_args()
    if arguments.seed is None:
        seeds = range(arguments.first, arguments.first + arguments.seeds)
        return 1 if run_many(seeds, arguments.processes) else 0
    outcome = run_seed(arguments.seed)
    sys.stdout.write(outcome.history)
    print(outcome.summary)
    return 1 if outcome.broken else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        again = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": HASH_SEED})
    sys.exit(main())
