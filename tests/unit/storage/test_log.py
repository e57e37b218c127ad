"""One partition's log: append, read, roll, look up, delete, reopen."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker._core.wire import record_batch
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol.records import encode_batch
from kbroker.storage.index_entries import TIME_INDEX_ENTRY
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import LogHome, batch_of, read_all

SMALL = LogOptions(segment_bytes=2000, index_interval_bytes=200)


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path, options=SMALL)


def fill(log: Log, count: int, *, start: int = 0, timestamp: int = 1_700_000_000_000) -> list[bytes]:
    values = [f"value {start + at}".encode() for at in range(count)]
    for at, value in enumerate(values):
        log.append(batch_of([value], timestamp + (start + at) * 10))
    return values


def test_records_come_back_in_order_with_their_offsets(home: LogHome) -> None:
    log = home.create()
    values = fill(log, 100)
    records = read_all(log)
    assert [record.value for record in records] == values
    assert [record.offset for record in records] == list(range(100))
    assert len(log.state.segments()) > 3


def test_a_read_from_any_offset_begins_with_the_batch_that_holds_it(home: LogHome) -> None:
    log = home.create()
    log.append(batch_of([b"a", b"b", b"c"]))
    log.append(batch_of([b"d", b"e"]))
    for offset in range(5):
        assert [record.value for record in read_all(log, offset)] == [b"a", b"b", b"c", b"d", b"e"][offset:]
    assert log.read(5, 1000) == b""
    with pytest.raises(ProtocolError) as refused:
        log.read(6, 1000)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_first_batch_is_whole_however_small_the_limit(home: LogHome) -> None:
    log = home.create()
    batch = batch_of([b"x" * 500])
    log.append(batch)
    log.append(batch)
    assert len(log.read(0, 1)) == len(batch)
    assert len(log.read(0, len(batch) + 10)) == len(batch) + 10
    assert log.state.locate(0, 1, False) == (0, -1, 0, 0)


def test_a_batch_larger_than_a_segment_or_the_limit_is_refused(home: LogHome) -> None:
    log = home.create()
    with pytest.raises(ProtocolError) as refused:
        log.append(batch_of([b"x" * 3000]))
    assert refused.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    log.update_options(SMALL._replace(max_message_bytes=100))
    with pytest.raises(ProtocolError) as refused:
        log.append(batch_of([b"x" * 200]))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_reopened_log_goes_on_where_it_ended(home: LogHome, clean: bool) -> None:
    log = home.create()
    values = fill(log, 77)
    if clean:
        log.close()
    home.recovery_point = log.recovery_point
    log = home.reopen(clean=clean)
    values += fill(log, 5, start=77)
    assert [record.value for record in read_all(log)] == values
    assert log.log_end_offset == 82


def test_offsets_by_time_are_of_the_first_record_that_late(home: LogHome) -> None:
    log = home.create()
    fill(log, 60, timestamp=1000)
    for at in range(60):
        assert log.offset_for_timestamp(1000 + at * 10)[:2] == (1000 + at * 10, at)
        assert log.offset_for_timestamp(991 + at * 10)[:2] == (1000 + at * 10, at)
    assert log.offset_for_timestamp(1000 + 59 * 10 + 1) is None
    assert log.offset_of_max_timestamp()[:2] == (1590, 59)


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("entries", ["last offsets", "offsets of the records"])
def test_lookups_by_time_are_exact_whichever_offset_of_the_batch_an_index_has(
    home: LogHome, entries: str, codec: int
) -> None:
    """Our entries once had the offset of the first record with the largest time; now they have the batch's last one."""
    log = home.create()
    times = [1000 + at * 6 + step for at in range(40) for step in (3, 9, 0, 9, 5)]
    for at in range(0, len(times), 5):
        log.append(encode_batch([(time_ms, None, b"x" * 60) for time_ms in times[at : at + 5]], codec=codec))
    log.close()
    for path in home.log_path.glob("*.timeindex"):
        base, data = int(path.stem), path.read_bytes()
        read = [*TIME_INDEX_ENTRY.iter_unpack(data)]
        assert read and all((base + relative) % 5 == 4 for _, relative in read)
        if entries == "offsets of the records":
            first = [(time_ms, times.index(time_ms, base) - base) for time_ms, _ in read]
            path.write_bytes(b"".join(TIME_INDEX_ENTRY.pack(*each) for each in first))
    log = home.reopen(clean=True)
    assert len(log.state.segments()) > 2
    for wanted in range(990, max(times) + 2):
        first = next(((time_ms, offset) for offset, time_ms in enumerate(times) if time_ms >= wanted), None)
        found = log.offset_for_timestamp(wanted)
        assert (found and found[:2]) == first
    newest = log.offset_of_max_timestamp()
    assert newest is not None
    assert newest[:2] == (max(times), times.index(max(times)))


