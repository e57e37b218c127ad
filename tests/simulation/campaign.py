"""Many seeds, one process for each core."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.pool import IMapIterator

from tests.simulation.simulation import Outcome, run_seed

MAX_BROKEN = 20
STILL_S = 120.0
"""A seed takes less than a second. One that has not ended by then stands still."""


def _stands_still(seed: int) -> None:
    print(f"seed {seed} stands still", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)


def run_quietly(seed: int) -> Outcome:
    """Run a seed, and leave its history behind: it can be had again.

    A seed that stands still ends the process, after its number and the stacks of its threads.
    """
    timer = threading.Timer(STILL_S, _stands_still, [seed])
    timer.daemon = True
    timer.start()
    try:
        return run_seed(seed)._replace(history="")
    finally:
        timer.cancel()


@contextmanager
def outcomes(seeds: range, processes: int) -> Iterator[Iterable[Outcome]]:
    """The outcomes of seeds, as they come; those of one process in the order of the seeds, and in this process."""
    if processes == 1:
        yield map(run_quietly, seeds)
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            yield _in_time(pool.imap_unordered(run_quietly, seeds))


def _in_time(coming: IMapIterator[Outcome]) -> Iterator[Outcome]:
    """Yield what comes. Raises multiprocessing.TimeoutError if a process has ended: the pool would wait for ever."""
    while True:
        try:
            yield coming.next(timeout=2 * STILL_S)
        except StopIteration:
            return


def run_many(seeds: range, processes: int) -> int:
    """Run seeds and print what is broken. Returns how many of them broke a promise."""
    began = time.monotonic()
    count = steps = checks = broken = 0
    with outcomes(seeds, processes) as coming:
        for outcome in coming:
            count, steps, checks = count + 1, steps + outcome.steps, checks + outcome.checks
            if outcome.broken:
                broken += 1
                print(f"{outcome.summary}\n    again: python -m tests.simulation --seed {outcome.seed}", flush=True)
                if broken == MAX_BROKEN:
                    break
    seconds = time.monotonic() - began
    print(f"{count} seeds, {steps} steps, {checks} checks, {broken} broken, {seconds:.0f} s")
    return broken
