"""The ReplicaFetcher on a pump, with a leader in the same thread: the follower's logs become the leader's."""

from __future__ import annotations

import ctypes
import gc
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.base.throttle import Throttle
from kbroker._core.client.pump import Pump
from kbroker._core.replica.fetcher import ReplicaFetcher
from kbroker._core.replica.followed import ReplicaTrouble
from kbroker.errors import ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol import messages as M
from kbroker.protocol.api import ApiKey
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.brokers.leader import NODE, ReplicaLeader
from tests.kit.logs.bytes import bytes_of
from tests.kit.logs.home import LogHome, batch_of
from tests.kit.wire import parser_cases

EPOCH = 5


class Bench:
    """A leader's and a follower's disk, the follower's engine, and the leader it talks to, driven step by step."""

    def __init__(self, path: Path, version: int = 17, **options: Any):
        self.path = path
        self.leader = ReplicaLeader(version)
        self.pump = Pump({ApiKey.FETCH: 12})
        self.engine = ReplicaFetcher(7, NODE, **({"max_wait_ms": 0, "backoff_ms": 0, "broker_epoch": 99} | options))
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
        self.engine.follow(log.state, log.topic_id.bytes if topic_id is None else topic_id, leader_epoch)

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.leader.exchange(self.pump, self.wanted)

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


MANY = 1_000
HANG_S = 30.0


def answer_of(bench: Bench, leader: Log, batch_count: int) -> bytes:
    """Append batches on the leader, and return the answer to the request that waits for them, unsent."""
    for number in range(batch_count):
        leader.append(batch_of([b"%d" % number]))
    request = bench.leader.take_request()
    assert request is not None
    header, message = request
    return bench.leader.encode(header, bench.leader.answer(message, header.request_api_version))


def test_an_answer_is_appended_and_the_next_one_asked_for_while_another_thread_has_the_gil(bench: Bench) -> None:
    """Without the GIL no Python object can be made either, whether it lives on or not."""
    leader, follower = bench.pair()
    leader.append(batch_of([b"first"]))
    bench.turn(4)  # the log's first batch takes the GIL: the epoch's start is noted
    answer = answer_of(bench, leader, MANY)
    assert bench.leader.socket is not None
    bench.leader.socket.setblocking(False)
    descriptor, libc = bench.leader.socket.fileno(), ctypes.PyDLL(None)  # unlike a CDLL, it keeps the GIL in its calls
    byte = ctypes.create_string_buffer(1)
    turns, sent, is_asked = bench.pump.counters()["turns"], 0, False
    pumping = threading.Thread(target=bench.pump.run, args=(4 * HANG_S,))
    pumping.start()
    bench.engine.awaken()
    deadline = time.monotonic() + HANG_S
    while bench.pump.counters()["turns"] == turns and time.monotonic() < deadline:
        time.sleep(0)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(4 * HANG_S)  # who waits for the GIL does not get it
    try:
        while not is_asked and time.monotonic() < deadline:
            if sent < len(answer):
                sent += max(libc.send(descriptor, answer[sent:], len(answer) - sent, 0), 0)
            is_asked = libc.recv(descriptor, byte, 1, socket.MSG_PEEK) == 1
        end = follower.state.log_end_offset
    finally:
        sys.setswitchinterval(interval)
        bench.leader.close()  # which ends the run of the pump
        pumping.join()
    assert (sent, end, is_asked) == (len(answer), 1 + MANY, True)
    assert bytes_of(follower) == bytes_of(leader)


def test_an_answer_of_many_batches_leaves_no_more_objects_than_one_of_one(bench: Bench) -> None:
    leader, follower = bench.pair()
    leader.append(batch_of([b"first"]))
    bench.turn(4)

    def blocks_left(batch_count: int) -> int:
        """Return how many blocks of memory Python has more when an answer of so many batches is taken in."""
        end = follower.state.log_end_offset
        answer = answer_of(bench, leader, batch_count)
        assert bench.leader.socket is not None
        bench.leader.socket.sendall(answer)
        before = sys.getallocatedblocks()
        bench.pump.run(0)
        left = sys.getallocatedblocks() - before
        assert follower.state.log_end_offset == end + batch_count
        return left

    blocks_left(1)
    assert abs(blocks_left(MANY) - blocks_left(1)) < 20


