"""The FetchEngine on a pump, with a broker in the same thread: whatever happens, records come in order and once."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kbroker._core.client.consumer.fetch import FetchEngine
from kbroker._core.client.consumer.record import ConsumerRecord, UnreadableRecords
from kbroker._core.client.consumer.records import Records
from kbroker._core.client.pump import Pump
from kbroker.errors import BadInput, ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import Codec, inflate
from kbroker.protocol.records import ControlType, Record
from tests.kit.brokers.fetch import NODE, FetchBroker, Key
from tests.kit.models.consumer import Log, LogBatch, logs
from tests.kit.wire import parser_cases
from tests.kit.wire.batches import changed

RINGING: list[bool] = []
"""While it holds something Ctrl-C comes whenever a batch is inflated."""


def inflated(codec: int, data: memoryview, magic: int) -> bytes:
    if RINGING:
        raise KeyboardInterrupt
    return inflate(codec, data, 1 << 20, magic=magic)


def plain(record: ConsumerRecord) -> Record:
    return Record(record.offset, record.timestamp, record.key, record.value, record.headers)


def simple_log(count: int, size: int = 10) -> Log:
    """Batches of one record each."""
    return Log([LogBatch(at, at, (Record(at, 5, None, b"%d" % at + bytes(size)),)) for at in range(count)])


class Bench:
    """An engine, its pump and a broker, driven step by step."""

    def __init__(self, broker: FetchBroker, **options: Any):
        self.broker = broker
        self.pump = Pump({ApiKey.FETCH: 12})
        self.engine = FetchEngine(inflated, **({"max_wait_ms": 0} | options))
        self.pump.add(self.engine)
        self.pump.on_wanted = lambda node_id: self.wanted.append(node_id)
        self.wanted: list[int] = []
        self.news: list[tuple[str, int, int, int, int, int]] = []
        self.engine.on_told = lambda: self.news.extend(self.engine.take_news())

    def start(self, *keys: Key, offset: int = 0) -> None:
        for topic, partition in keys:
            self.engine.assign(topic, partition, offset)
            self.engine.lead(topic, partition, NODE)

    def turn(self, serve: bool = True) -> None:
        self.pump.run(0)
        if NODE in self.wanted:
            self.wanted.remove(NODE)
            self.broker.connect(self.pump)
            self.pump.run(0)
        if serve and self.broker.serve():
            self.pump.run(0)

    def read(self, count: int, turns: int = 200) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) of so many records."""
        found: list[tuple[str, int, int]] = []
        for _ in range(turns):
            if len(found) >= count:
                break
            self.turn()
            found += [(r.topic, r.partition, r.offset) for r in self.engine.poll(0, count - len(found))]
        return found

    def close(self) -> None:
        self.pump.close("the test is over")
        self.broker.close()


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.close()


