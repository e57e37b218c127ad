"""Logs for tests: one directory, a clock that the test moves, batches with as many records as asked for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from kbroker._core.log.directory import LogDirectory
from kbroker._core.log.segment_list import SegmentHandle
from kbroker.fs import FileSystem, RealFileSystem
from kbroker.model import NO_LEADER_EPOCH, TopicPartition
from kbroker.protocol.records import Record, encode_batch, read_batches
from kbroker.storage.log import Log
from kbroker.storage.log_context import LogContext
from kbroker.storage.open_segments import OpenSegments
from kbroker.storage.options import LogOptions

TOPIC_PARTITION = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0)


@dataclass
class ManualClock:
    """A clock that stands still until the test moves it."""

    now_ms: int = 1_700_000_000_000
    set_by_ms: int = 0
    """How far the wall clock was set, in ms. The monotonic clock is not affected."""

    def wall_ms(self) -> int:
        return self.now_ms + self.set_by_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000


@dataclass
class LogHome:
    """One log directory with one log in it, opened and reopened by the test."""

    path: Path
    fs: FileSystem = field(default_factory=RealFileSystem)
    clock: ManualClock = field(default_factory=ManualClock)
    options: LogOptions = field(default_factory=LogOptions)
    seed: int = 0
    topic_partition: TopicPartition = TOPIC_PARTITION

    def __post_init__(self) -> None:
        self.start_offset = 0
        self.recovery_point = 0
        self.known_epoch = NO_LEADER_EPOCH
        self.removed: list[tuple[list[SegmentHandle], list[str]]] = []
        self.directory = LogDirectory(str(self.path))
        self.open_segments = OpenSegments(2)
        self.context = LogContext(
            self.fs, self.clock, random.Random(self.seed), self.open_segments.add, self._start_moved, self._remove
        )
        self._logs: list[Log] = []

    @property
    def log_path(self) -> Path:
        return self.path / str(self.topic_partition)

    def create(self) -> Log:
        log = Log.create(str(self.log_path), self.topic_partition, TOPIC_ID, self.options, self.directory, self.context)
        self._logs.append(log)
        return log

    def reopen(self, *, clean: bool) -> Log:
        """Abandon the log, and open it as a new process does that is alone."""
        log = self.find(clean=clean)
        log.open()
        return log

    def find(self, *, clean: bool) -> Log:
        """Abandon the log and return it as a new process finds it, not open."""
        self.abandon()
        self.directory = LogDirectory(str(self.path))
        log = Log(
            str(self.log_path), self.topic_partition, TOPIC_ID, self.options, self.directory, self.context,
            is_clean=clean, recovery_point=self.recovery_point, log_start_offset=self.start_offset,
            known_epoch=self.known_epoch,
        )  # fmt: skip
        self._logs.append(log)
        return log

    def abandon(self) -> None:
        """Leave the log as a killed process does: write nothing, only close descriptors."""
        for log in self._logs:
            log.state.close()
        self._logs.clear()
        self.flush_requested()

    def flush_requested(self) -> None:
        """Do every flush that was asked for, and return when all are done."""
        self.directory.stop_flushers()  # or run_flusher would wait for more
        self.directory.run_flusher()

    def _start_moved(self, directory: LogDirectory) -> None:
        self.start_offset = self._logs[-1].checkpointed_start_offset

    def _remove(self, delay_ms: int, handles: list[SegmentHandle], paths: list[str]) -> None:
        self.removed.append((handles, paths))

    def unlink_removed(self) -> None:
        """Unlink removed files, as it is done after file.delete.delay.ms."""
        for _, paths in self.removed:
            for path in paths:
                Path(path).unlink(missing_ok=True)
        self.removed.clear()


def batch_of(values: Sequence[bytes], timestamp: int = 1_700_000_000_000, **fields: int) -> bytes:
    """Return a batch as a producer sends it. Record i has the timestamp `timestamp` + i."""
    return encode_batch([(timestamp + at, None, value) for at, value in enumerate(values)], **fields)


def read_all(log: Log, offset: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Return every record from `offset` (None: the log's start) to the end, as a consumer gets them."""
    offset = log.log_start_offset if offset is None else offset
    found: list[Record] = []
    while offset < log.high_watermark:
        data = log.read(offset, max_bytes)
        if not data:
            break
        for batch in read_batches(data):
            found += [record for record in batch.records() if record.offset >= offset]
            # The batch says where the next one begins: compaction may have taken its last records.
            offset = batch.info.last_offset + 1
    return found
