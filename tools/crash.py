"""Cuts the power of simulated brokers at random operations and checks what they promised.

Each seed is one broker's life under one flush policy, cut at many places, also while it recovers. Prints the seed,
policy and operation of the first failure and exits with 1. The machinery is in tests/kit/crash_fs.py and crash_log.py.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from kbroker.storage.options import LogOptions
from tests.kit.crash_log import CrashRun, quick_directory

SMALL = {"segment_bytes": 1300, "index_interval_bytes": 150}
POLICIES = {
    "fsync before every ack": LogOptions(**SMALL, flush_messages=1),
    "fsync every five messages": LogOptions(**SMALL, flush_messages=5),
    "page cache": LogOptions(**SMALL),
    "page cache and retention by size": LogOptions(**SMALL, retention_bytes=2000),
}


def run_seed(seed: int, cuts: int) -> bool:
    randomness = random.Random(seed)
    policy = randomness.choice(sorted(POLICIES))
    with quick_directory() as home:
        run = CrashRun(home, seed=seed, options=POLICIES[policy])
        run.live(steps=randomness.choice((40, 120, 200)), lives=randomness.choice((1, 2, 3)))
        for number in range(cuts):
            position = randomness.randint(0, run.fs.position)
            check = (run.check_power_cut, run.check_power_cut_in_recovery)[number % 2]
            try:
                check(position, number)
                if number % 8 == 0:
                    run.check_kill(position)
            except AssertionError as failure:
                print(f"seed {seed}, {policy}, {check.__name__}({position}, {number}): {failure}")
                return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="?", default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cuts", type=int, default=40, help="power cuts in each life")
    arguments = parser.parse_args()
    logging.getLogger("kbroker.storage").setLevel(logging.CRITICAL)
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if not run_seed(seed, arguments.cuts):
            return 1
    print(f"{arguments.seeds} seeds, {arguments.seeds * arguments.cuts} power cuts: everything promised was there")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