class AnyOrder(RuleBasedStateMachine):
    """Assign, seek, pause, poll and answers of all kinds in any order."""

    keys = st.sampled_from([("a", 0), ("a", 1), ("b", 0)])

    @initialize(
        found=st.lists(logs(max_batches=6, magics=(0, 1, 2, 2)), min_size=3, max_size=3),
        version=st.integers(0, 12),
        sessions=st.booleans(),
        committed=st.booleans(),
        max_bytes=st.sampled_from([1, 150, 400, 1 << 20]),
        queued=st.sampled_from([1, 300, 1 << 20]),
    )
    def begin(
        self, found: list[Log], version: int, sessions: bool, committed: bool, max_bytes: int, queued: int
    ) -> None:
        self.logs = dict(zip([("a", 0), ("a", 1), ("b", 0)], found, strict=True))
        self.committed = committed = committed and version >= 4
        self.broker = FetchBroker(self.logs, version, sessions=sessions, max_bytes=max_bytes)
        self.queued = queued
        self.open()
        self.positions: dict[Key, int] = {}
        self.paused: set[Key] = set()
        for key in self.logs:
            self.assign(key, 0)

    def open(self) -> None:
        self.bench = Bench(self.broker, read_committed=self.committed, queued_max_bytes=self.queued)
        self.engine = self.bench.engine

    @rule(key=keys, offset=st.integers(0, 30))
    def assign(self, key: Key, offset: int) -> None:
        if key not in self.positions:
            self.positions[key] = min(offset, self.logs[key].end_offset)
            self.engine.assign(*key, self.positions[key])
            self.engine.lead(*key, NODE)

    @rule(key=keys, offset=st.integers(0, 30))
    def seek(self, key: Key, offset: int) -> None:
        if key in self.positions:
            self.positions[key] = min(offset, self.logs[key].end_offset)
            self.engine.seek(*key, self.positions[key])
            self.engine.lead(*key, NODE)

    @rule(key=keys)
    def remove(self, key: Key) -> None:
        if self.positions.pop(key, None) is not None:
            self.engine.remove(*key)
            self.paused.discard(key)

    @rule(key=keys, offset=st.integers(0, 30))
    def seek_under_way(self, key: Key, offset: int) -> None:
        self.bench.turn(serve=False)
        self.seek(key, offset)
        self.bench.turn()

    @rule(key=keys)
    def pause(self, key: Key) -> None:
        if key in self.positions:
            self.engine.pause(*key)
            self.paused.add(key)

    @rule(key=keys)
    def resume(self, key: Key) -> None:
        if key in self.positions:
            self.engine.resume(*key)
            self.paused.discard(key)

    @rule(most=st.integers(1, 8))
    def poll(self, most: int) -> None:
        self.take(self.engine.poll(0, most), most)

    @rule(most=st.integers(1, 8))
    def poll_while_ringing(self, most: int) -> None:
        RINGING.append(True)
        try:
            records = self.engine.poll(0, most)
        except KeyboardInterrupt:
            return
        finally:
            RINGING.clear()
        self.take(records, most)

    def take(self, records: Records, most: int) -> None:
        assert len(records) <= most
        found: dict[Key, list[Record]] = {key: [] for key in self.positions}
        for record in records:
            assert (record.topic, record.partition) not in self.paused
            found[record.topic, record.partition].append(plain(record))
        for key, rows in found.items():
            position = self.engine.position(*key)
            assert position >= self.positions[key]
            assert rows == self.logs[key].visible(self.positions[key], committed=self.committed, end=position)
            self.positions[key] = position

    @rule(most=st.integers(1, 30), count=st.integers(1, 8))
    def loop(self, most: int, count: int) -> None:
        """Record by record; it is left before all that was polled has come out, or goes on behind it."""
        for _ in range(count):
            record = next(self.engine.reading() or iter(()), None)
            if record is None:
                self.engine.poll(0, most, to_read=True)
                continue
            key = record.topic, record.partition
            assert key not in self.paused
            assert [plain(record)] == self.unread(key)[:1]
            self.positions[key] = record.offset + 1
            self.nothing_is_behind_a_position_but_what_was_given()

    def unread(self, key: Key, end: int = 2**63 - 1) -> list[Record]:
        return self.logs[key].visible(self.positions[key], committed=self.committed, end=end)

    @invariant()
    def nothing_is_behind_a_position_but_what_was_given(self) -> None:
        for key, at_least in getattr(self, "positions", {}).items():
            position = self.engine.position(*key)
            assert position >= at_least
            assert self.unread(key, position) == []

    @rule()
    def begin_anew(self) -> None:
        """Another consumer, from where this one stands."""
        self.bench.close()
        positions = {key: self.engine.position(*key) for key in self.positions}
        self.open()
        for key, position in positions.items():
            self.engine.assign(*key, position)
            self.engine.lead(*key, NODE)
        self.paused.clear()

    @rule(times=st.integers(1, 3))
    def serve(self, times: int) -> None:
        for _ in range(times):
            self.bench.turn()

    @rule()
    def ask_without_an_answer(self) -> None:
        self.bench.turn(serve=False)

    @rule(key=keys, code=st.sampled_from([6, 3, 74, 1]), fault=st.sampled_from("pslc"), size=st.integers(0, 300))
    def fail(self, key: Key, code: int, fault: str, size: int) -> None:
        if fault == "p":
            self.bench.broker.errors[key] = code
        elif fault == "s":
            self.bench.broker.session_error = (70, 71, 106)[code % 3]
        elif fault == "c":
            self.bench.broker.cut = size
        else:
            self.bench.broker.close()

    @invariant()
    def hear_the_news(self) -> None:
        if not hasattr(self, "bench"):
            return
        for topic, partition, _code, offset, _leader, _epoch in self.bench.news:
            assert offset >= self.positions[topic, partition]
            self.engine.lead(topic, partition, NODE)
        self.bench.news.clear()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for key in list(self.positions):
            self.resume(key)
        for _ in range(600):
            self.bench.turn()
            self.hear_the_news()
            self.poll(7)
            if all(position >= self.logs[key].end_offset for key, position in self.positions.items()):
                break
        assert self.positions == {key: max(self.logs[key].end_offset, at) for key, at in self.positions.items()}
        self.bench.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def bench_of(benches: list[Bench], logs: dict[Key, Log], version: int = 12, **options: Any) -> Bench:
    benches.append(Bench(FetchBroker(logs, version), **options))
    return benches[-1]


