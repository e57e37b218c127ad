"""Requests on their way from the processors to the request handlers: a bounded queue (queued.max.requests)."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from kbroker._core.server.processor import Processor
from kbroker._core.server.request import Request


class RequestChannel:
    """Any number of processors put, any number of handlers get.

    A processor that finds the channel full keeps its request, stops reading, and is resumed when there is room.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards _held_back; taken when the channel was found full, and to resume
        self._held_back: set[Processor] = set()

    def __len__(self) -> int:
        return self._queue.qsize()

    def put(self, request: Request, processor: Processor) -> bool:
        """False when the channel is full: `processor.resume` is called as soon as it is not."""
        if self._queue.qsize() >= self.capacity:
            with self._lock:
                self._held_back.add(processor)
            # Handlers may have emptied it before they could see who is held back.
            if self._queue.qsize() >= self.capacity:
                return False
            with self._lock:
                self._held_back.discard(processor)
        self._queue.put(request)
        return True

    def get(self) -> Request | None:
        """The oldest request; blocks while there is none. None, to one caller each, after `close`."""
        request = self._queue.get()
        if self._held_back:
            with self._lock:
                held_back, self._held_back = self._held_back, set()
            for processor in held_back:
                processor.resume()
        return request

    def close(self, getters: int) -> None:
        """Let `getters` callers of `get` go, behind everything that was put before."""
        for _ in range(getters):
            self._queue.put(None)
