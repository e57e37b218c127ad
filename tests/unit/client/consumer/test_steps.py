"""Steps that a consumer's thread posts, and who leaves a group and runs them meanwhile."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from kbroker.client.consumer.steps import Steps

BOUND_S = 10.0


@pytest.fixture
def steps() -> Iterator[Steps]:
    loop = asyncio.new_event_loop()
    yield Steps(loop, lambda: None)
    loop.close()


def left() -> concurrent.futures.Future[None]:
    """Return the future of a consumer that has left the group."""
    future: concurrent.futures.Future[None] = concurrent.futures.Future()
    future.set_result(None)
    return future


def test_what_is_posted_after_somebody_has_left_the_group_is_kept_once(steps: Steps) -> None:
    steps.drive(left())
    for _ in range(1000):
        steps.post(lambda: None)
        steps.run()
    queues = [found for found in gc.get_objects() if isinstance(found, SimpleQueue)]
    assert max((queue.qsize() for queue in queues), default=0) < 1000


class Leaving(concurrent.futures.Future[None]):
    """Tells how often it was asked whether it is done: whoever drives asks before each time that he waits."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)

    def done(self) -> bool:
        self.asked.release()
        return super().done()


def test_who_leaves_the_group_goes_on_with_steps_when_a_step_has_left_it_too(steps: Steps) -> None:
    leaving = Leaving()
    steps.post(lambda: steps.drive(left()))
    driver = threading.Thread(target=steps.drive, args=(leaving,))
    driver.start()
    for _ in range(2):
        assert leaving.asked.acquire(timeout=BOUND_S)
    steps.post(lambda: leaving.set_result(None))
    driver.join(BOUND_S)
    is_stuck = driver.is_alive()
    if is_stuck:
        leaving.set_result(None)
        driver.join()
    assert not is_stuck
