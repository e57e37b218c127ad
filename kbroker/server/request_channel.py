"""The bounded queue of requests from the processors to the request handlers (queued.max.requests)."""

from __future__ import annotations

import threading
from queue import SimpleQueue

from kbroker._core.server.processor import Processor
from kbroker._core.server.request import Request


class RequestChannel:
    """A queue into which any number of processors put requests and from which any number of handlers take them.

    A processor that finds the channel full keeps its request, stops reading, and is resumed when there is room.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._queue: SimpleQueue[Request | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards _held_back; taken when the channel is full, and to resume processors
        self._held_back: set[Processor] = set()

    def __len__(self) -> int:
        return self._queue.qsize()

    def enqueue(self, request: Request, processor: Processor) -> bool:
        """Put a request. Returns False if the channel is full; `processor.resume` is called when there is room."""
        if self._queue.qsize() >= self.capacity:
            with self._lock:
                self._held_back.add(processor)
            # Handlers may have emptied the channel before they could see that this processor is held back.
            if self._queue.qsize() >= self.capacity:
                return False
            with self._lock:
                self._held_back.discard(processor)
        self._queue.put(request)
        return True

    def dequeue(self) -> Request | None:
        """Take the oldest request; blocks while there is none. Returns None after `close`."""
        request = self._queue.get()
        if self._held_back:
            with self._lock:
                held_back, self._held_back = self._held_back, set()
            for processor in held_back:
                processor.resume()
        return request

    def close(self, getters: int) -> None:
        """Make the next `getters` calls of `dequeue` return None, after everything that was put before."""
        for _ in range(getters):
            self._queue.put(None)