@pytest.mark.parametrize("version", [12, 13, 14, 15, 16, 17])
def test_a_request_names_the_replica_as_its_version_has_it(tmp_path: Path, version: int) -> None:
    bench = Bench(tmp_path, version)
    leader, follower = bench.pair()
    leader.append(batch_of([b"x"]))
    bench.turn(4)
    assert follower.state.log_end_offset == 1
    for asked in bench.leader.requests:
        if version >= 15:
            assert (asked.replica_state.replica_id, asked.replica_state.replica_epoch) == (7, 99)
        else:
            assert asked.replica_id == 7
        assert (asked.isolation_level, asked.max_bytes) == (0, 10 << 20)
    ask = bench.leader.requests[0].topics[0].partitions[0]
    assert (ask.current_leader_epoch, ask.last_fetched_epoch, ask.log_start_offset) == (EPOCH, 0, 0)
    assert ask.partition_max_bytes == 1 << 20
    bench.close()


def test_a_topic_without_an_id_is_asked_for_by_its_name(bench: Bench) -> None:
    leader, follower = bench.log("leader"), bench.log("follower")
    leader.append(batch_of([b"x"]))
    bench.leader.lead("orders", 0, leader, EPOCH)
    bench.follow(follower, topic_id=bytes(16))
    bench.turn(4)
    assert follower.state.log_end_offset == 1
    assert bench.leader.requests[0].topics[0].topic == "orders"
    other_leader, other = bench.pair(1)
    other_leader.append(batch_of([b"x"]))
    bench.turn(6)
    assert other.state.log_end_offset == 1
    bench.follow(follower)
    bench.turn(4)
    assert bench.leader.requests[-1].session_epoch > 0
    full = [asked for asked in bench.leader.requests if asked.session_epoch == 0]
    assert [asked.topics[0].topic for asked in full] == ["orders", ""], "a session names its topics in one way"


def test_a_session_tells_only_what_has_changed(bench: Bench) -> None:
    pairs = [bench.pair(partition) for partition in range(3)]
    bench.turn(5)
    before = len(bench.leader.requests)
    pairs[1][0].append(batch_of([b"x"]))
    bench.turn(4)
    told = [
        [(ask.partition, ask.fetch_offset) for topic in asked.topics for ask in topic.partitions]
        for asked in bench.leader.requests[before:]
    ]
    assert [each for each in told if each] == [[(1, 1)]]
    bench.engine.forget(pairs[2][1].state)
    bench.turn(3)
    [forgotten] = [asked.forgotten_topics_data for asked in bench.leader.requests if asked.forgotten_topics_data]
    assert forgotten[0].partitions == [2]
    assert len(bench.engine.lag()) == 2


def test_a_session_that_the_leader_has_forgotten_begins_anew(bench: Bench) -> None:
    leader, follower = bench.pair()
    bench.turn(3)
    for code in (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR,
    ):  # fmt: skip
        bench.leader.error = code
        leader.append(batch_of([b"x"]))
        bench.turn(5)
        assert follower.state.log_end_offset == leader.state.log_end_offset, code
    bench.leader.sessions = False
    bench.leader.session = None
    leader.append(batch_of([b"x"]))
    bench.turn(5)
    assert follower.state.log_end_offset == leader.state.log_end_offset


def test_trouble_of_one_partition_stops_no_other(bench: Bench) -> None:
    pairs = [bench.pair(partition) for partition in range(3)]
    for leader, _ in pairs:
        leader.append(batch_of([b"x"]))
    bench.leader.errors["orders", 1] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.turn(5)
    assert [follower.state.log_end_offset for _, follower in pairs] == [1, 0, 1]
    [trouble] = bench.news
    assert (trouble.partition_id, trouble.kind, trouble.error, trouble.leader_epoch) == (1, "error", 6, EPOCH)
    assert [at.is_stopped for at in bench.engine.lag()] == [False, True, False]
    bench.engine.resume(pairs[1][1].state, EPOCH - 1)
    bench.turn(3)
    assert pairs[1][1].state.log_end_offset == 0, "another epoch's permission is none"
    bench.engine.resume(pairs[1][1].state, EPOCH)
    bench.turn(3)
    assert pairs[1][1].state.log_end_offset == 1


