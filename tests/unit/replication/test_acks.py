"""Waits for what this broker has appended itself."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kbroker._core.log.partition_state import AppendResult
from kbroker.errors import ErrorCode
from kbroker.replication.acks import ReplicationWaits
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import LogHome, batch_of


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path, options=LogOptions(min_in_sync=2))


@pytest.fixture
def log(home: LogHome) -> Log:
    made = home.create()
    made.lead(1, {2: -1, 3: -1}, [1, 2, 3])
    return made


class Told:
    """What was told to those who waited, in order."""

    def __init__(self, home: LogHome) -> None:
        self.waits = ReplicationWaits(home.clock)
        self.all: list[tuple[ErrorCode, int]] = []

    def add(self, log: Log, timeout_ms: int | None = None) -> AppendResult:
        appended = log.append(batch_of([b"x"]), wait=False)
        self.waits.add(log, appended, timeout_ms, lambda *outcome: self.all.append(outcome))
        return appended

    def now(self) -> list[tuple[ErrorCode, int]]:
        self.waits.step()
        return self.all


def fetch(log: Log, offset: int, start: int = 0) -> None:
    for node_id in (2, 3):
        assert log.state.follower_fetched(node_id, -1, offset, start, 1) == 0


def test_waits_end_in_order_when_the_followers_have_the_records(home: LogHome, log: Log) -> None:
    told = Told(home)
    for _ in range(3):
        told.add(log)
    fetch(log, 2)
    assert told.now() == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 1)]
    fetch(log, 3)
    assert told.now()[2:] == [(ErrorCode.NONE, 2)]


def test_an_append_that_needs_nobody_is_told_at_once(home: LogHome) -> None:
    log = home.create()
    log.lead(1, {}, [1])
    told = Told(home)
    told.add(log)
    assert told.now() == [(ErrorCode.NONE, 0)]
    log.be_alone(1)
    told.add(log)
    assert told.all == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 1)]


def test_a_wait_ends_with_its_timeout_and_not_before(home: LogHome, log: Log) -> None:
    told = Told(home)
    told.add(log, 100)
    told.add(log, 50)
    told.add(log, None)
    home.clock.now_ms += 49
    assert told.now() == []
    home.clock.now_ms += 1
    assert told.now() == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    home.clock.now_ms += 50
    assert told.now() == [(ErrorCode.REQUEST_TIMED_OUT, -1)] * 2
    fetch(log, 3)
    assert told.now()[2:] == [(ErrorCode.NONE, 2)]


@pytest.mark.parametrize("end", ["follow", "stop", "delete", "offline"])
def test_a_wait_ends_when_the_broker_leads_no_more(home: LogHome, log: Log, end: str) -> None:
    told = Told(home)
    told.add(log)
    log.lead(2, {2: -1, 3: -1}, [1, 2, 3])
    assert told.now() == []
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    if end == "follow":
        log.follow(3)
    elif end == "stop":
        log.stop_replica()
    elif end == "delete":
        log.state.delete()
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        log.state.go_offline()
        code = ErrorCode.KAFKA_STORAGE_ERROR
    assert told.now() == [(code, -1)]


def test_a_wait_for_a_former_leadership_is_refused(home: LogHome, log: Log) -> None:
    told = Told(home)
    appended = log.append(batch_of([b"x"]), wait=False)
    log.follow(2)
    log.lead(3, {2: -1, 3: -1}, [1, 2, 3])
    told.waits.add(log, appended, None, lambda *outcome: told.all.append(outcome))
    fetch(log, 1)
    assert told.now() == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_an_isr_that_has_shrunk_meanwhile_is_told(home: LogHome, log: Log) -> None:
    told = Told(home)
    appended = log.append(batch_of([b"x"]), wait=False)
    fetch(log, 1)
    log.state.set_in_sync([1], [1])
    told.waits.add(log, appended, None, lambda *outcome: told.all.append(outcome))
    assert told.now() == [(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)]


def test_replicas_and_the_flush_are_both_waited_for(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(flush_messages=1))
    log = home.create()
    log.lead(1, {2: -1, 3: -1}, [1, 2, 3])
    told = Told(home)
    told.add(log)
    fetch(log, 1)
    assert told.now() == []
    home.flush_requested()
    assert told.now() == [(ErrorCode.NONE, 0)]
    told.add(log)
    home.flush_requested()
    log.flush()
    assert told.now()[1:] == []
    fetch(log, 2)
    assert told.now()[1:] == [(ErrorCode.NONE, 1)]


def test_deleted_records_are_waited_for_until_all_live_replicas_have_deleted_them(home: LogHome, log: Log) -> None:
    told: list[ErrorCode] = []
    waits = ReplicationWaits(home.clock)
    for _ in range(5):
        log.append(batch_of([b"x"]), wait=False)
    fetch(log, 5)
    log.state.advance_log_start_offset(3)
    waits.await_low_watermark(log, 3, 1000, told.append)
    log.state.follower_fetched(2, -1, 5, 3, 1)
    waits.step()
    assert (told, log.state.low_watermark) == ([], 0)
    log.state.set_live([2])
    waits.step()
    assert (told, log.state.low_watermark) == ([ErrorCode.NONE], 3)
    waits.await_low_watermark(log, 4, 1000, told.append)
    home.clock.now_ms += 1000
    waits.step()
    assert told[1:] == [ErrorCode.REQUEST_TIMED_OUT]


def test_the_thread_ends_waits_for_replicas_when_it_is_stopped(home: LogHome, log: Log) -> None:
    told: list[ErrorCode] = []
    came = threading.Semaphore(0)
    waits = ReplicationWaits()
    waits.start()

    def committed(error: ErrorCode, offset: int) -> None:
        told.append(error)
        came.release()

    for timeout_ms in (None, 20, 60_000):
        waits.add(log, log.append(batch_of([b"x"]), wait=False), timeout_ms, committed)
    assert came.acquire(timeout=10)
    assert told == [ErrorCode.REQUEST_TIMED_OUT]
    fetch(log, 1)
    assert came.acquire(timeout=10)
    assert told[1:] == [ErrorCode.NONE]
    waits.stop()
    assert told[2:] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
