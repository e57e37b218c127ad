"""`kbroker load --every`: one load after the other, until it is interrupted."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from kbroker.errors import KbrokerError
from kbroker.spark.errors import WrongOption
from kbroker.spark.loader.errors import LakeDamaged, NotALake, RecordsLost, SparkGone
from kbroker.spark.loader.summary import Summary

FOR_GOOD = (LakeDamaged, NotALake, RecordsLost, SparkGone, WrongOption)
"""Errors that the next load would have, too."""


def run_every(
    load: Callable[[], Summary],
    tell: Callable[[Summary], None],
    every_s: float,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Load again and again until Ctrl-C, and return the exit code.

    Ctrl-C gives up the load in progress, unless it has committed.

    A load begins `every_s` seconds after the start of the one before, or at once if that took longer. Raises the error
    of the first load, and any error of FOR_GOOD. Other errors of later loads are printed, and the next load tries
    again: brokers and stores go and come back.
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
