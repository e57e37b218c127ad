"""Compaction of one log: what readers, a restart and the files show afterwards."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker.errors import DiskDamaged
from kbroker.protocol.compression import Codec
from kbroker.protocol.records import INFLATED_LIMIT, encode_batch
from kbroker.storage.compaction import (
    CleanableSegment,
    Cleaned,
    clean_log,
    cleanable_segments,
    dirty_ratio,
    groups_of,
)
from kbroker.storage.failures import CleaningAborted
from kbroker.storage.log import Log
from kbroker.storage.options import LogOptions
from tests.kit.logs.home import LogHome, read_all

RETENTION_MS = 1000
SMALL = LogOptions(
    segment_bytes=2000,
    index_interval_bytes=200,
    compacted=True,
    deleted_by_retention=False,
    delete_retention_ms=RETENTION_MS,
)


@pytest.fixture
def home(tmp_path: Path) -> LogHome:
    return LogHome(tmp_path, options=SMALL)


def fill(log: Log, count: int, seed: int, codec: Codec = Codec.NONE) -> dict[int, tuple[bytes, bytes | None]]:
    """Append batches of one to five records with few keys; return what was written, by offset."""
    chance = random.Random(seed)
    written: dict[int, tuple[bytes, bytes | None]] = {}
    for _ in range(count):
        records = [
            (b"key %d" % chance.randrange(20), None if chance.random() < 0.1 else b"%d" % chance.getrandbits(64))
            for _ in range(chance.randrange(1, 6))
        ]
        base = log.log_end_offset
        log.append(encode_batch([(log.context.clock.wall_ms(), *record) for record in records], codec=codec))
        written.update({base + at: record for at, record in enumerate(records)})
    return written


def cleaned(log: Log, first_dirty_offset: int = 0, room: int = 1 << 16, io_size: int = 300) -> Cleaned:
    log.flush()
    return clean_log(log, DedupeMap(room), first_dirty_offset, io_size)


def content(log: Log) -> dict[int, tuple[bytes | None, bytes | None]]:
    return {record.offset: (record.key, record.value) for record in read_all(log)}


def newest_of(written: dict[int, tuple[bytes, bytes | None]], below: int) -> dict[int, tuple[bytes, bytes | None]]:
    """Return the newest record of each key below an offset, and every record from that offset on."""
    last = {key: offset for offset, (key, _) in sorted(written.items()) if offset < below}
    return {at: row for at, row in written.items() if at >= below or last[row[0]] == at}


@pytest.mark.parametrize("codec", list(Codec))
def test_the_newest_of_each_key_is_left_and_a_restart_finds_the_same(home: LogHome, codec: Codec) -> None:
    log = home.create()
    written = fill(log, 200, 1, codec)
    log.flush()
    end = cleanable_segments(log)[-1].end_offset
    before = len(log.state.segments())
    done = cleaned(log)
    assert done.next_dirty_offset == end
    assert done.records_kept < done.records_read
    assert done.bytes_written < done.bytes_read
    expected = newest_of(written, end)
    assert content(log) == expected
    for offset in range(0, max(expected), 37):
        assert read_all(log, offset)[0].offset == min(at for at in expected if at >= offset)
    # Appends go on, the next cleaning too.
    written.update(fill(log, 100, 2, codec))
    done = cleaned(log, end)
    expected = newest_of(written, done.next_dirty_offset)
    assert content(log) == expected
    # What the first cleaning left small is one segment now.
    assert len(log.state.segments()) < before
    for clean in (True, False):
        if clean:
            log.close()
        home.recovery_point = log.recovery_point
        log = home.reopen(clean=clean)
        assert content(log) == expected


def test_tombstones_go_when_their_retention_is_over(home: LogHome) -> None:
    log = home.create()
    written = fill(log, 200, 3)
    done = cleaned(log)
    end = done.next_dirty_offset
    expected = newest_of(written, end)
    assert any(value is None for offset, (_, value) in expected.items() if offset < end)
    home.clock.now_ms += RETENTION_MS
    for number in range(100):
        written[log.log_end_offset] = b"another", b"%d" % number
        log.append(encode_batch([(home.clock.now_ms, b"another", b"%d" % number)]))
    end = cleaned(log, end).next_dirty_offset
    left, newest = content(log), newest_of(written, end)
    assert left.items() <= newest.items()
    # What is gone besides are tombstones that the first cleaning met.
    gone = {offset: newest[offset] for offset in newest.keys() - left.keys()}
    assert gone
    assert all(value is None and expected[offset] == (key, None) for offset, (key, value) in gone.items())


def test_a_small_map_cleans_step_by_step_to_the_same(home: LogHome) -> None:
    log = home.create()
    written = fill(log, 200, 5)
    log.flush()
    end = cleanable_segments(log)[-1].end_offset
    at, steps = 0, 0
    while at < end:
        done = cleaned(log, at, room=24 * 8)
        assert done.next_dirty_offset > at
        at, steps = done.next_dirty_offset, steps + 1
    assert steps > 2
    assert content(log) == newest_of(written, end)


def test_the_old_files_go_later_and_readers_keep_them(home: LogHome) -> None:
    log = home.create()
    fill(log, 100, 6)
    cleaned(log)
    assert home.removed
    names = {path.name for path in home.log_path.iterdir()}
    assert not any(name.endswith((".cleaned", ".swap")) for name in names)
    assert {Path(path).name for _, paths in home.removed for path in paths} <= names


def test_a_log_without_closed_segments_is_left_alone(home: LogHome) -> None:
    log = home.create()
    written = fill(log, 3, 7)
    assert cleaned(log) == Cleaned(0)
    assert content(log) == written


def test_groups_fill_a_segment_and_no_more() -> None:
    def segment(at: int, size: int, index_size: int = 0, span: int = 10) -> CleanableSegment:
        return CleanableSegment(at, at + span, size, index_size, 0)

    sizes = [segment(0, 40), segment(10, 60), segment(20, 1), segment(30, 99), segment(40, 1)]
    assert [len(group) for group in groups_of(sizes, 100, 1000)] == [2, 2, 1]
    assert [len(group) for group in groups_of([segment(0, 1, 6), segment(10, 1, 5)], 100, 10)] == [1, 1]
    far = [segment(0, 1), segment(10, 1, span=2**31)]
    assert [len(group) for group in groups_of(far, 100, 10)] == [1, 1]
    assert dirty_ratio(sizes, 30) == 100 / 201
    assert dirty_ratio([], 0) == 0


def test_a_damaged_swap_is_dropped_while_the_old_segment_is_there(
    home: LogHome, caplog: pytest.LogCaptureFixture
) -> None:
    log = home.create()
    written = fill(log, 60, 8)
    log.close()
    base = home.log_path / f"{0:020d}.log"
    data = base.read_bytes()
    (home.log_path / f"{base.name}.swap").write_bytes(data[:50] + b"\xff" * 30)
    (home.log_path / f"{0:020d}.index.swap").write_bytes(b"")
    log = home.reopen(clean=True)
    assert content(log) == written
    assert base.read_bytes() == data
    assert not list(home.log_path.glob("*.swap"))
    assert f"{base}.swap: " in caplog.text


def test_a_log_that_was_truncated_meanwhile_keeps_what_is_new(home: LogHome) -> None:
    log = home.create()
    written = fill(log, 100, 9)
    log.flush()
    reads = end_offset = 0

    def truncate(_: int) -> None:
        nonlocal reads, end_offset
        reads += 1
        if reads == 150:
            log.truncate_to(150)
            end_offset = log.log_end_offset
            assert 0 < end_offset <= 150
            while log.log_end_offset < 250:
                log.append(encode_batch([(home.clock.now_ms, b"%d" % log.log_end_offset, b"new")]))
            log.flush()

    with pytest.raises(CleaningAborted):
        clean_log(log, DedupeMap(1 << 16), 0, 300, truncate)
    found = content(log)
    new = {at: (b"%d" % at, b"new") for at in range(end_offset, 250)}
    assert {at: row for at, row in found.items() if at >= end_offset} == new
    assert all(written[at] == row for at, row in found.items() if at < end_offset)


def test_a_producers_last_batch_is_flushed_before_the_one_that_it_replaces_goes(home: LogHome) -> None:
    log = home.create()
    for sequence in range(30):
        rows = [(1, b"key", b"%d" % sequence + bytes(200))]
        log.append(encode_batch(rows, producer_id=7, producer_epoch=0, base_sequence=sequence))
    log.flush()
    log.append(encode_batch([(1, b"other", b"value")], producer_id=7, producer_epoch=0, base_sequence=30))
    assert log.recovery_point < log.log_end_offset
    clean_log(log, DedupeMap(1 << 16), 0, 300)
    assert log.recovery_point == log.log_end_offset


def test_a_batch_that_the_broker_was_told_to_take_is_cleaned(home: LogHome) -> None:
    size = INFLATED_LIMIT + 1
    home.options = SMALL._replace(segment_bytes=20_000, max_inflated_size=size + 100)
    log = home.create()
    log.append(encode_batch([(1, b"k", bytes(size))], codec=Codec.ZSTD))
    log.roll()
    fill(log, 20, 1)
    log.roll()
    assert cleaned(log).records_read > 1
    log.update_options(SMALL)
    with pytest.raises(DiskDamaged, match="inflate"):
        cleaned(log)
