"""What is kept for clients is bounded, in all and of one host."""

from __future__ import annotations

import pytest

from kbroker.room import SILENT_S, Room
from tests.kit.logs.home import ManualClock


def test_one_host_makes_half_of_all_and_leaves_room_for_the_others() -> None:
    there = 1  # found at the start: it is no host's
    room = Room("some.max", 9, lambda: there, ManualClock())
    for host in ["a"] * 5 + ["b"] * 3:
        assert room.has_room(host)
        room.made(host)
        there += 1
        assert room.has_room("a") == (host == "a" and there < 6)
    assert not room.has_room("b") and not room.has_room("c")
    room.gone("a")
    there -= 1
    assert all(room.has_room(host) for host in "abc")
    assert not room.has_room("c", 2)


def test_of_one_there_may_be_one() -> None:
    assert Room("some.max", 1, lambda: 0, ManualClock()).has_room("a")
    assert not Room("some.max", 0, lambda: 0, ManualClock()).has_room("a")


def test_a_refusal_is_told_once_a_minute_with_the_host_and_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    room = Room("some.max", 4, lambda: 2, clock)
    room.made("10.0.0.7", 2)
    for _ in range(1000):
        assert not room.has_room("10.0.0.7")
    assert len(caplog.records) == 1 and "10.0.0.7" in caplog.text and "some.max" in caplog.text
    clock.now_ms += int(SILENT_S * 1000)
    assert not room.has_room("10.0.0.8", 3)
    assert len(caplog.records) == 2 and "10.0.0.8" in caplog.text
