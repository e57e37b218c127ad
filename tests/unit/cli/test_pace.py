import time

from kbroker.cli.pace import Pace

SECOND = 1_000_000_000


def test_what_is_late_is_due_when_it_was_due() -> None:
    started = time.perf_counter_ns() - SECOND
    pace = Pace(started, None, 3600, 1000.0)
    assert 1000 <= pace.await_due(0, 10**9) < 3_000_000
    assert pace.await_due(0, 10) == 10
    assert pace.due_ns(0) == started and pace.due_ns(500) == started + SECOND // 2
    assert pace.not_sent(400) >= 600


def test_nothing_is_sent_before_it_is_due() -> None:
    started = time.perf_counter_ns()
    pace = Pace(started, 20, None, 1000.0)
    sent = 0
    while count := pace.await_due(sent, 5):
        assert time.perf_counter_ns() >= pace.due_ns(sent + count - 1)
        sent += count
    assert sent == 20 and pace.not_sent(sent) == 0


def test_a_load_ends_with_its_messages_or_its_time() -> None:
    now = time.perf_counter_ns()
    assert Pace(now - SECOND, 50, 3600, 1000.0).await_due(0, 1000) == 50
    assert Pace(now - SECOND, 50, 3600, 1000.0).await_due(50, 1000) == 0
    over = Pace(now - 2 * SECOND, None, 0.5, 1000.0)
    assert over.await_due(100, 1000) == 0
    assert over.not_sent(100) == 400  # and what would have been due later is not missed
    assert Pace(now - 2 * SECOND, None, 1, None).await_due(0, 1000) == 0
    assert Pace(now, 7, 3600, None).await_due(0, 5) == 5 and Pace(now, 7, 3600, None).not_sent(0) == 0
