"""Parts of the broker that a start makes only if there is something for them to do; else at the first use of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Part(Protocol):
    """What can be started and stopped."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


P = TypeVar("P", bound=Part)


class OnDemand(Generic[P]):
    """One part, made by `make` at the first `get`, and running whenever this is. Any thread."""

    def __init__(self, make: Callable[[], P]):
        self._make = make
        self._lock = threading.Lock()
        self._is_running = False
        self.made: P | None = None
        """None as long as nobody has asked for it."""

    def get(self) -> P:
        return self.made or self._made_now()

    def start(self) -> None:
        with self._lock:
            self._is_running = True
            if self.made is not None:
                self.made.start()

    def stop(self) -> None:
        """What is made later does not run."""
        with self._lock:
            self._is_running = False
            made = self.made
        if made is not None:
            made.stop()

    def _made_now(self) -> P:
        with self._lock:
            if self.made is None:
                made = self._make()
                if self._is_running:
                    made.start()
                self.made = made
            return self.made
