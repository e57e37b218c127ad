"""The bound on descriptors of closed segments."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kbroker.errors import ErrorCode, KbrokerError
from kbroker.fs import RealFileSystem
from kbroker.storage import segment as names
from kbroker.storage.log import Log
from kbroker.storage.open_segments import OpenSegments
from kbroker.storage.options import LogOptions
from tests.kit.logs import LogHome, batch_of, read_all


def log_of(path: Path, count: int, opened: OpenSegments) -> Log:
    """So many batches, seven in a segment; `opened` bounds the descriptors."""
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
        assert sum(segment[8] for segment in log.state.segments()) <= 5


def test_few_descriptors_are_few_open_segments(tmp_path: Path) -> None:
    opened = OpenSegments(4000)
    log = log_of(tmp_path, 60, opened)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
    try:
        opened.trim()
        assert sum(segment[8] for segment in log.state.segments()) <= 12
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_segment_that_was_just_opened_is_not_the_one_to_close(tmp_path: Path) -> None:
    """Found by the model: entered twice, it was passed over once and closed the second time, before it was read."""
    opened = OpenSegments(1)
    log = log_of(tmp_path, 20, opened)
    for _ in range(3):
        opened.add(log, 0)
        assert log.read(0, 100)
    assert len(opened) <= 2


class _WriteOnly(RealFileSystem):
    """A file whose name ends so is opened for writing: it cannot be mapped."""

    suffix = "none"

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        return super().open(path, flags & ~os.O_ACCMODE | os.O_WRONLY if path.endswith(self.suffix) else flags, mode)


def refused(log: Log, suffix: str) -> bool:
    with pytest.raises(KbrokerError) as error:
        log.read(0, 100) if suffix == names.INDEX else log.offset_for_timestamp(1010)
    return error.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("suffix", [names.INDEX, names.TIME_INDEX])
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
    fs.suffix = names.TIME_INDEX
    log = LogHome(tmp_path, fs, options=LogOptions(index_interval_bytes=100)).create()
    for at in range(200):
        log.append(batch_of([b"%d" % at * 100], 1000 + at))
    assert refused(log, names.TIME_INDEX)
