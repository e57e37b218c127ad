from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from kbroker.server.on_demand import OnDemand


class Part:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


def test_a_part_is_made_when_it_is_asked_for_and_runs_then() -> None:
    on_demand = OnDemand(Part)
    on_demand.start()
    assert on_demand.made is None
    part = on_demand.get()
    assert on_demand.get() is part is on_demand.made
    on_demand.stop()
    assert part.calls == ["start", "stop"]


def test_a_part_that_is_there_before_is_started_with_the_others() -> None:
    on_demand = OnDemand(Part)
    part = on_demand.get()
    assert part.calls == []
    on_demand.start()
    assert part.calls == ["start"]


def test_what_is_asked_for_after_the_stop_does_not_run() -> None:
    on_demand = OnDemand(Part)
    on_demand.start()
    on_demand.stop()
    assert on_demand.get().calls == []


def test_who_asks_at_once_gets_the_same_one_started() -> None:
    """The second caller does not see it before it runs."""
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Part):
        def start(self) -> None:
            begun.set()
            assert go_on.wait(60)
            super().start()

    on_demand = OnDemand(Slow)
    on_demand.start()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(on_demand.get)
        assert begun.wait(60)
        assert on_demand.made is None
        second = threads.submit(on_demand.get)
        go_on.set()
        assert first.result(60) is second.result(60)
    assert first.result().calls == ["start"]
