"""The bounded queue between processors and handlers."""

from __future__ import annotations

import threading
from typing import Any, cast

from kbroker.server.handler_pool import HandlerPool
from kbroker.server.request_channel import RequestChannel


class Stalled:
    """Stands for a processor, and remembers that it was resumed."""

    def __init__(self) -> None:
        self.resumed = threading.Event()

    def resume(self) -> None:
        self.resumed.set()


def request(number: int) -> Any:
    return cast(Any, number)


def test_requests_come_out_in_the_order_in_which_they_went_in() -> None:
    channel = RequestChannel(10)
    processor = cast(Any, Stalled())
    for number in range(10):
        assert channel.enqueue(request(number), processor)
    assert len(channel) == 10
    assert [channel.dequeue() for _ in range(10)] == list(range(10))


def test_a_full_channel_takes_no_more_and_says_when_there_is_room() -> None:
    channel = RequestChannel(2)
    first, second = cast(Any, Stalled()), cast(Any, Stalled())
    assert channel.enqueue(request(1), first)
    assert channel.enqueue(request(2), first)
    assert not channel.enqueue(request(3), first)
    assert not channel.enqueue(request(4), second)
    assert not first.resumed.is_set()
    assert channel.dequeue() == 1
    assert first.resumed.is_set()
    assert second.resumed.is_set()
    assert channel.enqueue(request(3), first)


def test_nobody_is_held_back_for_ever() -> None:
    """Putters that wait to be resumed race with getters: every request gets through."""
    channel = RequestChannel(3)
    each, putters, getters = 3000, 4, 3
    taken: list[int] = []
    lock = threading.Lock()

    def put(first: int) -> None:
        processor = Stalled()
        for number in range(first, first + each):
            while not channel.enqueue(request(number), cast(Any, processor)):
                assert processor.resumed.wait(20), "held back for ever"
                processor.resumed.clear()

    def get() -> None:
        while (number := channel.dequeue()) is not None:
            with lock:
                taken.append(cast(Any, number))

    threads = [threading.Thread(target=put, args=(number * each,)) for number in range(putters)]
    gets = [threading.Thread(target=get) for _ in range(getters)]
    for thread in threads + gets:
        thread.start()
    for thread in threads:
        thread.join(60)
    channel.close(getters)
    for thread in gets:
        thread.join(60)
    assert sorted(taken) == list(range(putters * each))


def test_handlers_finish_what_is_queued_before_they_stop() -> None:
    channel = RequestChannel(100)
    done: list[int] = []
    gate = threading.Event()

    def handle(request: Any) -> None:
        gate.wait(10)
        done.append(request)

    pool = HandlerPool(2, channel, handle)
    pool.start()
    for number in range(20):
        channel.enqueue(request(number), cast(Any, Stalled()))
    assert not pool.stop(0)
    gate.set()
    assert pool.stop(10)
    assert sorted(done) == list(range(20))
    assert pool.busy_ns > 0
    assert pool.count == 2
