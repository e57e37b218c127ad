"""An input that costs the broker too much is a finding, and one that did once by chance is none."""

from __future__ import annotations

import threading
import time

import pytest

from perf.machine import touch_memory
from tests.fuzz.costs import (
    ANSWER,
    MEMORY,
    RESET,
    TIME_NS,
    Traffic,
    check_costs,
    excess,
    highest_resident,
    others_ran_ns,
)


def test_what_is_over_its_bound_is_said() -> None:
    sent = Traffic(sent=100)
    assert not excess(sent, TIME_NS.constant, MEMORY.constant)
    assert "threads" in excess(sent, 2 * TIME_NS.constant, 0)[0]
    assert "memory" in excess(sent, 0, 2 * MEMORY.constant)[0]
    assert "answers" in excess(Traffic(sent=100, received=2 * ANSWER.constant), 0, 0)[0]


def test_a_longer_input_may_cost_more() -> None:
    longer = Traffic(sent=1 << 20)
    costs = (TIME_NS.constant + (TIME_NS.factor << 20), MEMORY.constant + (MEMORY.factor << 20))
    assert not excess(longer, *costs)
    assert len(excess(Traffic(sent=100), *costs)) == 2


def test_an_answer_out_of_proportion_is_a_finding() -> None:
    with pytest.raises(AssertionError, match="bytes of answers"):
        check_costs(lambda: Traffic(sent=100, received=2 * ANSWER.constant))


def test_what_happens_once_is_no_finding() -> None:
    answers = iter([2 * ANSWER.constant, 100])
    check_costs(lambda: Traffic(sent=100, received=next(answers)))


def test_time_is_that_of_other_threads() -> None:
    done, ends = threading.Event(), threading.Event()

    def work() -> None:
        sum(range(1_000_000))
        done.set()
        ends.wait()

    thread = threading.Thread(target=work)
    before = others_ran_ns()
    thread.start()
    done.wait()
    worked = others_ran_ns() - before
    mine = time.thread_time_ns()
    sum(range(10_000_000))
    mine = time.thread_time_ns() - mine
    since = others_ran_ns() - before - worked
    ends.set()
    thread.join()
    assert worked > 1_000_000
    assert since < mine // 2  # threads that other tests have left run a little


def test_memory_is_the_highest_there_was() -> None:
    touch_memory(256 << 20)  # an earlier peak, as other tests leave one
    RESET.write_text("5")
    before = highest_resident()
    touch_memory(64 << 20)
    assert highest_resident() - before > 32 << 20
