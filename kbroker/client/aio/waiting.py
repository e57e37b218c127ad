"""How tasks of an event loop wait for something that a client's thread does."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Waiting:
    """Futures of any event loops. `wake_all` ends them all, with one message to each loop however many wait in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def future(self) -> asyncio.Future[None]:
        """Return a new future of the running loop.

        Check the condition you wait for after this call; if it does not hold, await the future, and check again.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._futures.setdefault(loop, []).append(future)
        return future

    def wake_all(self) -> None:
        """End all futures handed out so far. For any thread."""
        with self._lock:
            told, self._futures = self._futures, {}
        for loop, futures in told.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(_end, futures)


def _end(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
