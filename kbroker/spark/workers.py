"""What a Python worker of Spark keeps from task to task: it runs one after the other."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

C = TypeVar("C")

MOST_IDLE = 4

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  #: malloc.h
FREED_BYTES = 32 << 20


class KeptClients(Generic[C]):
    """Clients by their `kafka.*` options: connecting anew costs more than a small task.

    `make` makes one; `close` is for those that are wanted no more, `drop` for one that had an error.
    """

    def __init__(
        self, make: Callable[[Mapping[str, str]], C], close: Callable[[C], object], drop: Callable[[C], object]
    ):
        self._make = make
        self._close = close
        self._drop = drop
        self._idle: dict[frozenset[tuple[str, str]], C] = {}

    @contextmanager
    def one(self, given: Mapping[str, str]) -> Iterator[C]:
        """For this task alone. After an error it is not used again."""
        key = frozenset(given.items())
        client = self._idle.pop(key, None) or self._make(given)
        try:
            yield client
        except BaseException:
            self._drop(client)
            raise
        self._idle[key] = client
        while len(self._idle) > MOST_IDLE:
            self._close(self._idle.pop(next(iter(self._idle))))
        keep_what_is_loaded()


def keep_what_is_loaded() -> None:
    """Let the garbage collector pass by all that a worker has loaded for its first task, once.

    A worker that is used again (pyspark.daemon) collects garbage after each task, and begins the next one only then:
    20 ms of looking at modules that stay as long as the worker does.
    """
    if "SPARK_REUSE_WORKER" in os.environ and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def keep_freed_memory() -> None:
    """Let malloc keep what a few dozen batches give back at once, for the next ones: fresh pages cost more than what is
    written into them. Of glibc; others do as they do."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(M_MMAP_THRESHOLD, FREED_BYTES)
    mallopt(M_TRIM_THRESHOLD, 2 * FREED_BYTES)
