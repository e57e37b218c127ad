"""Makes parts of the broker at their first use. A start makes a part only if there is work for it already."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar


def late(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module of this package that is imported at the first call: a start has no use for it.

    `Broker.finish_start` imports these modules.
    """
    function: Callable[..., Any] | None = None

    def call(*given: Any) -> Any:
        nonlocal function
        if function is None:
            function = getattr(import_module(f"kbroker.server.{module}"), name)
        return function(*given)

    return call


class Part(Protocol):
    """A part that can be started and stopped."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


P = TypeVar("P", bound=Part)


class OnDemand(Generic[P]):
    """One part, made by `make` at the first `get`. It runs while this object runs. May be used by any thread."""

    def __init__(self, make: Callable[[], P]):
        self._make = make
        self._lock = threading.Lock()
        self._is_running = False
        self.made: P | None = None
        """The part; None until `get` is first called."""

    def get(self) -> P:
        return self.made or self._made_now()

    def start(self) -> None:
        with self._lock:
            self._is_running = True
            if self.made is not None:
                self.made.start()

    def stop(self) -> None:
        """Stop the part. If it is made later, it is not started."""
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