A, B = ("a", 0), ("b", 1)


def test_what_was_asked_for_before_a_seek_is_dropped(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(20)})
    bench.start(A)
    bench.turn(serve=False)
    bench.turn(serve=False)
    bench.engine.seek("a", 0, 15)
    assert bench.read(5) == [("a", 0, offset) for offset in range(15, 20)]
    assert bench.engine.dropped == 1
    assert bench.engine.position("a", 0) == 20


def test_a_position_behind_a_marker_comes_again_with_what_was_not_read(benches: list[Bench]) -> None:
    records = LogBatch(0, 0, (Record(0, 0, None, b"v"),), producer_id=7)
    bench = bench_of(benches, {A: Log([records, LogBatch(1, 1, producer_id=7, marker=ControlType.COMMIT)])})
    bench.broker.max_bytes = 1  # a batch for each answer
    bench.start(A)
    for _ in range(3):
        bench.turn()
    assert len(bench.engine.poll(0, 100, to_read=True)) == 1
    assert bench.engine.position("a", 0) == 0
    assert [record.offset for record in bench.engine.poll(0, 100)] == [0]
    assert bench.engine.position("a", 0) == 2


def test_a_session_is_told_only_what_has_changed(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(3), B: simple_log(3)})
    bench.start(A, B)
    assert len(bench.read(6)) == 6
    bench.turn()
    bench.turn()
    full, *_, last = bench.broker.requests
    assert (full.session_epoch, {topic.topic for topic in full.topics}) == (0, {"a", "b"})
    assert last.session_epoch == len(bench.broker.requests) - 1
    assert (last.session_id, last.topics, last.forgotten_topics_data) == (1, [], [])
    bench.engine.pause("a", 0)
    bench.turn()
    bench.turn()
    assert [topic.topic for topic in bench.broker.requests[-1].forgotten_topics_data] == ["a"]
    bench.engine.resume("a", 0)
    bench.turn()
    bench.turn()
    assert [topic.topic for topic in bench.broker.requests[-1].topics] == ["a"]


def test_a_partition_that_is_removed_and_assigned_again_is_not_forgotten(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(3), B: simple_log(3)})
    bench.start(A, B)
    assert len(bench.read(6)) == 6
    bench.engine.remove("a", 0)
    bench.start(A)
    assert bench.read(3) == [("a", 0, offset) for offset in range(3)]
    assert bench.engine.assigned() == [B, A]


def test_what_a_poll_has_left_over_goes_with_its_assignment(benches: list[Bench]) -> None:
    bench = bench_of(
        benches, {A: Log([LogBatch(0, 9, tuple(Record(at, 5, None, b"v") for at in range(10)))])}, version=4
    )
    bench.start(A)
    assert bench.read(2) == [("a", 0, 0), ("a", 0, 1)]
    bench.engine.remove("a", 0)
    bench.turn()
    bench.turn()
    bench.start(A, offset=7)
    assert bench.read(3) == [("a", 0, 7), ("a", 0, 8), ("a", 0, 9)]


