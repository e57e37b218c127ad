"""A FetchEngine that is to go so far: it gives all there is before, asks for nothing behind, and knows the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.client.consumer.fetch import FetchEngine
from kbroker._core.client.pump import Pump
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import inflate
from kbroker.protocol.records import Record
from tests.kit.brokers.fetch import NODE, FetchBroker, Key
from tests.kit.models.consumer import Log, LogBatch, logs

A: Key = ("a", 0)
TURNS = 60


@dataclass
class Cleaned(Log):
    """One that compaction has taken whole batches from, the last ones too: it ends where it did."""

    whole_end_offset: int = 0
    gone: set[int] = field(default_factory=set)

    @property
    def end_offset(self) -> int:
        return self.whole_end_offset


def cleaned(log: Log, gone: set[int]) -> Cleaned:
    kept = [batch for number, batch in enumerate(log.batches) if number not in gone or batch.marker is not None]
    return Cleaned(kept, log.aborted, log.end_offset, gone)


class Reader:
    def __init__(self, log: Log, version: int = 12, *, committed: bool = False, max_bytes: int = 1 << 20):
        self.broker = FetchBroker({A: log}, version, max_bytes=max_bytes)
        self.pump = Pump({ApiKey.FETCH: 12})
        self.engine = FetchEngine(
            lambda codec, data, magic: inflate(codec, data, 1 << 20, magic=magic),
            max_wait_ms=0,
            read_committed=committed,
        )
        self.pump.add(self.engine)
        self.broker.connect(self.pump)

    def read(self, start: int, stop: int) -> list[int]:
        """The offsets of all that it gives until it says that it is there."""
        self.engine.assign(*A, start)
        self.engine.stop_at(*A, stop)
        self.engine.lead(*A, NODE)
        found: list[int] = []
        for _ in range(TURNS):
            found += [record.offset for record in self.engine.poll(0, 7)]
            if self.engine.has_reached_stops:
                return found
            self.pump.run(0)
            self.broker.serve()
            self.pump.run(0)
        raise AssertionError(f"it never says that it has come to {stop}; {found}")

    def close(self) -> None:
        self.pump.close("the test is over")
        self.broker.close()


@given(
    log=logs(magics=(0, 1, 2, 2)),
    gone=st.sets(st.integers(0, 8)),
    places=st.tuples(st.integers(0, 40), st.integers(0, 40)),
    version=st.integers(0, 12),
    committed=st.booleans(),
    max_bytes=st.sampled_from([1, 200, 1 << 20]),
)
def test_all_up_to_the_stop_whatever_is_missing(
    log: Log, gone: set[int], places: tuple[int, int], version: int, committed: bool, max_bytes: int
) -> None:
    left = cleaned(log, gone)
    start, stop = sorted(min(place, left.end_offset) for place in places)
    committed = committed and version >= 4
    reader = Reader(left, version, committed=committed, max_bytes=max_bytes)
    try:
        found = reader.read(start, stop)
        expected = [record.offset for record in left.visible(start, committed=committed)]
        assert found == expected[: len(found)]
        assert found[: len([offset for offset in expected if offset < stop])] == [
            offset for offset in expected if offset < stop
        ]
        topics = [topic for request in reader.broker.requests for topic in request.topics]
        asked = [partition.fetch_offset for topic in topics for partition in topic.partitions]
        assert all(offset < stop for offset in asked)
    finally:
        reader.close()


def offsets(count: int) -> Log:
    return Log([LogBatch(at, at, (Record(at, 5, None, b"v"),)) for at in range(count)])


def test_what_a_broker_cannot_give_yet_is_waited_for() -> None:
    log = offsets(3)
    reader = Reader(log)
    try:
        reader.engine.assign(*A, 0)
        reader.engine.stop_at(*A, 5)
        reader.engine.lead(*A, NODE)
        for _ in range(10):
            reader.pump.run(0)
            reader.broker.serve()
            assert [record.offset for record in reader.engine.poll(0, 10)] in ([], [0, 1, 2])
        assert not reader.engine.has_reached_stops
        log.batches += offsets(6).batches[3:]
        for _ in range(4):
            reader.pump.run(0)
            reader.broker.serve()
            reader.pump.run(0)
        assert [record.offset for record in reader.engine.poll(0, 10)][:2] == [3, 4]
        assert reader.engine.has_reached_stops
    finally:
        reader.close()


def test_it_goes_on_when_the_stop_is_moved_and_a_poll_no_longer_waits_at_it() -> None:
    reader = Reader(offsets(10))
    try:
        assert reader.read(0, 4)[:4] == [0, 1, 2, 3]
        assert len(reader.engine.poll(60_000, 10)) == 0
        reader.engine.seek(*A, 8)
        reader.engine.stop_at(*A, 10)
        assert not reader.engine.has_reached_stops
        reader.engine.remove(*A)
        assert not reader.engine.has_reached_stops
        assert reader.read(8, 10) == [8, 9]
    finally:
        reader.close()