def test_the_lag_is_counted_to_the_leaders_high_watermark(bench: Bench) -> None:
    leader, follower = bench.pair()
    assert [at.lag for at in bench.engine.lag()] == [-1]
    for _ in range(3):
        leader.append(batch_of([b"x" * 100]))
    bench.leader.damage = lambda records: records[:170]
    bench.turn(2)
    [lag] = bench.engine.lag()
    assert lag.lag == 3 - follower.state.log_end_offset > 0
    bench.leader.damage = bytes
    bench.turn(5)
    assert [at.lag for at in bench.engine.lag()] == [0]


def test_a_damaged_batch_is_counted_and_told(bench: Bench) -> None:
    leader, follower = bench.pair()
    leader.append(batch_of([b"x"]))
    bench.leader.damage = lambda records: records[:-1] + b"?"
    bench.turn(3)
    [trouble] = bench.news
    assert (trouble.kind, trouble.error) == ("append", ErrorCode.CORRUPT_MESSAGE)
    assert (bench.engine.damaged, bench.engine.bytes_in, follower.state.log_end_offset) == (1, 0, 0)


def test_what_was_asked_in_an_older_epoch_is_not_appended(bench: Bench) -> None:
    leader, follower = bench.pair()
    leader.append(batch_of([b"x"]))
    bench.pump.run(0)
    bench.leader.connect(bench.pump)
    bench.wanted.clear()
    bench.pump.run(0)  # the request is under way
    follower.be_alone(EPOCH + 1)
    follower.append(batch_of([b"own"]))
    bench.leader.partitions["orders", 0].leader_epoch = EPOCH + 2
    bench.follow(follower, EPOCH + 2)
    bench.leader.partitions["orders", 0].leader_epoch = EPOCH
    bench.leader.serve(bench.pump)
    assert follower.state.log_end_offset == 1
    assert follower.read(0, 100, to_log_end=True).endswith(b"own\0")


def ask_in_an_older_epoch(bench: Bench, follower: Log) -> None:
    """Leave a request under way, and follow in a newer epoch meanwhile."""
    bench.pump.run(0)
    bench.leader.connect(bench.pump)
    bench.wanted.clear()
    bench.pump.run(0)
    bench.follow(follower, EPOCH + 1)


@pytest.mark.parametrize("says", ["an error", "a diverging epoch"])
def test_what_an_older_leader_answers_is_no_trouble_of_the_newer_epoch(bench: Bench, says: str) -> None:
    """The log would be cut by the word of a leader that does not lead any more."""
    _, follower = bench.pair()
    ask_in_an_older_epoch(bench, follower)

    def answer(*_: object) -> M.FetchResponse.PartitionData:
        part = M.FetchResponse.PartitionData(partition_index=0, high_watermark=0, records=b"")
        if says == "an error":
            part.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            part.diverging_epoch = M.FetchResponse.EpochEndOffset(epoch=1, end_offset=0)
        return part

    truth = bench.leader.answer_partition
    bench.leader.answer_partition = answer  # type: ignore[method-assign]
    assert bench.leader.serve(bench.pump)
    bench.leader.answer_partition = truth  # type: ignore[method-assign]
    bench.pump.run(0)
    assert bench.news == []
    assert [each.is_stopped for each in bench.engine.lag()] == [False]


