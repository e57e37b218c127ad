"""What a consumer's thread wants done by whoever polls: rebalance listeners, callbacks of commits.

The client's thread posts steps, and waits for them or not. A poll takes them before it hands out records and while it
waits for some; what is called then runs in the polling thread, or on the loop of who polls with asyncio.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Step:
    """`call` it (and await what it returns, if that can be awaited), then `Steps.finish` it, whatever came of it."""

    __slots__ = ("call", "done", "is_refusal")

    def __init__(self, call: Callable[[], Any], done: asyncio.Future[None], *, is_refusal: bool = False):
        self.call = call
        self.done = done
        self.is_refusal = is_refusal


class Steps:
    """`post` is for the client's thread, the others are for any."""

    def __init__(self, loop: asyncio.AbstractEventLoop, notify: Callable[[], object]):
        """`notify` is called after each post, on the client's thread: a poll that waits has to look."""
        self._loop = loop
        self._notify = notify
        self._queue: SimpleQueue[Step | None] = SimpleQueue()  # None: look at what you wait for

    def post(self, call: Callable[[], Any], *, is_refusal: bool = False) -> asyncio.Future[None]:
        """Done once a poll has called it, even if that has raised."""
        step = Step(call, self._loop.create_future(), is_refusal=is_refusal)
        self._queue.put(step)
        self._notify()
        return step.done

    def post_error(self, error: Exception) -> asyncio.Future[None]:
        """The next poll raises it. Done once it has. Whoever leaves the group does not hear of it."""

        def throw() -> None:
            raise error

        return self.post(throw, is_refusal=True)

    def take(self, *, leaving: bool = False) -> Step | None:
        """The next one, None when there is none."""
        try:
            while (step := self._queue.get_nowait()) is None or not _counts(step, leaving):
                pass
            return step
        except Empty:
            return None

    def finish(self, step: Step) -> None:
        try:
            self._loop.call_soon_threadsafe(_finish, step.done)
        except RuntimeError:  # the loop is closed
            pass

    @property
    def are_waiting(self) -> bool:
        return not self._queue.empty()

    def run(self, *, leaving: bool = False) -> None:
        """All there are. What one raises comes out; it is finished even so, and the rest waits for the next time."""
        while (step := self.take(leaving=leaving)) is not None:
            self._run(step)

    def _run(self, step: Step) -> None:
        try:
            step.call()
        finally:
            self.finish(step)

    def drive(self, future: concurrent.futures.Future[T]) -> T:
        """What a future of the client's thread gives that leaves the group; steps it waits for are run."""
        future.add_done_callback(lambda _: self._queue.put(None))
        raised: BaseException | None = None
        try:
            while not future.done():
                step = self._queue.get()
                if step is not None and _counts(step, leaving=True):
                    try:
                        self._run(step)
                    except Exception as error:
                        raised = raised or error
        finally:
            future.cancel()
        result = future.result()
        if raised is not None:
            raise raised
        return result


def _counts(step: Step, leaving: bool) -> bool:
    return not (step.done.cancelled() or (leaving and step.is_refusal))


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
