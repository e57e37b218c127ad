"""The ReplicaFetcher on a pump, with a leader in the same thread: the follower's logs become the leader's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.client.pump import Pump
from kbroker._core.replica.fetcher import ReplicaFetcher
from kbroker._core.replica.followed import ReplicaTrouble
from kbroker.model import TopicPartition
from kbroker.protocol.api import ApiKey
from kbroker.storage import file_names
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.brokers.leader import NODE, ReplicaLeader
from tests.kit.logs.home import LogHome, batch_of

EPOCH = 5


class Bench:
    """A leader's and a follower's disk, the follower's engine, and the leader it talks to, driven step by step."""

    def __init__(self, path: Path, version: int = 17, **options: Any):
        self.path = path
        self.leader = ReplicaLeader(version)
        self.pump = Pump({ApiKey.FETCH: 12})
        self.engine = ReplicaFetcher(7, **({"max_wait_ms": 0, "backoff_ms": 0, "broker_epoch": 99} | options))
        self.pump.add(self.engine)
        self.pump.on_wanted = lambda node_id: self.wanted.append(node_id)
        self.wanted: list[int] = []
        self.news: list[ReplicaTrouble] = []
        self.engine.on_told = lambda: self.news.extend(self.engine.take_news())
        self.homes: list[LogHome] = []

    def log(self, name: str, partition: int = 0, options: LogOptions | None = None) -> Log:
        path = self.path / f"{name}-{partition}"
        path.mkdir()
        home = LogHome(path, options=options or LogOptions(), topic_partition=TopicPartition("orders", partition))
        self.homes.append(home)
        log = home.create()
        log.open()
        return log

    def pair(self, partition: int = 0, options: LogOptions | None = None) -> tuple[Log, Log]:
        """Return a partition's log on the leader and on the follower, which begins to fetch it."""
        leader, follower = self.log("leader", partition, options), self.log("follower", partition, options)
        self.leader.lead("orders", partition, leader, EPOCH)
        self.follow(follower)
        return leader, follower

    def follow(self, log: Log, leader_epoch: int = EPOCH, *, topic_id: bytes | None = None) -> None:
        log.follow(leader_epoch)
        self.engine.follow(log.state, log.topic_id.bytes if topic_id is None else topic_id, NODE, leader_epoch)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.pump.run(0)
            if NODE in self.wanted:
                self.wanted.remove(NODE)
                self.leader.connect(self.pump)
                self.pump.run(0)
            self.leader.serve(self.pump)

    def close(self) -> None:
        self.pump.close("the test is over")
        self.leader.close()
        for home in self.homes:
            home.abandon()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def bytes_of(log: Log) -> bytes:
    return b"".join(
        Path(log.path_of(at.base_offset, file_names.LOG)).read_bytes()[: at.size] for at in log.state.segments()
    )


def test_a_follower_gets_what_its_leader_has_and_what_comes_later(bench: Bench) -> None:
    leader, follower = bench.pair()
    for number in range(3):
        leader.append(batch_of([b"%d" % number] * 3))
    bench.turn(6)
    assert follower.state.log_end_offset == 9
    leader.append(batch_of([b"later"]))
    bench.turn(3)
    assert bytes_of(follower) == bytes_of(leader)
    assert follower.high_watermark == 10
    assert bench.engine.bytes_in == len(bytes_of(leader))
    assert bench.news == []