def test_deleted_records_are_gone_and_their_segments_too(home: LogHome) -> None:
    log = home.create()
    fill(log, 60)
    assert log.delete_records_before(33) == 33
    assert home.start_offset == 33
    with pytest.raises(ProtocolError):
        log.read(32, 100)
    assert read_all(log)[0].offset == 33
    before = len(log.state.segments())
    assert log.delete_old_segments() > 0
    assert len(log.state.segments()) < before
    assert read_all(log)[0].offset == 33
    home.unlink_removed()
    assert read_all(home.reopen(clean=False))[0].offset == 33


def test_truncation_drops_what_is_above(home: LogHome) -> None:
    log = home.create()
    values = fill(log, 60)
    log.truncate_to(41)
    assert [record.value for record in read_all(log)] == values[:41]
    more = fill(log, 3, start=41)
    assert [record.value for record in read_all(log)] == values[:41] + more


def code_of(log: Log, batch: bytes) -> ErrorCode:
    with pytest.raises(ProtocolError) as refused:
        log.append(batch)
    return refused.value.code


def bases_of(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.state.segments()]


def test_a_segment_is_closed_when_its_records_span_the_roll_time(tmp_path: Path) -> None:
    log = LogHome(tmp_path, options=LogOptions(segment_ms=1000)).create()
    for timestamp in (5000, 6000, 6001, 7001, 7002):
        log.append(batch_of([b"x"], timestamp))
    assert bases_of(log) == [0, 2, 4]


def test_segments_of_records_without_timestamps_are_closed_by_age_whatever_the_clock_is_set_to(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(segment_ms=1))
    log = home.create()
    log.append(batch_of([b"x"], -1))
    home.clock.set_by_ms = -3_600_000
    while len(bases_of(log)) == 1:  # for a millisecond or two
        log.append(batch_of([b"x"], -1))


def test_jitter_shortens_the_roll_time_of_each_segment(tmp_path: Path) -> None:
    log = LogHome(tmp_path, options=LogOptions(segment_ms=1000, segment_jitter_ms=900), seed=1).create()
    for at in range(40):
        log.append(batch_of([b"x"], 5000 + at * 100))
    spans = {after - before for before, after in zip(bases_of(log), bases_of(log)[1:], strict=False)}
    assert len(spans) > 1
    assert max(spans) <= 11


def test_a_preallocated_segment_has_its_blocks_until_it_takes_no_more(tmp_path: Path) -> None:
    size = 1 << 20
    log = LogHome(tmp_path, options=SMALL._replace(segment_bytes=size, preallocate=True)).create()

    def reserved() -> list[int]:
        return [path.stat().st_blocks * 512 for path in sorted(Path(log.path).glob("*.log"))]

    log.append(batch_of([b"a"]))
    assert reserved()[0] >= size > (Path(log.path) / "00000000000000000000.log").stat().st_size
    log.roll()
    log.append(batch_of([b"b"]))
    closed, active = reserved()
    assert closed < size <= active
    log.close()
    assert max(reserved()) < size
    assert [record.value for record in read_all(log)] == [b"a", b"b"]


@pytest.mark.parametrize("index_max_bytes", [80, 96])
def test_a_segment_is_closed_when_an_index_is_full(tmp_path: Path, index_max_bytes: int) -> None:
    options = LogOptions(index_interval_bytes=0, index_max_bytes=index_max_bytes)
    log = LogHome(tmp_path, options=options).create()
    for at in range(50):
        log.append(batch_of([b"x"], 1000 + at))
    log.close()
    for path in (tmp_path / "orders-0").iterdir():
        if path.suffix in (".index", ".timeindex"):
            assert path.stat().st_size <= index_max_bytes
    assert len(list((tmp_path / "orders-0").glob("*.log"))) > 5


def test_log_append_time_is_the_brokers_and_is_in_the_batch(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(log_append_time=True))
    log = home.create()
    result = log.append(batch_of([b"a", b"b"], 5))
    assert result.log_append_time == home.clock.now_ms
    assert [record.timestamp for record in read_all(log)] == [home.clock.now_ms] * 2
    assert log.offset_for_timestamp(home.clock.now_ms)[:2] == (home.clock.now_ms, 0)
    assert log.offset_of_max_timestamp()[:2] == (home.clock.now_ms, 0)


def test_timestamps_outside_of_the_topics_bounds_are_refused(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(timestamp_before_max_ms=1000, timestamp_after_max_ms=500))
    log = home.create()
    now = home.clock.now_ms
    for timestamp in (now - 1000, now, now + 500):
        log.append(batch_of([b"x"], timestamp))
    for timestamp in (now - 1001, now + 501):
        assert code_of(log, batch_of([b"x"], timestamp)) is ErrorCode.INVALID_TIMESTAMP
    assert log.log_end_offset == 3


