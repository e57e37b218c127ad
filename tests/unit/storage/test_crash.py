"""What is promised is there after the power was cut at any operation, and after the process was killed.

The campaign itself is proved by faults: each is planted in the code that it runs, and the campaign has to find it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker._core.log.compaction.segment_copy import SegmentCopy
from kbroker._core.log.producer_table import ProducerTable
from kbroker.storage import checkpoints, compaction, producer_replay
from kbroker.storage.log import Log
from kbroker.storage.recovery import LogLoader
from kbroker.storage.segment import Segment
from tests.kit.crash.campaign import run_seed
from tests.kit.crash.fs import CrashFileSystem
from tests.kit.crash.history import BrokenPromise
from tests.kit.logs.home import TOPIC_ID, LogHome, batch_of
from tests.kit.models.stored_batches import stored_batches

SEEDS = 100
FEW_SEEDS = 40


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_everything_promised_is_there_after_a_crash_anywhere(first: int) -> None:
    for seed in range(first, first + 10):
        figures = run_seed(seed)
        assert figures.crashes >= 10
        assert figures.promises > figures.logs


def test_a_seed_tells_the_same_again() -> None:
    assert run_seed(7) == run_seed(7)


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_epoch_survives_with_the_records_that_it_covers(tmp_path: Path, seed: int) -> None:
    (tmp_path / "disk").mkdir()
    fs = CrashFileSystem(tmp_path / "disk")
    home = LogHome(tmp_path / "disk", fs=fs)
    log = home.create()
    log.open()
    log.be_alone(3)
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


# --- planted faults


class NoSyncBeforeRename(CrashFileSystem):
    """Fault: a file is not synced before it is renamed over another one."""

    def fdatasync(self, fd: int) -> None:
        if not os.readlink(f"/proc/self/fd/{fd}").endswith((".tmp", ".cleaned")):  # noqa: PTH115
            super().fdatasync(fd)


class NoSyncOfSwaps(CrashFileSystem):
    """Fault: the names of a swap are not synced."""

    def sync_directory(self, path: str) -> None:
        if not any(name.endswith((".swap", ".cleaned", ".deleted")) for name in self.list_directory(path)):
            super().sync_directory(path)


class AckBeforeSync(CrashFileSystem):
    """Fault: appends are acknowledged as if they were synced."""

    def fdatasync(self, fd: int) -> None:
        if not os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):  # noqa: PTH115
            super().fdatasync(fd)


class NoSyncOfNewNames(CrashFileSystem):
    """Fault: a segment's first flush syncs its bytes, but not the names that lead to them."""

    def sync_directory(self, path: str) -> None:
        if path == str(self.root) or Path(path).parent == self.root:
            super().sync_directory(path)


def trust_indexes(patch: pytest.MonkeyPatch) -> None:
    """Fault: recovery takes the indexes that it finds."""
    write_index = LogLoader._write_index

    def only_missing(self: LogLoader, base_offset: int, suffix: str, data: bytes, *, durable: bool) -> None:
        if not os.path.exists(self._path(base_offset, suffix)):  # noqa: PTH110
            write_index(self, base_offset, suffix, data, durable=durable)

    patch.setattr(LogLoader, "_write_index", only_missing)


def checkpoint_first(patch: pytest.MonkeyPatch) -> None:
    """Fault: the recovery point includes what is not flushed yet."""
    patch.setattr(Log, "recovery_point", property(lambda log: log.log_end_offset))


def forget_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """Fault: records that are appended during a swap are gone after it."""
    replace_segments = Log.replace_segments

    def replace(self: Log, segment: Segment, before_offset: int, history: int) -> bool:
        active = self._files.active
        is_done = replace_segments(self, segment, before_offset, history)
        self._files.cut(active.base_offset, active.size)
        return is_done

    patch.setattr(Log, "replace_segments", replace)


def drop_newest(patch: pytest.MonkeyPatch, *, of_old: bool = False) -> None:
    """Fault: compaction loses the last batch that it copies."""
    copy_segment: Callable[..., SegmentCopy] = compaction.copy_segment

    def copy(*arguments: object, **options: object) -> object:
        copied = copy_segment(*arguments, **options)
        output = bytes(copied.output)
        *_, last = [None, *stored_batches(output)]
        is_dropped = last is not None and isinstance(last.content, tuple) == of_old
        size = last.position if last is not None and is_dropped else len(output)
        fields = {name: getattr(copied, name) for name in ("taken", "records_read", "records_kept")}
        return SimpleNamespace(output=output[:size], **fields)

    patch.setattr(compaction, "copy_segment", copy)


def drop_newest_message(patch: pytest.MonkeyPatch) -> None:
    """Fault: compaction loses the last message that it copies, of magic 0 and 1 only."""
    drop_newest(patch, of_old=True)


def ignore_aborts(patch: pytest.MonkeyPatch) -> None:
    """Fault: the cleaner takes aborted records for committed ones."""
    patch.setattr(compaction, "_aborted_transactions", lambda log: [])


def forget_aborts(patch: pytest.MonkeyPatch) -> None:
    """Fault: recovery empties `.txnindex`."""
    write = LogLoader._write_aborted
    patch.setattr(
        LogLoader,
        "_write_aborted",
        lambda self, base_offset, data, durable: write(self, base_offset, b"", durable=durable),
    )


def forget_what_is_open(patch: pytest.MonkeyPatch) -> None:
    """Fault: snapshots do not include open transactions."""
    load = producer_replay.load_snapshot

    def load_and_forget(*arguments: Any) -> ProducerTable | None:
        table, forgetful = load(*arguments), ProducerTable()
        for producer in table.export() if table is not None else ():
            forgetful.restore(*producer._replace(transaction_first_offset=-1))
        return table and forgetful

    patch.setattr(producer_replay, "load_snapshot", load_and_forget)


def leave_topic_ids(patch: pytest.MonkeyPatch) -> None:
    """Fault: a torn partition.metadata is not written again."""
    patch.setattr(checkpoints, "load_topic_id", lambda *_: TOPIC_ID)


def nothing(patch: pytest.MonkeyPatch) -> None:
    pass


@pytest.mark.parametrize(
    ("fault", "file_system"),
    [
        (nothing, NoSyncBeforeRename),
        (nothing, NoSyncOfSwaps),
        (nothing, AckBeforeSync),
        (nothing, NoSyncOfNewNames),
        (trust_indexes, CrashFileSystem),
        (checkpoint_first, CrashFileSystem),
        (forget_meanwhile, CrashFileSystem),
        (drop_newest, CrashFileSystem),
        (drop_newest_message, CrashFileSystem),
        (ignore_aborts, CrashFileSystem),
        (forget_aborts, CrashFileSystem),
        (forget_what_is_open, CrashFileSystem),
        (leave_topic_ids, CrashFileSystem),
    ],
)  # fmt: skip
def test_the_campaign_finds_a_planted_fault(
    fault: Callable[[pytest.MonkeyPatch], None], file_system: type[CrashFileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(BrokenPromise):
        for seed in range(FEW_SEEDS):
            run_seed(seed, file_system=file_system)
