"""Tasks that wait for something of a client's thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class Waiting:
    """Futures of any event loops, all of which `tell` ends: one message to each loop, however many wait in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def future(self) -> asyncio.Future[None]:
        """Of the running loop. Look at what you wait for once you have it; then await it, and look again."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._futures.setdefault(loop, []).append(future)
        return future

    def tell(self) -> None:
        """From any thread."""
        with self._lock:
            told, self._futures = self._futures, {}
        for loop, futures in told.items():
            with suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(_end, futures)


def _end(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
