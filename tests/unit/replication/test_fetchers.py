"""Fetchers, engine and logs together, with a leader in the same thread: whatever the logs were, they become equal."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker._core.client.pump import Pump
from kbroker._core.replica.fetcher import ReplicaFetcher
from kbroker._core.replica.followed import ReplicaTrouble
from kbroker.cluster.peers import Answered, AskAnswered, PeerError
from kbroker.errors import ErrorCode, StorageFailed
from kbroker.model import Endpoint, TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.protocol.messages import Message
from kbroker.replication.fetchers import FetcherOptions, Fetchers, fetcher_of
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.brokers.leader import NODE, ReplicaLeader
from tests.kit.logs.bytes import bytes_of
from tests.kit.logs.home import LogHome, batch_of
from tests.kit.logs.quick_disk import memory_directory

ORDERS = TopicPartition("orders", 0)


class LeaderPeers:
    """Peers whose only broker is the leader; it answers ListOffsets, at once or never."""

    def __init__(self, leader: ReplicaLeader):
        self.leader = leader
        self.asked: list[tuple[int, int]] = []
        """Timestamp and leader epoch of each question."""
        self.error = 0
        self.is_gone = False

    def ask(
        self, node_id: int, make: Callable[[int], Message], api_key: int, highest_version: int, answered: AskAnswered,
        *, timeout_ms: int,
    ) -> None:  # fmt: skip
        assert (node_id, api_key, highest_version) == (NODE, ApiKey.LIST_OFFSETS, 9)
        message: Any = make(9)
        message = M.ListOffsetsRequest.decode_prefix(message.encode(9), 9)[0]
        ask = message.topics[0].partitions[0]
        self.asked.append((ask.timestamp, ask.current_leader_epoch))
        if self.is_gone:
            answered(PeerError(node_id, "it is gone"), -1)
            return
        log = self.leader.partitions[message.topics[0].name, ask.partition_index].log
        offset = log.log_end_offset if ask.timestamp == -1 else log.log_start_offset
        code, self.error = self.error, 0
        part = M.ListOffsetsResponse.ListOffsetsPartitionResponse(
            partition_index=ask.partition_index, error_code=code, offset=-1 if code else offset, timestamp=-1
        )
        topic = M.ListOffsetsResponse.ListOffsetsTopicResponse(name=message.topics[0].name, partitions=[part])
        answered(M.ListOffsetsResponse(topics=[topic]), 9)

    def send(self, node_id: int, message: Message, version: int, answered: Answered, *, timeout_ms: int) -> None:
        raise AssertionError("a follower sends nothing else")

    def served(self, node_id: int, api_key: int) -> int:
        return -1

    def set_brokers(self, brokers: Mapping[int, Endpoint]) -> None: ...
    def keep(self, node_ids: Collection[int]) -> None: ...
    def on_refused(self, callback: Callable[[int], None]) -> None: ...


class Bench:
    def __init__(self, path: Path, options: LogOptions | None = None):
        self.path = path
        self.options = options or LogOptions(verify_transactions=False)
        self.leader = ReplicaLeader()
        self.peers = LeaderPeers(self.leader)
        self.pump = Pump({ApiKey.FETCH: 12})
        self.engine = ReplicaFetcher(7, NODE, max_wait_ms=0, backoff_ms=0)
        self.pump.add(self.engine)
        self.wanted: list[int] = []
        self.pump.on_wanted = lambda node_id: self.wanted.append(node_id)
        self.fetchers = Fetchers(7, lambda *_: self.engine, self.peers, FetcherOptions(backoff_ms=0))
        self.homes: list[LogHome] = []

    def log(self, name: str, topic_partition: TopicPartition = ORDERS) -> Log:
        path = self.path / name
        path.mkdir()
        self.homes.append(LogHome(path, options=self.options, topic_partition=topic_partition))
        log = self.homes[-1].create()
        log.open()
        return log

    def follow(self, log: Log, leader_epoch: int) -> None:
        log.follow(leader_epoch)
        self.fetchers.start(ORDERS, log, NODE, leader_epoch)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.exchange()
            while self.fetchers.step():
                pass

    def exchange(self) -> None:
        """Let the engine ask, the leader answer and the engine take it in; what is left to do is not done yet."""
        self.leader.exchange(self.pump, self.wanted)

    def catch_up(self, follower: Log, leader: Log, turns: int = 200) -> None:
        for _ in range(turns):
            self.turn()
            if follower.state.log_end_offset == leader.state.log_end_offset and bytes_of(follower) == bytes_of(leader):
                return
        raise AssertionError(f"{follower.state} of {leader.state}, epochs {follower.epochs} of {leader.epochs}")

    def close(self) -> None:
        self.fetchers.stop([ORDERS])
        self.pump.close("the test is over")
        self.leader.close()
        for home in self.homes:
            home.abandon()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def append(log: Log, epoch: int, count: int, what: bytes) -> None:
    """Append batches of one record, as a leader of that epoch."""
    log.be_alone(epoch)
    for number in range(count):
        log.append(batch_of([what + b"%d" % number]))


def copy(source: Log, target: Log, high_watermark: int = 0) -> None:
    """Let `target` have exactly what `source` has, and learn this high watermark."""
    epoch = source.leader_epoch
    target.follow(epoch)
    data = bytes_of(source)
    while target.state.size < len(data):
        assert target.state.append_as_follower(data[target.state.size :], epoch, high_watermark, 0) == 0


def test_a_log_that_went_on_by_itself_is_cut_and_goes_on_with_its_leader(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 5, b"shared")
    copy(leader, follower)
    append(follower, 2, 3, b"lost")
    append(leader, 3, 4, b"kept")
    follower.follow(4)
    led = bench.leader.lead("orders", 0, leader, 4)
    led.high_watermark = 6
    bench.follow(follower, 4)
    bench.catch_up(follower, leader)
    assert follower.epochs == [(0, 0), (1, 0), (3, 5)][1:]
    assert bench.fetchers.truncations == 1
    assert follower.high_watermark == 6


def test_an_epoch_in_which_nothing_was_written_is_forgotten(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 5, b"shared")
    copy(leader, follower)
    follower.lead(2, {}, [])
    assert follower.epochs[-1] == (2, 5)
    append(leader, 3, 1, b"kept")
    bench.leader.lead("orders", 0, leader, 3)
    bench.follow(follower, 3)
    bench.catch_up(follower, leader)
    assert follower.epochs == leader.epochs


def test_a_log_that_is_too_far_behind_begins_anew_at_its_leaders_start(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 5, b"shared")
    copy(leader, follower)
    append(leader, 3, 20, b"later")
    leader.roll()
    append(leader, 3, 2, b"newest")
    leader.delete_records_before(25)
    leader.delete_old_segments()
    bench.leader.lead("orders", 0, leader, 3)
    bench.follow(follower, 3)
    bench.catch_up(follower, leader)
    assert follower.log_start_offset == 25
    assert follower.epochs == [(3, 25)]
    assert bench.fetchers.beginnings == 1
    assert bench.peers.asked == [(-1, 3), (-2, 3)]
    again = bench.homes[1].reopen(clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (25, 27)


def test_a_log_that_has_more_than_a_leader_which_lost_records_is_cut_to_the_leaders_end(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 3, b"shared")
    copy(leader, follower)
    append(follower, 1, 5, b"lost by the leader")
    bench.leader.lead("orders", 0, leader, 2)
    bench.leader.errors["orders", 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    bench.follow(follower, 2)
    bench.catch_up(follower, leader)
    assert bench.peers.asked == [(-1, 2)]


@pytest.mark.parametrize("told", ["a diverging epoch", "its end"])
def test_what_an_older_leader_has_said_is_not_done_to_the_log_in_a_newer_epoch(bench: Bench, told: str) -> None:
    """The next leader may have what the one before did not have, and may have counted it as replicated already."""
    old, follower, new = bench.log("leader"), bench.log("follower"), bench.log("next")
    append(old, 1, 5, b"shared")
    copy(old, follower)
    append(follower, 2, 3, b"committed")
    copy(follower, new)
    if told == "a diverging epoch":
        append(old, 3, 4, b"other")
    bench.leader.lead("orders", 0, old, 3)
    bench.follow(follower, 3)
    for _ in range(3):
        bench.exchange()
    if told == "its end":
        assert bench.fetchers.step(), "it asks for the leader's end, and has the answer"
        assert bench.peers.asked == [(-1, 3)]
    bench.leader.lead("orders", 0, new, 4)
    bench.follow(follower, 4)
    while bench.fetchers.step():
        pass
    assert (follower.log_end_offset, bench.fetchers.truncations) == (8, 0)
    append(new, 4, 1, b"more")
    bench.catch_up(follower, new)
    assert bench.fetchers.truncations == 0


def test_a_replica_asks_again_when_its_question_about_offsets_fails(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 3, b"shared")
    bench.leader.lead("orders", 0, leader, 2)
    bench.leader.errors["orders", 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    bench.peers.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.follow(follower, 2)
    bench.catch_up(follower, leader)
    bench.leader.errors["orders", 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    bench.peers.is_gone = True
    append(leader, 1, 3, b"more")
    bench.catch_up(follower, leader)


def test_a_fenced_partition_waits_for_its_next_leader(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 3, b"shared")
    bench.leader.lead("orders", 0, leader, 5)
    bench.follow(follower, 2)
    bench.turn(20)
    assert follower.state.log_end_offset == 0
    assert len(bench.leader.requests) == 1
    bench.follow(follower, 5)
    bench.catch_up(follower, leader)


def test_a_question_that_is_fenced_waits_for_the_next_leader_too(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 5, b"x")
    bench.leader.lead("orders", 0, leader, 2)
    bench.leader.errors["orders", 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    bench.peers.error = ErrorCode.FENCED_LEADER_EPOCH
    bench.follow(follower, 2)
    bench.turn(10)
    assert (bench.peers.asked, follower.log_end_offset) == ([(-1, 2)], 0)
    bench.leader.lead("orders", 0, leader, 3)
    bench.follow(follower, 3)
    bench.catch_up(follower, leader)


class LyingLeader(ReplicaLeader):
    """A leader that says of a partition what cannot be, as long as it has lies to tell."""

    def __init__(self) -> None:
        super().__init__()
        self.lies: dict[str, Any] = {}
        self.topic: dict[str, Any] = {}

    def answer_partition(self, name: str | bytes, partition: int, ask: Any, max_bytes: int) -> Any:
        answer = super().answer_partition(name, partition, ask, max_bytes)
        for field, value in self.lies.items():
            setattr(answer, field, value)
        return answer

    def answer(self, message: Any, version: int) -> Any:
        answer = super().answer(message, version)
        for topic in answer.responses:
            for field, value in self.topic.items():
                setattr(topic, field, value)
        return answer


MOST = 2**63 - 1


def diverging(epoch: int, end_offset: int) -> dict[str, Any]:
    return {"diverging_epoch": M.FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)}


@pytest.mark.parametrize(
    "lies",
    [
        {"high_watermark": MOST},
        {"high_watermark": -7},
        {"log_start_offset": MOST},
        {"log_start_offset": -9},
        {"log_start_offset": 4, "high_watermark": 2},
        {"log_start_offset": MOST, "high_watermark": -1},
        {"last_stable_offset": MOST},
        {"partition_index": 7},
        {"partition_index": -1},
        {"error_code": 9999},
        {"error_code": -1},
        diverging(2**31 - 1, MOST),
        diverging(2**31 - 1, 0),
        diverging(1, 0),
        diverging(1, MOST),
        diverging(1, -5),
        diverging(0, MOST),
        diverging(0, 2),
        diverging(0, -1),
        diverging(-1, 3),
        diverging(-5, -5),
        {"topic_id": bytes(16)},
        {"topic_id": b"another topic id"},
    ],
)
def test_whatever_a_leader_says_the_log_stays_one_and_goes_on_when_the_leader_comes_to_its_senses(
    bench: Bench, lies: dict[str, Any]
) -> None:
    liar = bench.leader = bench.peers.leader = LyingLeader()
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 3, b"first")
    append(leader, 2, 3, b"then")
    liar.lead("orders", 0, leader, 2)
    bench.follow(follower, 2)
    bench.catch_up(follower, leader)
    append(leader, 2, 1, b"more")
    target = liar.topic if "topic_id" in lies else liar.lies
    target.update(lies)
    for _ in range(20):
        bench.turn()
        state = follower.state
        assert 0 <= state.log_start_offset <= state.high_watermark <= state.log_end_offset <= 7
        assert all(epoch <= 2 and start <= state.log_end_offset for epoch, start in follower.epochs)
        assert leader.read(state.log_start_offset, 1 << 20, to_log_end=True).startswith(
            follower.read(state.log_start_offset, 1 << 20, to_log_end=True)
        )
    target.clear()
    for _ in range(20):
        bench.turn()
    start = follower.log_start_offset
    assert follower.log_end_offset == 7
    assert follower.read(start, 1 << 20, to_log_end=True) == leader.read(start, 1 << 20, to_log_end=True)


def test_a_leader_that_is_behind_is_asked_again(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 3, b"shared")
    led = bench.leader.lead("orders", 0, leader, 5)
    bench.follow(follower, 6)
    bench.turn(5)
    led.leader_epoch = 6
    bench.catch_up(follower, leader)


def test_a_damaged_batch_is_not_appended_and_comes_again_whole(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 3, b"x" * 100)
    bench.leader.lead("orders", 0, leader, 1)
    bench.leader.damage = lambda records: records[:-1] + bytes([records[-1] ^ 1]) if records else records
    bench.follow(follower, 1)
    bench.turn(10)
    assert follower.state.log_end_offset == 2
    assert bench.engine.damaged >= 2
    told = [record.message for record in caplog.records if "CORRUPT_MESSAGE" in record.message]
    assert len(told) == 2, "once for the answer with three batches, once for the last one alone"
    bench.leader.damage = bytes
    bench.catch_up(follower, leader)


def test_an_answer_to_a_log_that_was_cut_meanwhile_is_not_taken_for_what_follows_on(bench: Bench) -> None:
    """The hole would be below the high watermark, where it passes for what compaction has left out."""
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 5, b"shared")
    copy(leader, follower)
    append(leader, 1, 4, b"more")
    bench.leader.lead("orders", 0, leader, 1).high_watermark = 9
    cuts = iter([3])

    def cut_before(records: bytes) -> bytes:
        for offset in cuts:
            follower.truncate_to(offset)
        return records

    bench.leader.damage = cut_before
    bench.follow(follower, 1)
    bench.catch_up(follower, leader)


def test_one_line_says_what_many_partitions_have_met(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for each in (ORDERS, TopicPartition("orders", 1), TopicPartition("orders", 2)):
        leader, follower = bench.log(f"leader-{each}", each), bench.log(f"follower-{each}", each)
        bench.leader.lead(each.topic, each.partition_id, leader, 1)
        follower.follow(2)
        bench.fetchers.start(each, follower, NODE, 2)
    bench.turn()
    assert not caplog.records, "a leader may be told of its role a little later"
    bench.turn(10)
    (line,) = [record.message for record in caplog.records if "UNKNOWN_LEADER_EPOCH" in record.message]
    named, _, why = line.partition(": ")
    assert sorted(named.split(", ")) == ["orders-0", "orders-1", "orders-2"]
    assert why == f"cannot follow leader {NODE} of epoch 2 now: its leader answers UNKNOWN_LEADER_EPOCH"
    bench.fetchers.stop([TopicPartition("orders", 1), TopicPartition("orders", 2)])


def test_a_log_without_epochs_is_cut_to_its_high_watermark_before_the_first_fetch(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 5, b"shared")
    copy(leader, follower, high_watermark=3)
    follower._epochs.clear()
    bench.leader.lead("orders", 0, leader, 2)
    bench.follow(follower, 2)
    bench.catch_up(follower, leader)
    asked = bench.leader.requests[0].topics[0].partitions[0]
    assert asked.fetch_offset == 3


def test_the_log_start_follows_the_leaders(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 5, b"shared")
    bench.leader.lead("orders", 0, leader, 1)
    bench.follow(follower, 1)
    bench.catch_up(follower, leader)
    leader.delete_records_before(3)
    append(leader, 1, 1, b"more")
    bench.catch_up(follower, leader)
    bench.turn(3)
    assert follower.log_start_offset == 3
    assert follower.epochs == [(1, 3)]


def test_a_leader_hears_of_a_moved_log_start_when_nothing_else_happens(bench: Bench) -> None:
    """DeleteRecords waits for that."""
    leader, follower = bench.log("leader"), bench.log("follower")
    append(leader, 1, 5, b"x")
    led = bench.leader.lead("orders", 0, leader, 1)
    led.high_watermark = 5
    bench.follow(follower, 1)
    bench.catch_up(follower, leader)
    bench.turn(3)
    leader.delete_records_before(3)
    bench.turn(6)
    assert follower.log_start_offset == 3
    assert bench.leader.session is not None
    (asked,) = bench.leader.session.asked.values()
    assert asked.log_start_offset == 3


def test_an_empty_log_may_begin_inside_a_batch(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    leader.be_alone(1)
    leader.append(batch_of([b"%d" % number for number in range(10)]))
    leader.append(batch_of([b"next"]))
    leader.delete_records_before(4)
    bench.leader.lead("orders", 0, leader, 1)
    bench.follow(follower, 1)
    bench.catch_up(follower, leader)
    bench.turn(5)
    assert (follower.log_start_offset, follower.log_end_offset) == (4, 11)


class NotedEngine:
    """A fetch engine that notes who follows what."""

    def __init__(self) -> None:
        self.on_told: Callable[[], object] | None = None
        self.followed: set[tuple[str, int]] = set()
        self.news: list[ReplicaTrouble] = []
        self.pauses: list[int] = []

    def follow(self, state: Any, topic_id: bytes, leader_epoch: int) -> None:
        self.followed.add((state.topic, state.partition_id))

    def forget(self, state: Any) -> None:
        self.followed.discard((state.topic, state.partition_id))

    def resume(self, state: Any, leader_epoch: int, after_ms: int = 0) -> None:
        self.pauses.append(after_ms)

    def take_news(self) -> list[Any]:
        news, self.news = self.news, []
        return news

    def lag(self) -> list[Any]:
        return []


def test_each_leader_has_engines_of_its_own(bench: Bench) -> None:
    made: dict[tuple[int, int], NotedEngine] = {}

    def make(leader_id: int, number: int) -> NotedEngine:
        made[leader_id, number] = NotedEngine()
        return made[leader_id, number]

    fetchers = Fetchers(7, make, bench.peers, FetcherOptions(per_leader=2))
    partitions = [TopicPartition("orders", number) for number in range(4)]
    logs = {each: bench.log(f"of-{each.partition_id}", each) for each in partitions}
    for each in partitions:
        fetchers.start(each, logs[each], 1, 5)
    assert made.keys() == {(1, 0), (1, 1)}
    assert all(len(engine.followed) == 2 for engine in made.values())
    moved = partitions[0]
    fetchers.start(moved, logs[moved], 2, 6)
    assert sum(len(made[1, number].followed) for number in (0, 1)) == 3
    assert [engine.followed for (leader, _), engine in made.items() if leader == 2] == [{("orders", 0)}]
    fetchers.stop(partitions)
    assert not any(engine.followed for engine in made.values())


def test_a_leader_that_has_not_heard_of_its_role_is_soon_asked_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    engine = NotedEngine()
    fetchers = Fetchers(7, lambda *_: engine, bench.peers, FetcherOptions(backoff_ms=1000))
    log = bench.log("orders")
    fetchers.start(ORDERS, log, NODE, 5)

    def refuse(code: ErrorCode, times: int) -> list[int]:
        engine.pauses.clear()
        for _ in range(times):
            engine.news.append(ReplicaTrouble(*ORDERS, "error", 5, code, 0, -1, -1, -1))
            assert engine.on_told is not None
            engine.on_told()
            fetchers.step()
        return engine.pauses

    assert refuse(ErrorCode.UNKNOWN_LEADER_EPOCH, 7) == [10, 20, 40, 80, 160, 320, 640]
    assert not caplog.records, "an election brings that about"
    assert refuse(ErrorCode.UNKNOWN_LEADER_EPOCH, 40) == [1000] * 40
    assert len(caplog.records) == 1, "it lasts"
    assert refuse(ErrorCode.KAFKA_STORAGE_ERROR, 2) == [1000, 1000]
    assert refuse(ErrorCode.UNKNOWN_LEADER_EPOCH, 1) == [10]
    fetchers.start(ORDERS, log, NODE, 6)
    fetchers.stop([ORDERS])


def test_a_log_that_does_not_open_while_its_trouble_is_dealt_with_is_fetched_for_again(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = NotedEngine()
    fetchers = Fetchers(7, lambda *_: engine, bench.peers, FetcherOptions(backoff_ms=1000))
    log = bench.log("orders")
    fetchers.start(ORDERS, log, NODE, 5)

    def refuse(_: Log) -> None:
        raise StorageFailed("no space left on device")

    monkeypatch.setattr(Log, "epochs", property(refuse))
    engine.news.append(ReplicaTrouble(*ORDERS, "append", 5, ErrorCode.KAFKA_STORAGE_ERROR, 0, -1, -1, -1))
    assert engine.on_told is not None
    engine.on_told()
    fetchers.step()
    assert engine.pauses == [1000]
    (line,) = [record.message for record in caplog.records]
    assert line == f"orders-0: cannot follow leader {NODE} of epoch 5 now: no space left on device"
    fetchers.stop([ORDERS])


def test_partitions_are_spread_over_the_fetchers() -> None:
    counts = [0] * 3
    for partition in range(30):
        counts[fetcher_of(TopicPartition("orders", partition), 3)] += 1
    assert counts == [10, 10, 10]


@settings(deadline=None, max_examples=60)
@given(
    shared=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=4),
    own=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=4),
    leaders=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=4),
    segment_bytes=st.sampled_from([250, 1000, 1 << 20]),
)
def test_logs_that_have_parted_become_the_leaders(
    shared: list[tuple[int, int]], own: list[tuple[int, int]], leaders: list[tuple[int, int]], segment_bytes: int
) -> None:
    """Each pair raises the epoch and appends so many batches. Nobody leads in an epoch in which the other has led."""
    with tempfile.TemporaryDirectory(dir=memory_directory()) as path:
        bench = Bench(Path(path), LogOptions(segment_bytes=segment_bytes, index_interval_bytes=0))
        leader, follower = bench.log("leader"), bench.log("follower")
        epoch = 0
        for more, count in shared:
            epoch += more
            append(leader, epoch, count, b"shared" * 5)
        copy(leader, follower)
        common = leader.log_end_offset
        for log, steps, parity in ((follower, own, 0), (leader, leaders, 1)):
            at = epoch + (epoch + parity) % 2
            for more, count in steps:
                at += 2 * more
                append(log, at, count, b"%d" % parity * 30)
        newest = max(leader.leader_epoch, follower.leader_epoch) + 1
        leader.lead(newest, {}, [])
        leader.be_alone(newest)
        bench.leader.lead("orders", 0, leader, newest)
        bench.follow(follower, newest)
        bench.catch_up(follower, leader)
        append(leader, newest, 1, b"together again")
        bench.catch_up(follower, leader)
        assert follower.log_end_offset >= common
        assert follower.epochs == leader.epochs
        assert follower.active_producers() == leader.active_producers()
        again = bench.homes[1].reopen(clean=False)
        assert bytes_of(again) == bytes_of(leader)
        bench.close()