@pytest.mark.parametrize("version", [12, 17])
def test_what_was_not_asked_for_goes_into_no_log(tmp_path: Path, version: int) -> None:
    bench = Bench(tmp_path, version)
    leader, follower = bench.pair()
    leader.append(batch_of([b"x"]))
    truth = bench.leader.answer

    def of_another(what: str) -> None:
        def answer(message: Any, version: int) -> Any:
            made = truth(message, version)
            for topic in made.responses:
                if what == "topic":
                    topic.topic, topic.topic_id = "others", b"another topic id"
                else:
                    topic.partitions[0].partition_index = 1
            return made

        bench.leader.answer = answer  # type: ignore[method-assign]

    for what in ("topic", "partition"):
        of_another(what)
        bench.turn(4)
        assert (follower.state.log_end_offset, bench.news) == (0, [])
    bench.leader.answer = truth  # type: ignore[method-assign]
    bench.turn(4)
    assert follower.state.log_end_offset == 1
    bench.close()


def test_of_two_answers_for_one_partition_the_first_one_counts(bench: Bench) -> None:
    leader, follower = bench.pair()
    leader.append(batch_of([b"x"]))
    truth = bench.leader.answer

    def twice(message: Any, version: int) -> Any:
        answer = truth(message, version)
        for topic in answer.responses:
            wrong = M.FetchResponse.PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
            topic.partitions.append(wrong)
        return answer

    bench.leader.answer = twice  # type: ignore[method-assign]
    bench.turn(3)
    assert (follower.state.log_end_offset, bench.news) == (1, [])


def test_a_partition_that_is_forgotten_gets_nothing_more(bench: Bench) -> None:
    leader, follower = bench.pair()
    bench.turn(3)
    bench.engine.forget(follower.state)
    bench.engine.forget(follower.state)
    leader.append(batch_of([b"x"]))
    bench.turn(5)
    assert follower.state.log_end_offset == 0
    assert bench.engine.lag() == []
    bench.follow(follower)
    bench.turn(5)
    assert follower.state.log_end_offset == 1


@pytest.mark.parametrize("version", [12, 17])
def test_whatever_bytes_come_no_other_records_are_appended(tmp_path: Path, version: int) -> None:
    """The leader's answer, cut at each length and with each byte changed: the logs stay beginnings of the leader's."""
    leaders = [LogHome(tmp_path / f"leader-{at}", topic_partition=TopicPartition("orders", at)) for at in range(2)]
    logs = []
    for home in leaders:
        home.path.mkdir()
        log = home.create()
        log.be_alone(3)
        log.append(batch_of([b"first"]))
        log.append(batch_of([b"second", b"third"]))
        logs.append(log)
    whole = [bytes_of(log) for log in logs]
    seen = {"closed": 0, "told": 0, "whole": 0, "changed": 0}

    def tried(number: int, mangle: Callable[[bytes], bytes]) -> None:
        path = tmp_path / str(number)
        path.mkdir()
        bench = Bench(path, version, backoff_ms=60_000)
        bench.leader.mangle = mangle
        followers = []
        for at, log in enumerate(logs):
            bench.leader.lead("orders", at, log, EPOCH)
            followers.append(bench.log("follower", at))
            bench.follow(followers[-1])
        try:
            bench.turn(2)
            for expected, log in zip(whole, followers, strict=True):
                found = bytes_of(log)
                if expected.startswith(found):
                    seen["whole"] += found == expected
                else:
                    # No CRC covers the first 16 bytes of a batch; a change there that makes sense is not noticed.
                    [at] = [at for at in range(len(found)) if found[at] != expected[at]]
                    size = 12 + int.from_bytes(expected[8:12], "big")
                    assert at % size in (*range(8), *range(12, 16)) or at - size in (*range(8), *range(12, 16))
                    seen["changed"] += 1
            seen["told"] += len(bench.news) > 0
            seen["closed"] += bench.engine.failed > 0
        finally:
            bench.close()

    bodies: list[bytes] = []

    def note(body: bytes) -> bytes:
        bodies.append(body)
        return body

    tried(0, note)
    assert seen["whole"] == 2
    for number, (_, body) in enumerate(parser_cases.mangled(bodies[0]), start=1):
        tried(number, lambda _, body=body: body)  # type: ignore[misc]
    assert min(seen["closed"], seen["told"], seen["whole"]) > 10, seen
    assert seen["changed"] < 20, seen
    for home in leaders:
        home.abandon()


