"""Lives of brokers on simulated disks, cut anywhere: what docs/DURABILITY.md promises is checked on what is left.

One seed is one life, cut at many operations; see tests/kit/crash/campaign.py. The seeds run in one process for each
core. Prints what is broken, with the command that shows it again, and in the end the figures.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.kit.crash.campaign import CUTS, Figures, run_seed
from tests.kit.crash.history import BrokenPromise

MAX_FAILURES = 20


def figures_or_failure(seed: int, cuts: int) -> Figures | str:
    """Run one seed. Return its figures, or why it failed and the command that shows it again."""
    logging.disable(logging.CRITICAL)
    try:
        return run_seed(seed, cuts)
    except BrokenPromise as failure:
        what = str(failure)
    except Exception:
        what = f"seed {seed}: {traceback.format_exc()}"
    return f"{what}\n    again: {Path(sys.executable).name} tools/crash.py 1 --first {seed} --cuts {cuts}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", type=int, nargs="?", default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--cuts", type=int, default=CUTS, help="cuts of each life")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many at a time")
    arguments = parser.parse_args()
    began = time.monotonic()
    figures, failures = Figures(), 0
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    with multiprocessing.Pool(arguments.processes) as pool:
        for result in pool.imap_unordered(partial(figures_or_failure, cuts=arguments.cuts), seeds, chunksize=4):
            if isinstance(result, Figures):
                figures.add(result)
                continue
            print(result, flush=True)
            failures += 1
            if failures == MAX_FAILURES:
                break
    print(f"{figures}, {failures} broken, {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
