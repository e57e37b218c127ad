"""The timer wheel against a dictionary of due times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.base.timer_wheel import TimerWheel

TIMERS = 12
distances = st.one_of(
    st.integers(-5, 40),
    st.integers(1000, 1050),
    st.integers(0, 5000),
    st.sampled_from([1023, 1024, 1 << 20, 1 << 21, 1 << 30]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, TIMERS - 1), distances),
        st.tuples(st.just("remove"), st.integers(0, TIMERS - 1), st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.one_of(st.integers(0, 30), distances.filter(lambda ms: ms >= 0))),
        st.tuples(st.just("pass to the next"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(st.integers(0, 1 << 40), steps)
def test_timers_fire_when_they_are_due_and_not_before(start_ms: int, steps: list[tuple[str, int, int]]) -> None:
    wheel, due, now_ms = TimerWheel(TIMERS, start_ms), dict[int, int](), start_ms
    for what, number, ms in steps:
        if what == "add":
            wheel.add(number, now_ms + ms)
            due[number] = max(now_ms + ms, now_ms + 1)
        elif what == "remove":
            wheel.remove(number)
            due.pop(number, None)
        else:
            if what == "pass":
                now_ms += ms
            elif due:
                bound = wheel.next_due_ms()
                assert bound > now_ms, "the owner would not sleep"
                now_ms = bound
            expected = {number for number, ms in due.items() if ms <= now_ms}
            assert set(wheel.take_due(now_ms)) == expected
            due = {number: ms for number, ms in due.items() if ms > now_ms}
        assert len(wheel) == len(due)
        assert wheel.next_due_ms() == -1 if not due else now_ms <= wheel.next_due_ms() <= min(due.values())


def test_a_timer_that_is_far_away_wakes_the_owner_a_few_times_only() -> None:
    wheel, now_ms, wakes = TimerWheel(1, 0), 0, 0
    wheel.add(0, 600_000)
    while wheel.take_due(now_ms) == []:
        now_ms = wheel.next_due_ms()
        wakes += 1
    assert now_ms == 600_000
    assert wakes <= 2


def test_an_overdue_timer_fires_with_the_next_tick_even_when_it_is_added_again_and_again() -> None:
    wheel = TimerWheel(1, 100)
    wheel.add(0, 50)
    assert wheel.take_due(100) == []
    assert wheel.take_due(101) == [0]
    wheel.add(0, 50)
    assert wheel.take_due(101) == []
    assert wheel.take_due(102) == [0]
