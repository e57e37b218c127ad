"""Which segments may go: pure functions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kbroker.storage.options import LogOptions
from kbroker.storage.retention import Candidate, LogView, below_log_start, larger_than, older_than, policies_for
from tests.kit.logs.home import LogHome, batch_of, read_all

SEGMENTS = tuple(Candidate(at * 10, at * 10 + 10, 100, 1000 + at) for at in range(4))


def view(**changes: int) -> LogView:
    fields = {"log_start_offset": 0, "size": 400, "now_ms": 2000, **changes}
    return LogView(SEGMENTS, **fields)


@pytest.mark.parametrize(
    ("retention_ms", "count"), [(1000, 0), (999, 1), (998, 2), (997, 3), (996, 4), (0, 4), (1 << 62, 0)]
)
def test_segments_go_when_their_newest_record_is_too_old(retention_ms: int, count: int) -> None:
    assert older_than(retention_ms, view()) == count


def test_a_young_segment_keeps_the_older_looking_ones_behind_it() -> None:
    segments = (SEGMENTS[0], Candidate(10, 20, 100, 1999), SEGMENTS[2])
    assert older_than(500, LogView(segments, 0, 300, 2000)) == 1


@pytest.mark.parametrize(
    ("retention_bytes", "count"), [(400, 0), (399, 0), (301, 0), (300, 1), (250, 1), (100, 3), (1, 3), (0, 4)]
)
def test_segments_go_while_what_is_left_is_large_enough(retention_bytes: int, count: int) -> None:
    assert larger_than(retention_bytes, view()) == count


@pytest.mark.parametrize(("start", "count"), [(0, 0), (9, 0), (10, 1), (25, 2), (30, 3), (40, 3)])
def test_segments_go_when_all_their_records_were_deleted(start: int, count: int) -> None:
    assert below_log_start(view(log_start_offset=start)) == count


def test_a_topic_that_is_only_compacted_forgets_nothing_by_age_or_size() -> None:
    assert policies_for(LogOptions(deleted_by_retention=False, retention_bytes=0)) == (below_log_start,)
    assert len(policies_for(LogOptions(retention_bytes=5))) == 3
    assert len(policies_for(LogOptions(retention_ms=-1))) == 1


def test_an_old_log_is_emptied_and_its_offsets_go_on(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(segment_bytes=500, retention_ms=60_000))
    log = home.create()
    for _ in range(20):
        log.append(batch_of([b"x" * 50], home.clock.now_ms))
    assert log.delete_old_segments() == 0
    home.clock.now_ms += 60_001
    assert log.delete_old_segments() > 3
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)
    assert log.delete_old_segments() == 0
    assert log.append(batch_of([b"x"], home.clock.now_ms)).base_offset == 20
    assert all(path.exists() for _, paths in home.removed for path in map(Path, paths))


def test_records_without_timestamps_are_as_old_as_their_file(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(segment_bytes=500, retention_ms=60_000))
    log = home.create()
    for _ in range(20):
        log.append(batch_of([b"x" * 50], -1))
    home.clock.now_ms = 4_000_000_000_000
    assert log.delete_old_segments() > 3


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    def keep_two(view: LogView) -> int:
        return max(0, len(view.segments) - 2)

    log = LogHome(tmp_path, options=LogOptions(segment_bytes=500)).create()
    for at in range(20):
        log.append(batch_of([b"%d" % at, b"x" * 50]))
    assert log.delete_old_segments((keep_two,)) > 1
    assert len(log.state.segments()) == 2
    assert read_all(log)[-1].offset == 39
    assert log.delete_old_segments((partial(older_than, 1 << 60),)) == 0


def test_what_is_appended_while_a_log_is_emptied_stays(tmp_path: Path) -> None:
    """An acknowledged record was once deleted together with the segment that it was appended to."""
    home = LogHome(tmp_path, options=LogOptions(retention_ms=60_000))
    log = home.create()
    log.append(batch_of([b"old"], home.clock.now_ms))
    home.clock.now_ms += 60_001

    def all_old(view: LogView) -> int:
        count = older_than(60_000, view)
        if log.log_end_offset < 3:
            log.append(batch_of([b"new"], home.clock.now_ms))
        return count

    assert log.delete_old_segments((all_old,)) == 0
    assert [record.value for record in read_all(log)] == [b"old", b"new", b"new"]
    home.clock.now_ms += 60_001
    assert log.delete_old_segments((all_old,)) == 2
    assert log.log_start_offset == log.log_end_offset == 3
