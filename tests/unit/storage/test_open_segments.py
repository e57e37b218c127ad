"""The bound on descriptors of closed segments."""

from __future__ import annotations

import resource
from pathlib import Path

from kbroker.storage.open_segments import OpenSegments
from kbroker.storage.options import LogOptions
from tests.kit.logs import LogHome, batch_of, read_all


def test_reading_all_of_a_long_log_keeps_few_segments_open(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(segment_bytes=500))
    home.open_segments = OpenSegments(3)
    home.context.on_segment_opened = home.open_segments.add
    log = home.create()
    for at in range(60):
        log.append(batch_of([b"%d" % at]))
    log.flush()
    home.open_segments.trim()
    for _ in range(3):
        assert len(read_all(log)) == 60
        assert sum(segment[8] for segment in log.state.segments()) <= 5


def test_few_descriptors_are_few_open_segments(tmp_path: Path) -> None:
    home = LogHome(tmp_path, options=LogOptions(segment_bytes=500))
    home.open_segments = OpenSegments(4000)
    home.context.on_segment_opened = home.open_segments.add
    log = home.create()
    for at in range(60):
        log.append(batch_of([b"%d" % at]))
    log.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))
    try:
        home.open_segments.trim()
        assert sum(segment[8] for segment in log.state.segments()) <= 12
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_segment_that_was_just_opened_is_not_the_one_to_close(tmp_path: Path) -> None:
    """Found by the model: entered twice, it was passed over once and closed the second time, before it was read."""
    home = LogHome(tmp_path, options=LogOptions(segment_bytes=500))
    home.open_segments = opened = OpenSegments(1)
    home.context.on_segment_opened = opened.add
    log = home.create()
    for at in range(20):
        log.append(batch_of([b"%d" % at]))
    log.flush()
    for _ in range(3):
        opened.add(log, 0)
        assert log.read(0, 100)
    assert len(opened) <= 2
