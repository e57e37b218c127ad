"""The request handlers: threads that serve the requests that may block (num.io.threads)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kbroker._core.server.request import Request
from kbroker.server.request_channel import RequestChannel


class HandlerPool:
    """`count` threads that take requests from `channel` and give them to `handle`, which must not raise."""

    def __init__(self, count: int, channel: RequestChannel, handle: Callable[[Request], None], name: str = "handler"):
        self._channel = channel
        self._handle = handle
        self._busy_ns = [0] * count
        self._started_ns = time.monotonic_ns()
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"{name}-{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        self._started_ns = time.monotonic_ns()
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Serve what is queued, then end the threads. Returns False if a request still runs after `timeout_s`."""
        self._channel.close(len(self._threads))
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self, number: int) -> None:
        while (request := self._channel.dequeue()) is not None:
            started = time.monotonic_ns()
            self._handle(request)
            del request  # not kept while waiting for the next
            self._busy_ns[number] += time.monotonic_ns() - started

    @property
    def busy_ns(self) -> int:
        """Nanoseconds that all handlers together have spent on requests."""
        return sum(self._busy_ns)

    @property
    def count(self) -> int:
        return len(self._threads)
