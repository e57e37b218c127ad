"""A log with followers, as a coordinator uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode
from kbroker.replication.acks import ReplicationWaits
from kbroker.replication.local_replica import LocalReplica
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import LogHome, batch_of

Outcomes = list[tuple[ErrorCode, int]]


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path, options=LogOptions(min_in_sync=2))


class Bench:
    def __init__(self, home: LogHome, log: Log):
        self.log, self.waits = log, ReplicationWaits(home.clock)
        self.replica = LocalReplica(log, self.waits, timeout_ms=1000)

    def append(self, leader_epoch: int) -> Outcomes:
        outcomes: Outcomes = []
        self.replica.append(batch_of([b"x"]), leader_epoch, lambda *outcome: outcomes.append(outcome))
        return outcomes

    def when_committed(self, leader_epoch: int) -> Outcomes:
        outcomes: Outcomes = []
        self.replica.when_committed(leader_epoch, lambda *outcome: outcomes.append(outcome))
        return outcomes

    def fetch(self, offset: int) -> None:
        for node_id in (2, 3):
            assert self.log.state.follower_fetched(node_id, -1, offset, 0, 1) == 0
        self.waits.step()


@pytest.fixture
def bench(home: LogHome) -> Bench:
    log = home.create()
    log.lead(4, {2: -1, 3: -1}, [1, 2, 3])
    return Bench(home, log)


def test_an_append_is_committed_when_the_followers_have_it(bench: Bench) -> None:
    outcomes = bench.append(4)
    assert outcomes == []
    bench.fetch(1)
    assert outcomes == [(ErrorCode.NONE, 0)]


def test_the_log_is_read_to_its_end(bench: Bench) -> None:
    bench.append(4)
    assert bench.log.high_watermark == 0 and bench.replica.log_end_offset == 1
    assert bench.replica.read(0, 1 << 20)


def test_too_few_in_sync_refuse_the_append(bench: Bench) -> None:
    bench.log.state.set_in_sync([1], [1])
    assert bench.append(4) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]
    assert bench.replica.log_end_offset == 0


def test_a_broker_that_leads_on_takes_appends_of_its_older_epoch(bench: Bench) -> None:
    waiting = bench.append(4)
    bench.log.lead(6, {2: -1, 3: -1}, [1, 2, 3])
    assert (bench.replica.led_since, bench.replica.leader_epoch) == (4, 6)
    also = bench.append(4)
    assert waiting == also == []
    bench.fetch(2)
    assert waiting + also == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 1)]


def test_a_broker_that_has_not_led_meanwhile_does_not(bench: Bench) -> None:
    waiting = bench.append(4)
    bench.log.follow(5)
    bench.waits.step()
    assert waiting == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert bench.append(4) == bench.when_committed(4) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    bench.log.lead(6, {2: -1, 3: -1}, [1, 2, 3])
    assert bench.replica.led_since == 6
    assert bench.append(4) == bench.when_committed(4) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert bench.append(6) == []


def test_who_has_loaded_in_an_epoch_that_the_log_has_not_heard_of_is_told_of_nothing(bench: Bench) -> None:
    assert bench.when_committed(5) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


def test_all_that_is_in_the_log_is_waited_for(bench: Bench) -> None:
    assert bench.when_committed(4) == [(ErrorCode.NONE, 0)]
    bench.append(4)
    bench.append(4)
    outcomes = bench.when_committed(4)
    bench.fetch(1)
    assert outcomes == []
    bench.fetch(2)
    assert outcomes == [(ErrorCode.NONE, 2)] == bench.when_committed(4)


@pytest.mark.parametrize("wait", [Bench.append, Bench.when_committed])
def test_followers_that_lag_end_the_wait(home: LogHome, bench: Bench, wait: Callable[[Bench, int], Outcomes]) -> None:
    bench.append(4)
    outcomes = wait(bench, 4)
    home.clock.now_ms += 1000
    bench.waits.step()
    assert outcomes == [(ErrorCode.REQUEST_TIMED_OUT, -1)]


def test_a_broker_that_is_alone_waits_for_nobody(home: LogHome) -> None:
    log = home.create()
    log.be_alone(0)
    bench = Bench(home, log)
    assert bench.append(0) == [(ErrorCode.NONE, 0)] and bench.when_committed(0) == [(ErrorCode.NONE, 1)]
    assert bench.append(1) == [(ErrorCode.NONE, 1)]
    log.be_alone(2)
    assert bench.append(1) == bench.when_committed(1) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
