"""What the rows about the log measure is what they say: the files they make are logs, and they read the right line."""

from __future__ import annotations

from perf.log_rows import (
    LOADED,
    TIME,
    batch_of,
    by_offset,
    by_time,
    log_home,
    seconds_to_recover,
    write_closed_segment,
    write_segment,
)  # fmt: skip
from tests.kit.logs.home import read_all


def test_a_segment_made_for_recovery_is_recovered_whole() -> None:
    with log_home() as home:
        size = write_segment(home, [batch_of(100, 2, producer) for producer in range(3)], 10_000)
        assert seconds_to_recover(home) > 0
        log = home.reopen(clean=False)
        assert log.size == size >= 10_000
        assert [record.offset for record in read_all(log, max_bytes=size)] == list(range(log.log_end_offset))
        assert len(log.state.producers()[0]) == 3


def test_closed_segments_made_for_lookups_are_found_by_offset_and_by_time() -> None:
    with log_home() as home:
        for base, count in ((0, 64), (64, 1), (65, 1)):
            write_closed_segment(home.log_path, base, count, 900 if count > 1 else 100)
        log = home.reopen(clean=True)
        assert len(log.state.segments()) == 3 and log.log_end_offset == 66
        assert all(by_offset(log)(offset) and by_time(log)(offset) for offset in range(66))
        assert log.offset_for_timestamp(TIME + 66) is None


def test_the_line_about_loading_is_read_of_both_brokers() -> None:
    for line in (
        "INFO Loaded 100 logs in 795 ms, recovered",
        "[2026-01-01] INFO Loaded 100 logs in 795ms (unclean log dirs = /d) (kafka.log.LogManager)",
    ):
        assert LOADED.findall(line) == [("100", "795")]
