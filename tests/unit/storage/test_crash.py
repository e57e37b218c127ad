"""What is promised is there after the power was cut at any operation, and after the process was killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.storage.options import LogOptions
from tests.kit.crash_fs import CrashFileSystem
from tests.kit.crash_log import CrashRun, quick_directory
from tests.kit.logs import LogHome, batch_of

POLICIES = {
    "fsync before every ack": LogOptions(segment_bytes=1300, index_interval_bytes=150, flush_messages=1),
    "fsync every five messages": LogOptions(segment_bytes=1300, index_interval_bytes=150, flush_messages=5),
    "page cache": LogOptions(segment_bytes=1300, index_interval_bytes=150),
    "page cache and retention by size": LogOptions(segment_bytes=1300, index_interval_bytes=150, retention_bytes=2000),
}


@pytest.fixture(params=POLICIES, scope="module")
def run(request: pytest.FixtureRequest) -> Iterator[CrashRun]:
    with quick_directory() as home:
        run = CrashRun(home, seed=7, options=POLICIES[request.param])
        run.live(steps=120)
        yield run


def some_positions(run: CrashRun, count: int) -> list[int]:
    return sorted(random.Random(1).sample(range(run.fs.position + 1), count))


def test_a_power_cut_at_any_operation_keeps_what_was_promised(run: CrashRun) -> None:
    for position in some_positions(run, 120):
        run.check_power_cut(position, seed=position)


def test_a_killed_process_loses_nothing(run: CrashRun) -> None:
    for position in some_positions(run, 40):
        run.check_kill(position)


def test_a_power_cut_during_recovery_changes_nothing(run: CrashRun) -> None:
    for position in some_positions(run, 40):
        run.check_power_cut_in_recovery(position, seed=position)


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_epoch_survives_with_the_records_that_it_covers(tmp_path: Path, seed: int) -> None:
    (tmp_path / "disk").mkdir()
    fs = CrashFileSystem(tmp_path / "disk")
    home = LogHome(tmp_path / "disk", fs=fs)
    log = home.create()
    log.open()
    log.set_leader_epoch(3)
    log.append(batch_of([b"x", b"y"]))
    log.roll()
    log.flush()
    fs.after_power_cut(fs.position, seed, tmp_path / "after")
    again = LogHome(tmp_path / "after")
    # The first segment is trusted: its epochs are those of the checkpoint, not of its batches.
    again.recovery_point = 2
    log = again.reopen(clean=False)
    assert [log.epoch_at(offset) for offset in range(2)] == [3, 3]
    assert log.leader_epoch == 3