def test_an_engine_that_ends_before_its_flushes_is_told_of_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader, follower = bench.pair(options=LogOptions(flush_messages=1))
    leader.append(batch_of([b"x"]), wait=False)
    bench.turn(4)
    asked = len(bench.leader.requests)
    bench.turn(4)
    assert (follower.state.log_end_offset, follower.state.flushed_offset) == (1, 0)
    assert len(bench.leader.requests) == asked, "the leader is told of no end that is not flushed"
    bench.pump.close("the test is over")
    bench.leader.close()
    gone = weakref.ref(bench)  # the engine knows it, and nobody else knows the engine
    homes, news = bench.homes, bench.news
    del bench
    gc.collect()
    assert gone() is None
    homes[1].flush_requested()
    assert (follower.state.flushed_offset, news) == (1, [])
    for home in homes:
        home.abandon()


def test_the_next_fetch_comes_when_the_flush_is_done(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    leader, follower = bench.pair(options=LogOptions(flush_messages=1))
    leader.append(batch_of([b"x"]), wait=False)
    bench.turn(4)
    asked = len(bench.leader.requests)
    bench.homes[1].flush_requested()
    bench.turn(2)
    assert bench.leader.requests[asked].topics[0].partitions[0].fetch_offset == 1
    assert follower.state.flushed_offset == 1
    bench.close()


def test_a_follower_that_lacks_committed_records_fetches_on_while_it_flushes(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_partition_bytes=1)  # a batch at a time
    leader, follower = bench.pair(options=LogOptions(flush_messages=1))
    for value in (b"x", b"y", b"z"):
        leader.append(batch_of([value]), wait=False)
    assert leader.high_watermark == 3
    bench.turn(12)
    assert (follower.state.log_end_offset, follower.state.flushed_offset) == (3, 0)
    told = [each.topics[0].partitions[0].fetch_offset for each in bench.leader.requests]
    assert told == [0, 1, 2], "it would be in sync with all three, which are not flushed"
    bench.homes[1].flush_requested()
    bench.turn(4)
    assert follower.state.flushed_offset == 3
    assert bench.leader.requests[3].topics[0].partitions[0].fetch_offset == 3
    bench.close()


def test_a_throttled_partition_is_left_out_above_the_rate_and_others_are_not(tmp_path: Path) -> None:
    throttle = Throttle()
    throttle.rate = 1 << 60
    bench = Bench(tmp_path, throttle=throttle, max_partition_bytes=1)  # a batch at a time
    options = LogOptions(follower_throttled=(0,))
    (leader, follower), (other_leader, other) = bench.pair(0, options), bench.pair(1, options)
    for log in (leader, other_leader):
        for number in range(10):
            log.append(batch_of([b"%d" % number]))
    while follower.state.log_end_offset < 1:
        bench.turn()
    throttle.rate = 1
    bench.turn(30)
    assert follower.state.log_end_offset <= 2  # an answer may have been under way
    assert other.state.log_end_offset == 10
    throttle.rate = (1 << 63) - 1
    bench.engine.awaken()
    bench.turn(30)
    assert follower.state.log_end_offset == 10
    assert bytes_of(follower) == bytes_of(leader)
    assert bench.news == []
    bench.close()


def test_a_partition_in_sync_is_not_held_back_by_its_throttle(tmp_path: Path) -> None:
    throttle = Throttle()
    bench = Bench(tmp_path, throttle=throttle)
    leader, follower = bench.pair(0, LogOptions(follower_throttled=(0,)))
    throttle.rate = 1
    leader.append(batch_of([b"first"]))
    bench.turn(6)  # the first answer is over the rate, and tells that this is all
    for number in range(5):
        leader.append(batch_of([b"%d" % number]))
        bench.turn(3)
        assert follower.state.log_end_offset == number + 2
    assert throttle.wait_ms() > 0
    bench.close()
