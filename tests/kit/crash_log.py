"""A broker's logs under power cuts: a seeded run that knows what was promised when, and what must hold afterwards."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.fs import FileSystem, RealFileSystem
from kbroker.model import TopicPartition
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.crash_fs import CrashFileSystem
from tests.kit.logs import TOPIC_ID, ManualClock, batch_of, read_all

PARTITIONS = (TopicPartition("orders", 0), TopicPartition("orders", 1))


def memory_directory() -> str | None:
    """Where files cost nothing, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextmanager
def quick_directory() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of disks are made and thrown away."""
    path = Path(tempfile.mkdtemp(prefix="kbroker-crash-", dir=memory_directory()))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class UnsyncedFileSystem(RealFileSystem):
    """The real one, but that nobody waits for the device."""

    passthrough = False

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


@dataclass
class Promises:
    """What one log has told somebody, each with the journal's position at that moment."""

    values: list[bytes] = field(default_factory=list)
    """By offset: every record ever appended."""
    appended: list[tuple[int, int]] = field(default_factory=list)
    """(position when acknowledged, log end offset)"""
    durable: list[tuple[int, int]] = field(default_factory=list)
    """(position, everything below survives a power cut)"""
    deleted: list[tuple[int, int]] = field(default_factory=list)
    """(position, log start offset after DeleteRecords)"""
    delete_wanted: int = 0

    def at(self, position: int, promises: list[tuple[int, int]]) -> int:
        return max((offset for when, offset in promises if when <= position), default=0)


