"""What a Python worker of Spark keeps from task to task. A worker runs its tasks one after the other."""

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
    """Idle clients by their `kafka.*` options. They are kept because connecting anew costs more than a small task.

    `make` makes a client. `close` closes one that is no longer kept, `drop` closes one after an error.
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
        """Yield a client with the options `given`, for this task alone. After an error it is not used again."""
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
    """Exempt from garbage collection what a worker has loaded for its first task. Later calls do nothing.

    A worker that is used again (pyspark.daemon) collects garbage after each task, before it begins the next one. That
    takes 20 ms if it looks at all modules, which stay as long as the worker does.
    """
    if "SPARK_REUSE_WORKER" in os.environ and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def keep_freed_memory() -> None:
    """Let glibc's malloc keep the memory that a few dozen batches free at once, for the next batches.

    A fresh page costs more than what is written into it. Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(M_MMAP_THRESHOLD, FREED_BYTES)
    mallopt(M_TRIM_THRESHOLD, 2 * FREED_BYTES)
