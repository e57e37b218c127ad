"""Clients that a Python worker keeps from task to task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar

from kbroker.spark.workers.memory import keep_what_is_loaded

C = TypeVar("C")

MOST_IDLE = 4


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
    def lend(self, given: Mapping[str, str]) -> Iterator[C]:
        """Lend a client with the options `given` to one task. After an error the client is not used again."""
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
