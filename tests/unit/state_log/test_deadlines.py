"""Everything that happens by itself at a time."""

from __future__ import annotations

import threading

import pytest

from kbroker.clock import SystemClock
from kbroker.state_log.deadlines import Deadlines
from tests.kit.logs.home import ManualClock


def test_calls_come_in_the_order_of_their_times() -> None:
    clock, called = ManualClock(), []
    deadlines = Deadlines("test", clock, threaded=False)
    start = deadlines.now_ms()
    for due, name in [(30, "c"), (10, "a"), (20, "b"), (10, "a too")]:
        deadlines.schedule(start + due, lambda name=name: called.append(name))  # type: ignore[misc]
    assert deadlines.run_due() == start + 10 and called == []
    clock.now_ms += 10
    assert deadlines.run_due() == start + 20 and called == ["a", "a too"]
    clock.now_ms += 100
    assert deadlines.run_due() is None and called == ["a", "a too", "b", "c"]


def test_a_call_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock, called = ManualClock(), []
    deadlines = Deadlines("test", clock, threaded=False)
    deadlines.schedule(0, lambda: 1 // 0)
    deadlines.schedule(0, lambda: called.append("b"))
    deadlines.run_due()
    assert called == ["b"] and "ZeroDivisionError" in caplog.text


def test_the_thread_wakes_for_what_is_due_earlier_than_what_it_waits_for() -> None:
    deadlines = Deadlines("test", SystemClock())
    late, early = threading.Event(), threading.Event()
    deadlines.schedule(deadlines.now_ms() + 3_600_000, late.set)
    while not deadlines._wake._waiters:  # type: ignore[attr-defined]
        threading.Event().wait(0.001)  # until the thread waits for the late one
    deadlines.schedule(deadlines.now_ms() + 20, early.set)
    assert early.wait(10) and not late.is_set()
    deadlines.stop()


def test_nothing_is_called_after_the_stop() -> None:
    deadlines = Deadlines("test", SystemClock())
    never = threading.Event()
    deadlines.schedule(deadlines.now_ms() + 3_600_000, never.set)
    deadlines.stop()
    deadlines.schedule(0, never.set)
    deadlines.run_due()
    assert not never.is_set()
    assert not any(thread.name == "test" for thread in threading.enumerate())


def test_a_call_may_schedule_the_next_one() -> None:
    deadlines = Deadlines("test", SystemClock())
    done, count = threading.Event(), []

    def again() -> None:
        count.append(1)
        if len(count) == 5:
            done.set()
        else:
            deadlines.schedule(deadlines.now_ms(), again)

    deadlines.schedule(0, again)
    assert done.wait(10)
    deadlines.stop()