def test_a_lost_connection_begins_a_new_session(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(3)})
    bench.start(A)
    assert len(bench.read(3)) == 3
    bench.broker.close()
    for _ in range(6):
        bench.turn()
    assert [request.session_epoch for request in bench.broker.requests].count(0) == 2


def test_no_more_is_fetched_than_may_wait(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(50, size=1000)}, queued_max_bytes=5000)
    bench.broker.max_bytes = 2000
    bench.start(A)
    for _ in range(20):
        bench.turn()
    assert 5000 <= bench.engine.buffered_bytes < 7000
    asked = len(bench.broker.requests)
    assert bench.read(50) == [("a", 0, offset) for offset in range(50)]
    assert len(bench.broker.requests) > asked
    assert bench.engine.buffered_bytes == 0


def test_a_partition_with_an_error_waits_for_a_decision_and_others_go_on(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(3), B: simple_log(3)})
    bench.broker.errors[A] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.start(A, B)
    assert bench.read(6, turns=20) == [("b", 1, offset) for offset in range(3)]
    assert bench.news == [("a", 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, -1, -1)]
    bench.engine.lead("a", 0, NODE, 4)
    assert bench.read(3) == [("a", 0, offset) for offset in range(3)]
    assert bench.broker.requests[-1].topics == [] or bench.broker.requests[-1].session_epoch > 0


def test_an_offset_out_of_range_is_told_and_a_seek_mends_it(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(3)})
    bench.start(A, offset=99)
    assert bench.read(1, turns=10) == []
    assert bench.news == [("a", 0, ErrorCode.OFFSET_OUT_OF_RANGE, 99, -1, -1)]
    bench.engine.seek("a", 0, 1)
    assert bench.read(2) == [("a", 0, 1), ("a", 0, 2)]
    assert bench.engine.watermarks("a", 0) == (-1, 3, 3)


class Damaged(LogBatch):
    def encode(self) -> bytes:
        batch = bytearray(super().encode())
        batch[-2] ^= 1
        return bytes(batch)


def test_a_damaged_batch_is_raised_behind_what_is_good_until_somebody_seeks(benches: list[Bench]) -> None:
    log = simple_log(5)
    log.batches[2] = Damaged(2, 2, log.batches[2].records)
    bench = bench_of(benches, {A: log, B: simple_log(2)})
    bench.start(A)
    assert bench.read(2) == [("a", 0, 0), ("a", 0, 1)]
    bench.start(B)
    for _ in range(3):
        with pytest.raises(UnreadableRecords, match="a-0: the records at offset 2"):
            bench.read(9)
        assert bench.engine.position("a", 0) == 2
    bench.engine.seek("a", 0, 3)
    found = bench.read(4, turns=50)
    assert [row for row in found if row[0] == "a"] == [("a", 0, 3), ("a", 0, 4)]


def looped(bench: Bench, count: int) -> list[int]:
    """The offsets of so many records, by iteration."""
    found: list[int] = []
    while len(found) < count:
        bench.turn()
        bench.engine.poll(0, 100, to_read=True)
        found += [record.offset for record in itertools.islice(bench.engine.reading() or (), count - len(found))]
    return found


def test_a_loop_that_is_left_before_damage_gives_all_that_is_good(benches: list[Bench]) -> None:
    log = simple_log(5)
    log.batches[3] = Damaged(3, 3, log.batches[3].records)
    bench = bench_of(benches, {A: log})
    bench.start(A)
    assert looped(bench, 1) == [0]
    assert bench.engine.position("a", 0) == 1
    assert [record.offset for record in bench.engine.poll(0, 1)] == [1]
    assert bench.engine.position("a", 0) == 2
    assert looped(bench, 1) == [2]
    for _ in range(2):
        with pytest.raises(UnreadableRecords, match="a-0: the records at offset 3"):
            looped(bench, 1)
        assert bench.engine.position("a", 0) == 3
    bench.engine.seek("a", 0, 4)
    assert looped(bench, 1) == [4]


