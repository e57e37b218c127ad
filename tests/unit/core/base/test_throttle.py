"""A throttle's rate is what its windows hold, by the time since the oldest began."""

from __future__ import annotations

import pytest

from kbroker._core.base.throttle import Throttle

NONE = (1 << 63) - 1
LATER = 1 << 40
"""A monotonic time, in ms."""


def throttle(rate: int, windows: int = 3) -> Throttle:
    made = Throttle(windows, 1000)
    made.rate = rate
    return made


def test_without_a_limit_nothing_waits() -> None:
    made = Throttle()
    made.record(1 << 40, LATER)
    assert (made.rate, made.wait_ms(LATER)) == (NONE, 0)


def test_what_is_over_the_limit_waits_until_it_is_spread_over_enough_time() -> None:
    made = throttle(1000)
    assert made.wait_ms(LATER) == 0
    made.record(1000, LATER)
    assert made.wait_ms(LATER) == 0  # 1,000 bytes in the first second, as Kafka counts it
    made.record(1000, LATER)
    wait_ms = made.wait_ms(LATER)
    assert wait_ms == 2000
    assert made.wait_ms(LATER + 1500) > 0
    assert made.wait_ms(LATER + wait_ms) == 0


def test_a_burst_is_forgotten_with_its_window() -> None:
    made = throttle(1000)
    made.record(1 << 30, LATER)
    assert made.wait_ms(LATER) == 3000
    assert made.wait_ms(LATER + 2999) == 1
    assert made.wait_ms(LATER + 3000) == 0


def test_a_steady_flow_keeps_to_the_rate() -> None:
    made = throttle(100_000, 11)
    sent = 0
    for now_ms in range(LATER, LATER + 60_000, 10):
        if made.wait_ms(now_ms) == 0:
            made.record(30_000, now_ms)
            sent += 30_000
    assert 0.9 * 6_000_000 <= sent <= 1.1 * 6_000_000


def test_the_limit_may_change_at_any_time() -> None:
    made = throttle(1)
    made.record(100_000, LATER)
    assert made.wait_ms(LATER) > 0
    made.rate = 1_000_000
    assert made.wait_ms(LATER) == 0
    made.rate = 0
    assert made.wait_ms(LATER) > 0
    made.rate = NONE
    assert made.wait_ms(LATER) == 0


def test_there_has_to_be_a_window() -> None:
    for count, size_ms in [(0, 1000), (11, 0)]:
        with pytest.raises(ValueError, match="windows"):
            Throttle(count, size_ms)