@dataclass
class CrashRun:
    """One seeded life of a broker with two logs on a CrashFileSystem."""

    home: Path
    seed: int
    options: LogOptions = field(default_factory=lambda: LogOptions(segment_bytes=1300, index_interval_bytes=150))

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = ManualClock()
        (self.home / "disk").mkdir(parents=True)
        self.fs = CrashFileSystem(self.home / "disk", short_writes=random.Random(self.seed))
        self.promises = {at: Promises() for at in PARTITIONS}

    def start(self, fs: FileSystem, disk: Path) -> LogManager:
        storage = StorageOptions((str(disk),), flusher_threads=0)
        logs = LogManager(storage, fs=fs, clock=self.clock, randomness=random.Random(self.seed))
        logs.start(dict.fromkeys(PARTITIONS, (TOPIC_ID, self.options)).get, background=False)
        for at in PARTITIONS:
            logs.create(at.topic, TOPIC_ID, at.partition_id, self.options)
        return logs

    def live(self, steps: int, lives: int = 2) -> None:
        """Appends, flushes, rolls, deletions, checkpoints; each life but the last ends with a clean stop or a kill."""
        for _ in range(lives):
            logs = self.start(self.fs, self.fs.root)
            for _ in range(steps):
                self._step(logs)
            if self.random.random() < 0.5:
                logs.stop()
                for at in PARTITIONS:
                    self._note_durable(at, len(self.promises[at].values))
            else:
                logs.abandon()

    def _step(self, logs: LogManager) -> None:
        at = self.random.choice(PARTITIONS)
        log = logs.get(at)
        assert log is not None
        promises = self.promises[at]
        self.clock.now_ms += self.random.choice((0, 1, 1000))
        match self.random.choices(
            ("append", "flush", "roll", "delete", "retention", "checkpoint", "files", "epoch"),
            (60, 6, 3, 3, 3, 4, 3, 1),
        )[0]:
            case "append":
                self._append(log, promises)
            case "flush":
                log.flush()
                self._note_durable(at, len(promises.values))
            case "roll":
                log.roll()
            case "delete" if promises.values:
                wanted = self.random.randint(0, len(promises.values))
                promises.delete_wanted = max(promises.delete_wanted, wanted)
                log.delete_records_before(wanted)
                promises.deleted.append((self.fs.position, wanted))
            case "retention":
                log.delete_old_segments()
            case "checkpoint":
                logs.write_checkpoints()
            case "files":
                self.clock.now_ms += self.options.file_delete_delay_ms
                logs.run_due_jobs()
            case "epoch":
                log.set_leader_epoch(log.leader_epoch + 1)

    def _append(self, log: Log, promises: Promises) -> None:
        count = self.random.choice((1, 1, 3))
        values = [
            f"{len(promises.values) + number} ".encode() + b"x" * self.random.choice((0, 40, 300))
            for number in range(count)
        ]
        unflushed_before = log.log_end_offset - log.state.flushed_offset
        promises.values += values
        result = log.append(batch_of(values, self.clock.now_ms))
        assert result.last_offset == len(promises.values) - 1
        promises.appended.append((self.fs.position, len(promises.values)))
        if unflushed_before + count >= self.options.flush_messages:
            self._note_durable(log.topic_partition, len(promises.values))

    def _note_durable(self, at: TopicPartition, end_offset: int) -> None:
        self.promises[at].durable.append((self.fs.position, end_offset))

    # --- after the crash

    def check_power_cut(self, position: int, seed: int) -> None:
        disk = self.home / f"cut-{position}-{seed}"
        self.fs.after_power_cut(position, seed, disk)
        self._check(position, disk, killed=False)
        shutil.rmtree(disk)

    def check_kill(self, position: int) -> None:
        disk = self.home / f"kill-{position}"
        self.fs.after_kill(position, disk)
        self._check(position, disk, killed=True)
        shutil.rmtree(disk)

    def check_power_cut_in_recovery(self, position: int, seed: int) -> None:
        """The power fails again while the log recovers from the first cut."""
        disk = self.home / f"first-{position}-{seed}"
        self.fs.after_power_cut(position, seed, disk)
        fs = CrashFileSystem(disk)
        before = fs.position
        logs = self.start(fs, disk)
        for at in PARTITIONS:
            log = logs.get(at)
            assert log is not None
            log.open()
        logs.abandon()
        randomness = random.Random(f"{position} {seed}")
        again = self.home / f"again-{position}-{seed}"
        fs.after_power_cut(randomness.randint(before, fs.position), seed, again)
        self._check(position, again, killed=False)
        shutil.rmtree(disk)
        shutil.rmtree(again)

    def _check(self, position: int, disk: Path, *, killed: bool) -> None:
        logs = self.start(UnsyncedFileSystem(), disk)
        try:
            for at in PARTITIONS:
                log = logs.get(at)
                assert log is not None
                self._check_log(position, log, self.promises[at], killed=killed)
        finally:
            logs.abandon()

    def _check_log(self, position: int, log: Log, promises: Promises, *, killed: bool) -> None:
        appended = promises.at(position, promises.appended)
        durable = appended if killed else promises.at(position, promises.durable)
        deleted = promises.at(position, promises.deleted)
        where = f"{log} after operation {position}: "
        assert log.log_end_offset >= durable, where + f"ends at {log.log_end_offset}, {durable} were promised"
        assert appended - log.log_end_offset < self.options.flush_messages, (
            where + "more was lost than the policy allows"
        )
        assert log.log_end_offset <= max(len(promises.values), deleted), where + "holds what was never appended"
        assert log.log_start_offset >= deleted, where + "deleted records are back"
        assert log.log_start_offset <= max(promises.delete_wanted, self._retained_from(promises)), where + "start moved"
        records = read_all(log)
        assert [record.offset for record in records] == list(range(log.log_start_offset, log.log_end_offset)), where
        for record in records:
            assert record.value == promises.values[record.offset], where + f"another record at {record.offset}"
        # It goes on from there.
        end_offset = log.log_end_offset
        assert log.append(batch_of([b"after"])).base_offset == end_offset
        assert read_all(log, end_offset)[0].value == b"after"
        log.flush()
        assert log.recovery_point == end_offset + 1

    def _retained_from(self, promises: Promises) -> int:
        """Retention by size or age may have moved the start anywhere."""
        limited = self.options.retention_bytes >= 0 or self.options.retention_ms < 1_000_000
        return len(promises.values) if limited else 0
