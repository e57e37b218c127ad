"""The limit on the descriptors of closed segments."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.fs import RealFileSystem
from kbroker.protocol.records import read_batches
from kbroker.storage import file_names
from kbroker.storage.log import Log
from kbroker.storage.open_segments import OpenSegments
from kbroker.storage.options import LogOptions
from tests.kit.crash.fs import CrashFileSystem
from tests.kit.logs.home import LogHome, batch_of, read_all


def log_of(path: Path, count: int, opened: OpenSegments) -> Log:
    """Return a log of that many batches, seven in a segment; `opened` limits its descriptors."""
    home = LogHome(path, options=LogOptions(segment_bytes=500))
    home.open_segments = opened
    home.context.on_segment_opened = opened.add
    log = home.create()
    for at in range(count):
        log.append(batch_of([b"%d" % at]))
    log.flush()
    return log


def test_reading_all_of_a_long_log_keeps_few_segments_open(tmp_path: Path) -> None:
    opened = OpenSegments(3)
    log = log_of(tmp_path, 60, opened)
    opened.trim()
    for _ in range(3):
        assert len(read_all(log)) == 60
        assert sum(segment.is_open for segment in log.state.segments()) <= 5


def test_few_descriptors_are_few_open_segments(tmp_path: Path) -> None:
    opened = OpenSegments(4000)
    log = log_of(tmp_path, 60, opened)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
    try:
        opened.trim()
        assert sum(segment.is_open for segment in log.state.segments()) <= 12
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_segment_that_was_just_opened_is_not_the_one_to_close(tmp_path: Path) -> None:
    """A segment that was added twice was once passed over the first time and closed the second, before it was read."""
    opened = OpenSegments(1)
    log = log_of(tmp_path, 20, opened)
    for _ in range(3):
        opened.add(log, 0)
        assert log.read(0, 100)
    assert len(opened) <= 2


class _WriteOnly(RealFileSystem):
    """A file system that opens files with a given ending for writing only: they cannot be mapped."""

    suffix = "none"

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        return super().open(path, flags & ~os.O_ACCMODE | os.O_WRONLY if path.endswith(self.suffix) else flags, mode)


def refused(log: Log, suffix: str) -> bool:
    with pytest.raises(KbrokerError) as error:
        log.read(0, 100) if suffix == file_names.INDEX else log.offset_for_timestamp(1010)
    return error.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("suffix", [file_names.INDEX, file_names.TIME_INDEX])
def test_an_index_that_cannot_be_mapped_is_an_error_and_not_tried_for_ever(tmp_path: Path, suffix: str) -> None:
    fs = _WriteOnly()
    home = LogHome(tmp_path, fs, options=LogOptions(segment_bytes=500, index_interval_bytes=100))
    log = home.create()
    for at in range(60):
        log.append(batch_of([b"%d" % at], 1000 + at))
    log.flush()
    home.open_segments.trim()
    fs.suffix = suffix
    assert refused(log, suffix)
    fs.suffix = "none"
    assert log.offset_for_timestamp(1010) == (1010, 10, 0)
    assert len(read_all(log)) == 60


def test_a_time_index_of_the_active_segment_that_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    fs = _WriteOnly()
    fs.suffix = file_names.TIME_INDEX
    log = LogHome(tmp_path, fs, options=LogOptions(index_interval_bytes=100)).create()
    for at in range(200):
        log.append(batch_of([b"%d" % at * 100], 1000 + at))
    assert refused(log, file_names.TIME_INDEX)


def test_indexes_are_on_the_device_before_their_segment_is_closed(tmp_path: Path) -> None:
    """Records of a segment were flushed while it was active, but not its indexes: recovery would trust these."""
    (tmp_path / "disk").mkdir()
    fs = CrashFileSystem(tmp_path / "disk")
    home = LogHome(tmp_path / "disk", fs=fs, options=LogOptions(index_interval_bytes=0))
    opened = OpenSegments(1)
    home.context.on_segment_opened = opened.add
    log = home.create()
    for _ in range(2):
        for at in range(20):
            log.append(batch_of([b"%d" % at], 1000 + log.log_end_offset))
        log.flush()
        log.roll()
    log.read(0, 100)
    log.flush()
    assert log.recovery_point == 40
    for seed in range(20):
        fs.after_power_cut(len(fs.journal), seed, tmp_path / f"{seed}")
        for name in (
            file_names.file_name(base, suffix)
            for base in (0, 20)
            for suffix in (file_names.INDEX, file_names.TIME_INDEX)
        ):
            written, kept = (tmp_path / disk / "orders-0" / name for disk in ("disk", str(seed)))
            assert len(kept.read_bytes()) > 100
            assert kept.read_bytes() == written.read_bytes(), name


def test_an_index_does_not_grow_beyond_what_is_mapped_of_it(tmp_path: Path) -> None:
    """The active segment's index was mapped, with room for its largest size, when the setting was smaller."""
    small = LogOptions(index_interval_bytes=0, index_max_bytes=8 * 100)
    log = LogHome(tmp_path, options=small).create()
    for at in range(90):
        log.append(batch_of([b"%d" % at]))
    assert read_all(log, 3)[0].value == b"3"
    assert file_names.file_name(0, file_names.INDEX) in Path("/proc/self/maps").read_text()
    log.update_options(small._replace(index_max_bytes=10 << 20))
    for at in range(90, 2000):
        log.append(batch_of([b"%d" % at]))
    assert [segment.index_count > 100 for segment in log.state.segments()] == [False, True]
    for at in range(0, 2000, 7):
        assert next(read_batches(log.read(at, 1))).records()[0].value == b"%d" % at


def test_a_reader_that_comes_too_late_leaves_no_file_of_a_deleted_segment(tmp_path: Path) -> None:
    """Retention took the segment after a reader had found that it needs the index, and before the index was opened."""
    home = LogHome(tmp_path, options=LogOptions(segment_bytes=300))
    log = home.create()
    for _ in range(10):
        log.append(batch_of([b"x" * 100]))
    assert log.delete_old_segments((lambda view: 2,)) == 2
    home.unlink_removed()
    before = sorted(home.log_path.iterdir())
    for kind in range(2, 8):
        log.meet_need(kind, 0)
    assert sorted(home.log_path.iterdir()) == before
