"""What a consumer's thread wants done by whoever polls: rebalance listeners, callbacks of commits.

The client's thread posts steps, and waits for them or not. A poll takes them before it hands out records and while it
waits for some; what is called then runs in the polling thread, or on the loop of who polls with asyncio.

A signal's handler may raise at any call and at the beginning of any function, never between. A step is therefore in the
queue until it is finished, and says how far it is: one that nobody has begun, or whose finish was interrupted, is for
the next poll.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any


class Step:
    """`call` it (and await what it returns, if that can be awaited), then `Steps.finish` it, whatever came of it."""

    __slots__ = ("call", "done", "is_begun", "is_called", "is_refusal")

    def __init__(self, call: Callable[[], Any], done: asyncio.Future[None], *, is_refusal: bool = False):
        self.call = call
        self.done = done
        self.is_refusal = is_refusal
        self.is_begun = False
        self.is_called = False


class Steps:
    """`post` is for the client's thread, the others are for any."""

    def __init__(self, loop: asyncio.AbstractEventLoop, notify: Callable[[], object]):
        """`notify` is called after each post, on the client's thread: a poll that waits has to look."""
        self._loop = loop
        self._notify = notify
        self._steps: deque[Step] = deque()
        self._drivers: list[SimpleQueue[None]] = []  # of who leaves the group: told that there is something to look at

    def post(self, call: Callable[[], Any], *, is_refusal: bool = False) -> asyncio.Future[None]:
        """Done once a poll has called it, even if that has raised."""
        step = Step(call, self._loop.create_future(), is_refusal=is_refusal)
        self._steps.append(step)
        for driver in tuple(self._drivers):
            driver.put(None)
        self._notify()
        return step.done

    def post_error(self, error: Exception) -> asyncio.Future[None]:
        """The next poll raises it. Done once it has. Whoever leaves the group does not hear of it."""

        def throw() -> None:
            raise error

        return self.post(throw, is_refusal=True)

    def take(self, *, leaving: bool = False) -> Step | None:
        """The next one that nobody has begun; it is begun then. None when there is none."""
        for step in list(self._steps):
            if step.is_called:
                self.finish(step)
            elif step.done.cancelled() or (leaving and step.is_refusal):
                self._remove(step)
            elif not step.is_begun:
                step.is_begun = True
                return step
        return None

    def finish(self, step: Step) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(_finish, step.done)
        self._remove(step)

    def _remove(self, step: Step) -> None:
        with suppress(ValueError):  # another thread has
            self._steps.remove(step)

    @property
    def are_waiting(self) -> bool:
        return bool(self._steps)

    def run(self, *, leaving: bool = False) -> None:
        """All there are. What one raises comes out; it is finished even so, and the rest waits for the next time."""
        while (step := self.take(leaving=leaving)) is not None:
            try:
                step.call()
            finally:
                step.is_called = True
                self.finish(step)

    def drive(self, future: concurrent.futures.Future[None]) -> None:
        """Wait for a future of the client's thread that leaves the group; steps it waits for are run. One of them, or
        another thread, may close the client meanwhile: then it has left.
        """
        driver: SimpleQueue[None] = SimpleQueue()
        driver.put(None)
        future.add_done_callback(lambda _: driver.put(None))
        raised: BaseException | None = None
        try:
            self._drivers.append(driver)
            while not future.done():
                driver.get()
                try:
                    self.run(leaving=True)
                except Exception as error:
                    raised = raised or error
        finally:
            future.cancel()
            with suppress(ValueError):  # a signal's handler was faster
                self._drivers.remove(driver)
        if not future.cancelled():
            future.result()
        if raised is not None:
            raise raised


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
