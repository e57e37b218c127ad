"""One partition's log: append, read, roll, look up, delete, reopen."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs import LogHome, batch_of, read_all

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
    log.update_options(dataclasses.replace(SMALL, max_message_bytes=100))
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