def test_a_loop_stays_at_what_cannot_be_read_until_somebody_seeks(benches: list[Bench]) -> None:
    def refusing(codec: int, data: memoryview, magic: int) -> bytes:
        if failing:
            raise failing[0]
        return inflated(codec, data, magic)

    failing: list[BaseException] = []
    log = simple_log(6)
    log.batches[2] = LogBatch(2, 3, (Record(2, 5, None, b"a"), Record(3, 5, None, b"b")), Codec.GZIP)
    del log.batches[3]
    bench = bench_of(benches, {A: log})
    bench.engine = FetchEngine(refusing, max_wait_ms=0)
    bench.pump.add(bench.engine)
    bench.start(A)
    assert looped(bench, 2) == [0, 1]
    failing.append(BadInput("damaged"))
    reading = bench.engine.reading()
    assert reading is not None
    for _ in range(2):
        with pytest.raises(UnreadableRecords, match="a-0: the records at offset 2"):
            next(reading)
        assert bench.engine.position("a", 0) == 2
    failing[0] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        next(reading)
    failing.clear()
    assert [record.offset for record in reading] == [2, 3, 4, 5]
    bench.engine.seek("a", 0, 2)
    assert looped(bench, 1) == [2]
    failing.append(BadInput("damaged"))
    assert [record.offset for record in bench.engine.reading() or ()] == [3, 4, 5]  # it was inflated before
    bench.engine.seek("a", 0, 4)
    assert looped(bench, 2) == [4, 5]


def test_positions_in_a_loop_have_the_epoch_of_the_record_before(benches: list[Bench]) -> None:
    class OfEpoch(LogBatch):
        def encode(self) -> bytes:
            # What no checksum covers.
            return changed(super().encode(), 12, (self.base_offset + 7).to_bytes(4))

    bench = bench_of(benches, {A: Log([OfEpoch(at, at, (Record(at, 5, None, b"v"),)) for at in range(4)])})
    bench.start(A)
    assert bench.engine.epochs("a", 0)[:2] == (0, -1)
    for at in range(3):
        assert looped(bench, 1) == [at]
        assert bench.engine.epochs("a", 0)[:2] == (at + 1, at + 7)
        if at == 1:
            bench.engine.stop_reading()
            assert bench.engine.epochs("a", 0)[:2] == (2, 8)
    bench.engine.seek("a", 0, 0, 3)
    bench.read(1)
    assert bench.engine.epochs("a", 0)[:2] == (1, 7)


@pytest.mark.parametrize("version", [2, 4, 12])
def test_responses_that_lie_cost_their_connection_or_are_an_error_of_their_partition(
    benches: list[Bench], version: int
) -> None:
    """Whatever a response says: records that are handed out are whole. Their offsets no check sum covers."""
    values = {b"%d" % offset + bytes(10) for offset in range(3)}
    seen = {"closed": 0, "unreadable": 0, "told": 0}

    def tried(mangle: Callable[[bytes], bytes]) -> None:
        bench = Bench(FetchBroker({A: simple_log(3), B: simple_log(3)}, version))
        bench.broker.mangle = mangle
        bench.start(A, B)
        try:
            for _ in range(8):
                bench.turn()
                for record in bench.engine.poll(0, 100):
                    assert (record.topic, record.partition) in (A, B)
                    assert record.value in values
            seen["told"] += len(bench.news) > 0
        except UnreadableRecords:
            seen["unreadable"] += 1
        finally:
            seen["closed"] += len([r for r in bench.broker.requests if version < 7 or r.session_epoch == 0]) > 1
            assert bench.engine.buffered_bytes < 1000
            bench.close()

    bodies: list[bytes] = []

    def note(body: bytes) -> bytes:
        bodies.append(body)
        return body

    tried(note)
    for _, body in parser_cases.mangled(bodies[0]):
        tried(lambda _, body=body: body)  # type: ignore[misc]
    assert min(seen.values()) > 10, seen


FOLLOWER = 9


