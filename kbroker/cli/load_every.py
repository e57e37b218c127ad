"""`kbroker load --every`: one load after the other, until somebody ends that."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from kbroker.errors import KbrokerError
from kbroker.spark.errors import WrongOption
from kbroker.spark.loader.errors import LakeDamaged, NotALake, RecordsLost, SparkGone
from kbroker.spark.loader.summary import Summary

FOR_GOOD = (LakeDamaged, NotALake, RecordsLost, SparkGone, WrongOption)
"""What is not better the next time."""


def run_every(
    load: Callable[[], Summary],
    tell: Callable[[Summary], None],
    every_s: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """The exit code, after Ctrl-C: a load that is at work then is given up, unless it has committed.

    Loads begin `every_s` after each other, or at once behind one that took longer. Raises why the first one failed;
    later ones may fail, for brokers and stores go and come back, unless it is FOR_GOOD.
    """
    is_first = True
    try:
        while True:
            began = now()
            try:
                done = load()
            except (KbrokerError, OSError) as error:
                if is_first or isinstance(error, FOR_GOOD):
                    raise
                print(f"kbroker: {error}; the next load tries again", file=sys.stderr, flush=True)
            else:
                tell(done)
            is_first = False
            sleep(max(0.0, began + every_s - now()))
    except KeyboardInterrupt:
        return 0