def test_a_largest_timestamp_that_lies_is_corrected(tmp_path: Path) -> None:
    log = LogHome(tmp_path).create()
    batch = bytearray(batch_of([b"x", b"y"], 1000))
    record_batch.stamp_timestamp(batch, False, 999_999)
    log.append(bytes(batch))
    assert record_batch.verify(log.read(0, 1000)).max_timestamp == 1001
    assert log.offset_of_max_timestamp()[:2] == (1001, 1)


def test_a_transaction_that_nobody_was_asked_about_is_refused(tmp_path: Path) -> None:
    log = LogHome(tmp_path).create()
    batch = batch_of([b"x"], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert code_of(log, batch) is ErrorCode.INVALID_TXN_STATE


def test_a_compacted_topic_takes_no_record_without_a_key(tmp_path: Path) -> None:
    log = LogHome(tmp_path, options=LogOptions(compacted=True)).create()
    assert code_of(log, batch_of([b"x"])) is ErrorCode.INVALID_RECORD


def test_a_batch_whose_crc_is_wrong_is_refused(tmp_path: Path) -> None:
    log = LogHome(tmp_path).create()
    batch = bytearray(batch_of([b"x"]))
    batch[-1] ^= 1
    assert code_of(log, bytes(batch)) is ErrorCode.CORRUPT_MESSAGE
    assert code_of(log, bytes(batch[:30])) is ErrorCode.INVALID_RECORD


def test_only_flushed_records_are_seen_where_that_is_asked_for(tmp_path: Path) -> None:
    log = LogHome(tmp_path, options=LogOptions(flushed_visibility=True)).create()
    for at in range(3):
        log.append(batch_of([b"%d" % at]))
    assert log.read(0, 1000) == b""
    assert log.visible_end() == 0
    log.flush()
    log.append(batch_of([b"3"]))
    assert log.visible_end() == log.visible_end(committed=True) == 3
    assert [batch.base_offset for batch in record_batch.batches(log.read(0, 1000))] == [0, 1, 2]
    assert log.read(3, 1000) == b""


def test_a_log_that_is_opened_asks_for_a_flush_of_what_is_there_and_of_no_more(tmp_path: Path) -> None:
    """With log.flush.visibility=flushed."""
    home = LogHome(tmp_path, options=LogOptions(flushed_visibility=True))
    log = home.create()
    log.append(batch_of([b"x"]))
    home.flush_requested()
    assert log.visible_end() == 0
    log = home.reopen(clean=False)
    home.flush_requested()
    assert log.visible_end() == 1


def test_a_log_knows_for_how_long_it_has_held_unflushed_records_whatever_the_clock_is_set_to(home: LogHome) -> None:
    log = home.create()
    assert log.state.unflushed_ms == -1
    log.append(batch_of([b"x"]))
    for set_by_ms in (-3_600_000, 3_600_000):
        home.clock.set_by_ms = set_by_ms
        log.append(batch_of([b"x"]))
        assert 0 <= log.state.unflushed_ms < 3_600_000
    log.flush()
    assert log.state.unflushed_ms == -1


def test_deletion_beyond_the_end_is_refused(home: LogHome) -> None:
    log = home.create()
    fill(log, 10)
    with pytest.raises(ProtocolError) as refused:
        log.delete_records_before(11)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.delete_records_before(-1) == 10
    assert log.delete_records_before(3) == 10


def test_an_epoch_ends_where_the_next_begins(home: LogHome) -> None:
    log = home.create()
    fill(log, 3)
    log.be_alone(2)
    fill(log, 4)
    log.be_alone(5)
    assert [log.end_offset_for_epoch(epoch) for epoch in (-1, 0, 1, 2, 3, 4, 5, 6)] == [
        (-1, -1), (0, 3), (0, 3), (2, 7), (2, 7), (2, 7), (5, 7), (-1, -1),
    ]  # fmt: skip
    assert [batch.leader_epoch for batch in record_batch.batches(log.read(0, 10_000))] == [0] * 3 + [2] * 4


def test_a_flush_is_asked_for_even_if_nobody_waits_for_it(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(flush_messages=3))
    log = home.create()
    for flushed in (0, 0, 3, 3):
        log.append(batch_of([b"x"]), wait=False)
        home.flush_requested()
        assert log.state.flushed_offset == flushed


def test_a_segment_that_is_closed_is_flushed_in_the_background(tmp_path: Path) -> None:
    home = LogHome(tmp_path)
    log = home.create()
    log.append(batch_of([b"x"]))
    home.flush_requested()
    assert log.recovery_point == 0
    log.roll()
    home.flush_requested()
    assert log.recovery_point == 1
