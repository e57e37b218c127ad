"""Compaction loses nothing and mixes nothing if the power is cut, at whatever operation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.crash.compaction import COMPACT, KEYED, CompactionRun
from tests.kit.kafka.cleaner import KafkaCleaner
from tests.kit.logs.home import LogHome, read_all
from tests.kit.logs.quick_disk import quick_directory


@pytest.fixture(params=[1, 2], scope="module")
def run(request: pytest.FixtureRequest) -> Iterator[CompactionRun]:
    with quick_directory() as home:
        run = CompactionRun(home, seed=request.param)
        run.live()
        yield run


def test_a_power_cut_at_every_operation_of_a_cleaning_keeps_the_newest(run: CompactionRun) -> None:
    for first, last in run.cleanings:
        assert last > first
        for position in range(first, last + 1):
            run.check_power_cut(position, seed=position)


def test_a_process_killed_at_every_operation_of_a_cleaning_keeps_the_newest(run: CompactionRun) -> None:
    first, last = run.cleanings[-1]
    for position in range(first, last + 1):
        run.check_kill(position)


def test_a_power_cut_in_the_recovery_of_a_swap_keeps_the_newest(run: CompactionRun) -> None:
    first, last = run.cleanings[-1]
    for position in range(first, last + 1, 2):
        run.check_power_cut_in_recovery(position, seed=position)


def test_kafka_finishes_a_swap_that_was_cut_short_as_we_do(run: CompactionRun) -> None:
    first, last = run.cleanings[-1]
    settings = {"segment.bytes": COMPACT.segment_bytes, "index.interval.bytes": COMPACT.index_interval_bytes}
    with KafkaCleaner(settings) as kafka:
        for position in range(first, last + 1, 2):
            ours, theirs = run.home / "ours", run.home / "theirs"
            for disk in (ours, theirs):
                run.fs.after_kill(position, disk)
            end_offset = kafka.recover(theirs / str(KEYED))
            # What Kafka has recovered is opened as after a clean stop: nothing is left to be done.
            found = [records_in(ours, clean=False), records_in(theirs, clean=True)]
            assert found[0] == found[1], position
            assert end_offset == len(run.written)
            shutil.rmtree(ours)
            shutil.rmtree(theirs)


def records_in(disk: Path, *, clean: bool) -> list[tuple[int, bytes | None, bytes | None]]:
    home = LogHome(disk, options=COMPACT, topic_partition=KEYED)
    try:
        return [(record.offset, record.key, record.value) for record in read_all(home.reopen(clean=clean))]
    finally:
        home.abandon()