def test_a_preferred_replica_is_read_from_while_it_is_reached(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(6)}, rack="near", max_partition_bytes=1)
    follower = FetchBroker({A: simple_log(3)}, 12)
    bench.broker.preferred = FOLLOWER
    bench.start(A)
    for _ in range(4):
        bench.turn()
    assert bench.broker.requests[0].rack_id == "near"
    assert bench.wanted == [FOLLOWER]
    follower.connect(bench.pump, FOLLOWER)
    found: list[int] = []
    for _ in range(20):
        bench.pump.run(0)
        follower.serve()
        found += [record.offset for record in bench.engine.poll(0, 10)]
    assert found == [0, 1, 2]
    asked = len(bench.broker.requests)
    bench.broker.preferred = -1
    follower.close()
    assert bench.read(3) == [("a", 0, offset) for offset in range(3, 6)]
    assert len(bench.broker.requests) > asked


def test_a_preferred_replica_that_is_not_reached_is_left(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(3)})
    bench.broker.preferred = FOLLOWER
    bench.start(A)
    bench.turn()
    bench.turn()
    bench.broker.preferred = -1
    started = time.monotonic()
    while bench.read(3, turns=1) == []:
        assert time.monotonic() - started < 20
        bench.pump.run(0.05)
    assert time.monotonic() - started > 1.5


def test_an_error_of_the_preferred_replica_is_not_told(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(3)})
    follower = FetchBroker({A: simple_log(3)}, 12)
    bench.broker.preferred = FOLLOWER
    bench.start(A)
    bench.turn()
    bench.turn()
    bench.broker.preferred = -1
    follower.errors[A] = ErrorCode.OFFSET_OUT_OF_RANGE
    follower.connect(bench.pump, FOLLOWER)
    for _ in range(5):
        bench.pump.run(0)
        follower.serve()
    assert bench.read(3) == [("a", 0, offset) for offset in range(3)]
    assert bench.news == []


def test_a_broker_without_fetch_is_told(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(3)}, version=-1)
    bench.start(A)
    bench.turn()
    bench.turn()
    assert bench.news == [("a", 0, ErrorCode.UNSUPPORTED_VERSION, 0, -1, -1)]
    assert bench.broker.requests == []


def test_what_is_not_assigned_has_no_position(benches: list[Bench]) -> None:
    bench = bench_of(benches, {})
    for call in (bench.engine.position, bench.engine.pause, bench.engine.remove):
        with pytest.raises(KeyError, match="a-0 is not assigned"):
            call("a", 0)
    bench.engine.assign("a", 0)
    with pytest.raises(ValueError, match="assigned already"):
        bench.engine.assign("a", 0)
    assert bench.engine.position("a", 0) == -1


def test_poll_waits_for_records_that_the_pump_brings_meanwhile(benches: list[Bench]) -> None:
    bench = bench_of(benches, {A: simple_log(3)})
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            bench.turn()

    bench.start(A)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert [record.offset for record in bench.engine.poll(60_000, 3)] == [0, 1, 2]
    finally:
        done.set()
        thread.join()


def test_interrupt_ends_a_poll_and_an_error_comes_out_of_it(benches: list[Bench]) -> None:
    engine = bench_of(benches, {}).engine
    threading.Timer(0.05, engine.interrupt).start()
    assert len(engine.poll(60_000, 5)) == 0
    threading.Timer(0.05, engine.raise_in_poll, [RuntimeError("heard")]).start()
    with pytest.raises(RuntimeError, match="heard"):
        engine.poll(60_000, 5)
    assert len(engine.poll(0, 5)) == 0


def test_a_signal_while_a_poll_inflates_costs_no_record(benches: list[Bench]) -> None:
    records = tuple(Record(offset, 5, None, b"%d" % offset) for offset in range(5))
    bench = bench_of(benches, {key: Log([LogBatch(0, 4, records, Codec.GZIP)]) for key in (A, B)})
    bench.start(A, B)
    for _ in range(10):
        bench.turn()
    RINGING.append(True)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.engine.poll(0, 7)  # all of the one, and of the other a part
    finally:
        RINGING.clear()
    assert [bench.engine.position(*key) for key in (A, B)] == [0, 0]
    assert sorted(bench.read(10)) == [(*key, offset) for key in (A, B) for offset in range(5)]


def test_a_signal_ends_a_poll(benches: list[Bench]) -> None:
    def rings(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, rings)
    started = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            bench_of(benches, {}).engine.poll(60_000, 5)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 30
