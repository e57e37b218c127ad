"""Steps: calls that a consumer's thread has polls make, as those of rebalance listeners and of commit callbacks.

The client's thread posts steps, and may wait for them. A poll runs them before it hands out records, and while it waits
for some. So they run in the thread that polls, or on the event loop of the task that polls.

A signal handler may raise an exception at any call and at the beginning of any function, but not in between. Therefore
a step stays in the queue until it is finished, and notes how far it is. The next poll runs a step that nobody has
begun, and finishes one whose `finish` was interrupted.
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
    """One step. Whoever takes it calls `call`, awaits what that returns if it is awaitable, and then calls
    `Steps.finish`, whatever the outcome."""

    __slots__ = ("call", "done", "is_begun", "is_called", "is_refusal")

    def __init__(self, call: Callable[[], Any], done: asyncio.Future[None], *, is_refusal: bool = False):
        self.call = call
        self.done = done
        self.is_refusal = is_refusal
        self.is_begun = False
        self.is_called = False


class Steps:
    """The queue of steps. `post` is for the client's thread; any thread may call the other methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, notify: Callable[[], object]):
        """`notify` is called on the client's thread after each post, to wake a poll that waits."""
        self._loop = loop
        self._notify = notify
        self._steps: deque[Step] = deque()
        self._drivers: list[SimpleQueue[None]] = []  # queues that wake the callers of `drive`

    def post(self, call: Callable[[], Any], *, is_refusal: bool = False) -> asyncio.Future[None]:
        """Add a step. The returned future is done once a poll has called it, even if the call has raised."""
        step = Step(call, self._loop.create_future(), is_refusal=is_refusal)
        self._steps.append(step)
        for driver in tuple(self._drivers):
            driver.put(None)
        self._notify()
        return step.done

    def post_error(self, error: Exception) -> asyncio.Future[None]:
        """Have the next poll raise `error`; the returned future is done then. `drive` ignores the error."""

        def throw() -> None:
            raise error

        return self.post(throw, is_refusal=True)

    def begin_next(self, *, leaving: bool = False) -> Step | None:
        """Return the next step that nobody has begun, and note that it is begun; None when there is none.

        `leaving`: drop the steps of `post_error`.
        """
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
        with suppress(ValueError):  # another thread has removed it
            self._steps.remove(step)

    @property
    def are_waiting(self) -> bool:
        return bool(self._steps)

    def run(self, *, leaving: bool = False) -> None:
        """Run all steps. Raises the exception of a step, which is finished then; the others wait for the next run."""
        while (step := self.begin_next(leaving=leaving)) is not None:
            try:
                step.call()
            finally:
                step.is_called = True
                self.finish(step)

    def drive(self, future: concurrent.futures.Future[None]) -> None:
        """Wait for `future`, of a coroutine that leaves the group, and meanwhile run the steps that it waits for.

        A step, or another thread, may close the client meanwhile. Then the group is left, and this returns. Raises the
        error of the coroutine, or else the first exception of a step.
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
            with suppress(ValueError):  # a signal handler's exception came before the `append`
                self._drivers.remove(driver)
        if not future.cancelled():
            future.result()
        if raised is not None:
            raise raised


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
