"""The thread of a fetcher over TCP: it connects again, follows a leader that moves, and flushes before it tells."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kbroker.model import Endpoint
from kbroker.protocol.api import ApiKey
from kbroker.replication.fetcher_threads import FetcherThread, FetchOptions
from kbroker.storage.flush import Flushers
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.brokers.leader import NODE, ReplicaLeader
from tests.kit.brokers.scripted import Peer, ScriptedBroker
from tests.kit.logs.home import LogHome, batch_of
from tests.kit.parts.processors import wait_until


def endpoint(broker: ScriptedBroker) -> Endpoint:
    return Endpoint("INTERNAL", "PLAINTEXT", "127.0.0.1", broker.port)


class Bench:
    def __init__(self, path: Path, options: LogOptions):
        self.path = path
        self.options = options
        self.stack = ExitStack()
        self.leader = ReplicaLeader()
        self.before: Callable[[Any], None] = lambda message: None
        self.closing = threading.Event()
        """While it is set, a connection ends instead of answering."""
        self.lock = threading.Lock()
        """Of the leader, which a former connection may still ask when the next one does."""
        self.thread = FetcherThread(7, NODE, 0, FetchOptions(max_wait_ms=0, backoff_ms=10), {})
        self.stack.callback(self.thread.close)

    def script(self, peer: Peer) -> None:
        self.leader.session = None
        for asked in peer.requests():
            assert asked.api_key == ApiKey.FETCH
            if self.closing.is_set():
                return
            message = asked.message
            self.before(message)
            with self.lock:
                answer = self.leader.answer(message, asked.version)
            peer.respond(asked, answer)

    def broker(self) -> ScriptedBroker:
        return self.stack.enter_context(ScriptedBroker(self.script))

    def log(self, name: str) -> Log:
        path = self.path / name
        path.mkdir()
        home = LogHome(path, options=self.options)
        log = home.create()
        log.open()
        self.stack.callback(home.abandon)
        return log

    def follow(self, log: Log, epoch: int) -> None:
        log.follow(epoch)
        self.thread.engine.follow(log.state, log.topic_id.bytes, epoch)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, LogOptions())
    with made.stack:
        yield made


def test_a_follower_catches_up_and_connects_again(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    leader.append(batch_of([b"first"]))
    bench.leader.lead("orders", 0, leader, 3)
    broker = bench.broker()
    bench.thread.set_address(endpoint(broker))
    bench.follow(follower, 3)
    wait_until(lambda: follower.state.log_end_offset == 1, "replication")
    bench.closing.set()
    wait_until(lambda: bench.thread.engine.failed > 2, "replication")
    leader.append(batch_of([b"second"]))
    bench.closing.clear()
    wait_until(lambda: follower.state.log_end_offset == 2, "replication")


def test_a_leader_that_moves_is_followed(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    bench.leader.lead("orders", 0, leader, 3)
    first, second = bench.broker(), bench.broker()
    bench.follow(follower, 3)  # its address is not known yet
    bench.thread.set_address(endpoint(first))
    leader.append(batch_of([b"first"]))
    wait_until(lambda: follower.state.log_end_offset == 1, "replication")
    bench.thread.set_address(endpoint(second))
    wait_until(lambda: second.accepted > 0, "a connection to the new address")
    leader.append(batch_of([b"second"]))
    wait_until(lambda: follower.state.log_end_offset == 2, "replication")


def test_a_follower_that_flushes_before_acks_tells_only_of_what_is_flushed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LogOptions(flush_messages=1))
    with bench.stack:
        leader, follower = bench.log("leader"), bench.log("follower")
        flushers = Flushers(follower.directory, 1)
        flushers.start()
        bench.stack.callback(flushers.stop)
        bench.leader.lead("orders", 0, leader, 3)
        told: list[tuple[int, int]] = []

        def before(message: Any) -> None:
            offsets = [topic.partitions[0].fetch_offset for topic in message.topics]
            told.extend((offset, follower.state.flushed_offset) for offset in offsets)

        bench.before = before
        bench.thread.set_address(endpoint(bench.broker()))
        bench.follow(follower, 3)
        for number in range(10):
            leader.append(batch_of([b"%d" % number]), wait=False)
            wait_until(lambda end=number + 1: follower.state.log_end_offset == end, "replication")  # type: ignore[misc]
        wait_until(lambda: told[-1][0] == 10, "replication")
        assert all(offset <= flushed for offset, flushed in told)
        assert sorted({offset for offset, _ in told}) == list(range(11))


def test_a_broker_that_is_no_leader_of_replicas_is_asked_without_end_and_does_no_harm(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    bench.leader.lead("orders", 0, leader, 3)

    def nonsense(peer: Peer) -> None:
        for asked in peer.requests():
            peer.answer(asked.correlation_id, bytes(9))

    rubbish = bench.stack.enter_context(ScriptedBroker(nonsense))
    bench.thread.set_address(endpoint(rubbish))
    bench.follow(follower, 3)
    wait_until(lambda: bench.thread.engine.failed > 1, "replication")
    bench.thread.set_address(endpoint(bench.broker()))
    leader.append(batch_of([b"first"]))
    wait_until(lambda: follower.state.log_end_offset == 1, "replication")
