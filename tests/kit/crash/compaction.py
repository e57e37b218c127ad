"""Compaction under power cuts: a compacted log, filled and cleaned in turns, and what must hold after each cut."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker.fs import FileSystem
from kbroker.model import TopicPartition
from kbroker.protocol.records import encode_batch
from kbroker.storage.compaction import Cleaned, clean_log
from kbroker.storage.log import Log
from kbroker.storage.log_manager import LogManager
from kbroker.storage.options import LogOptions, StorageOptions
from tests.kit.crash.fs import CrashFileSystem
from tests.kit.logs.home import TOPIC_ID, ManualClock, read_all

KEYED = TopicPartition("keyed", 0)
COMPACT = LogOptions(segment_bytes=1300, index_interval_bytes=150, compacted=True, deleted_by_retention=False)


def clean(log: Log, first_dirty_offset: int = 0) -> Cleaned:
    """Compact all of a log that may be, on the caller's thread. It uses no checkpoint, so every call begins anew."""
    return clean_log(log, DedupeMap(1 << 14), first_dirty_offset, io_size=700)


@dataclass
class CompactionRun:
    """One seeded life of a compacted log: appends, flushes, cleanings, checkpoints, removal of old files."""

    home: Path
    seed: int
    written: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """Every record that was ever appended, by its offset."""
    durable: list[tuple[int, int]] = field(default_factory=list)
    """(position, offset): from this position on, everything below the offset survives a power cut."""
    cleanings: list[tuple[int, int]] = field(default_factory=list)
    """The first and the last operation of each cleaning."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = ManualClock()
        (self.home / "disk").mkdir(parents=True)
        self.fs = CrashFileSystem(self.home / "disk", short_writes=random.Random(self.seed))

    def start(self, fs: FileSystem, disk: Path) -> tuple[LogManager, Log]:
        storage = StorageOptions((str(disk),), flusher_threads=0)
        logs = LogManager(storage, fs=fs, clock=self.clock, randomness=random.Random(self.seed))
        logs.start({KEYED: (TOPIC_ID, COMPACT)}.get, background=False)
        return logs, logs.create(KEYED.topic, TOPIC_ID, KEYED.partition_id, COMPACT)

    def live(self, rounds: int = 3) -> None:
        logs, log = self.start(self.fs, self.fs.root)
        for _ in range(rounds):
            for _ in range(40):
                self._append(log)
            log.flush()
            self.durable.append((self.fs.position, len(self.written)))
            if self.random.random() < 0.5:
                logs.write_checkpoints()
            first = self.fs.position
            clean(log)
            self.cleanings.append((first, self.fs.position))
            if self.random.random() < 0.5:
                self.clock.now_ms += COMPACT.file_delete_delay_ms
                logs.run_due_jobs()
        logs.abandon()

    def _append(self, log: Log) -> None:
        records = []
        for _ in range(self.random.choice((1, 1, 3))):
            value = (
                None if self.random.random() < 0.1 else b"%d " % len(self.written) + b"x" * self.random.choice((0, 99))
            )
            self.written.append((b"key %d" % self.random.randrange(12), value))
            records.append((self.clock.now_ms, *self.written[-1]))
        log.append(encode_batch(records))

    def check_power_cut(self, position: int, seed: int) -> None:
        disk = self.home / f"cut-{position}-{seed}"
        self.fs.after_power_cut(position, seed, disk)
        self._check(position, disk, killed=False)

    def check_kill(self, position: int) -> None:
        disk = self.home / f"kill-{position}"
        self.fs.after_kill(position, disk)
        self._check(position, disk, killed=True)

    def check_power_cut_in_recovery(self, position: int, seed: int) -> None:
        """Check a log after a second power cut, while it was recovering from the first one."""
        disk = self.home / f"first-{position}-{seed}"
        self.fs.after_power_cut(position, seed, disk)
        fs = CrashFileSystem(disk)
        before = fs.position
        logs, log = self.start(fs, disk)
        log.open()
        logs.abandon()
        again = self.home / f"again-{position}-{seed}"
        fs.after_power_cut(random.Random(f"{position} {seed}").randint(before, fs.position), seed, again)
        shutil.rmtree(disk)
        self._check(position, again, killed=False)

    def _check(self, position: int, disk: Path, *, killed: bool) -> None:
        promised = max((end for when, end in self.durable if when <= position), default=0)
        logs, log = self.start(CrashFileSystem(disk), disk)
        try:
            self._check_log(log, promised, f"after operation {position}, killed: {killed}: ")
            names = {path.name for path in (disk / str(KEYED)).iterdir()}
            assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
            log.flush()
            clean(log)
            self._check_log(log, promised, f"cleaned again after operation {position}, killed: {killed}: ")
        finally:
            logs.abandon()
        # The next start finds what recovery has made, unchanged.
        logs, log = self.start(CrashFileSystem(disk), disk)
        try:
            self._check_log(log, promised, f"the second start after operation {position}, killed: {killed}: ")
        finally:
            logs.abandon()
        shutil.rmtree(disk)

    def _check_log(self, log: Log, promised: int, where: str) -> None:
        assert promised <= log.log_end_offset <= len(self.written), where
        found = {record.offset: (record.key, record.value) for record in read_all(log)}
        offsets = [record.offset for record in read_all(log)]
        assert offsets == sorted(set(offsets)), where + "offsets twice or out of order"
        assert all(self.written[offset] == row for offset, row in found.items()), where + "another record"
        newest = {key: offset for offset, (key, _) in enumerate(self.written[: log.log_end_offset])}
        lost = {offset for key, offset in newest.items() if offset not in found}
        assert not lost, where + f"the newest records at {sorted(lost)} are gone"
        # Lookups go through the indexes.
        for offset in range(0, log.log_end_offset, 7):
            at = read_all(log, offset)
            assert [record.offset for record in at] == [known for known in offsets if known >= offset], where
