"""One log directory while a broker uses it: its logs, its flusher threads and its checkpoints."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable
from uuid import UUID

from kbroker._core.log.directory import LogDirectory
from kbroker.errors import DiskDamaged, KbrokerError
from kbroker.fs import FileSystem, read_file
from kbroker.model import NO_LEADER_EPOCH, TopicPartition
from kbroker.storage import checkpoints
from kbroker.storage import directory as directories
from kbroker.storage.cleaner_checkpoint import CleanerCheckpoint
from kbroker.storage.flush import Flushers
from kbroker.storage.log import Log
from kbroker.storage.log_context import LogContext
from kbroker.storage.options import NEVER, LogOptions
from kbroker.storage.segment import Progress

logger = logging.getLogger("kbroker.storage")


class OpenDirectory:
    """One log directory. `lock` is the log manager's lock: the manager adds and removes logs.

    `lost`: the logs that are lost and not made anew yet, in this directory or another. The manager changes it.
    `is_member`: the broker is a member of a cluster, so high watermarks are behind the logs' ends.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        flusher_threads: int,
        lock: threading.RLock,
        lost: Collection[TopicPartition],
        *,
        is_member: bool,
    ):
        self.path = path
        self.directory = LogDirectory(path)
        self.flushers = Flushers(self.directory, flusher_threads)
        self.cleaned = CleanerCheckpoint(fs, path)
        self.is_clean = False
        """Whether the directory was stopped cleanly before this start."""
        self._fs = fs
        self._is_member = is_member
        self._lock = lock
        self._lost = lost
        self._logs: dict[TopicPartition, Log] = {}
        self._departed: set[TopicPartition] = set()
        """Logs that are gone and may still be in the checkpoints."""
        self._recovery_points: dict[TopicPartition, int] | None = None
        """None: the checkpoint was lost."""
        self._start_offsets: dict[TopicPartition, int] = {}
        """What the checkpoint said at the start."""
        self._stored_start_offsets: dict[TopicPartition, int] = {}
        """What it says now. Guarded by `_checkpoint_lock`."""
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._stored_high_watermarks: dict[TopicPartition, int] | None = None
        """What this process has written to replication-offset-checkpoint; None: nothing yet."""
        self._device: tuple[int, int] | None = None
        """Device and inode of the directory when it was opened; None if unknown."""
        self._checkpoint_lock = threading.Lock()

    def open(self, node_id: int, cluster_id: str) -> None:
        """Read the directory's identity, its clean mark and its checkpoints. Raises WrongDirectory, OSError."""
        directories.ensure_meta_properties(self._fs, self.path, node_id, cluster_id)
        entries = set(self._fs.list_directory(self.path))
        is_clean = directories.take_clean_mark(self._fs, self.path, entries)
        self._recovery_points = self._load_recovery_points(entries)
        otherwise = "logs start with their first segments, records deleted from it return"
        self._start_offsets = self._load_checkpoint(checkpoints.LOG_START_OFFSETS, otherwise) or {}
        self._stored_start_offsets = self._start_offsets
        if self._is_member:
            otherwise = "high watermarks begin at the logs' starts, and move when the other replicas are known"
            self._high_watermarks = self._load_checkpoint(checkpoints.HIGH_WATERMARKS, otherwise) or {}
        self.cleaned.load(entries)
        # Without recovery points a clean mark says nothing about the logs.
        self.is_clean = is_clean and self._recovery_points is not None
        self._device = self._find_device() if self._fs.passthrough else None

    def _load_recovery_points(self, entries: set[str]) -> dict[TopicPartition, int] | None:
        path = f"{self.path}/{checkpoints.RECOVERY_POINTS}"
        # Kafka makes the file empty; an empty file says nothing.
        if checkpoints.RECOVERY_POINTS in entries and read_file(self._fs, path):
            return self._load_checkpoint(checkpoints.RECOVERY_POINTS, "every log is recovered from its start")
        if not any(directories.parse_partition_directory(name) for name in entries):
            # From now on the file exists: if it is missing later, it was lost.
            checkpoints.store_offsets(self._fs, path, {})
            return {}
        logger.warning("%s is not there or empty; every log is recovered from its start", path)
        return None

    def _load_checkpoint(self, name: str, otherwise: str) -> dict[TopicPartition, int] | None:
        try:
            return checkpoints.load_offsets(self._fs, f"{self.path}/{name}")
        except DiskDamaged as damage:
            logger.error("%s; %s", damage, otherwise)
            return None

    def _find_device(self) -> tuple[int, int] | None:
        """Return device and inode of the directory; None if the disk does not tell."""
        try:
            found = os.stat(self.path)  # noqa: PTH116
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def is_missing(self) -> bool:
        """Whether the directory was removed or unmounted since it was opened."""
        return self._device is not None and self._find_device() != self._device

    # --- logs

    @property
    def log_count(self) -> int:
        return len(self._logs)

    def logs(self) -> list[Log]:
        with self._lock:
            return list(self._logs.values())

    def found_log(
        self,
        path: str,
        topic_partition: TopicPartition,
        topic_id: UUID,
        options: LogOptions,
        context: LogContext,
        progress: Progress,
        known_epoch: int = NO_LEADER_EPOCH,
    ) -> Log:
        """Return a log that is on disk, not opened yet. `known_epoch` as in `Log`."""
        return Log(
            path,
            topic_partition,
            topic_id,
            options,
            self.directory,
            context,
            is_clean=self.is_clean,
            recovery_point=(self._recovery_points or {}).get(topic_partition, 0),
            log_start_offset=self._start_offsets.get(topic_partition, 0),
            high_watermark=self._high_watermarks.get(topic_partition, 0),
            progress=None if self.is_clean else progress,
            gaps_below=NEVER if self._recovery_points is None else self.cleaned.get(topic_partition) or 0,
            known_epoch=known_epoch,
        )

    def add(self, log: Log) -> None:
        """Add a log. The caller holds the manager's lock."""
        self._logs[log.topic_partition] = log

    def arrives(self, log: Log) -> None:
        """Add a log that moves here, and write the checkpoints with it. Raises OSError."""
        with self._lock:
            self._logs[log.topic_partition] = log
        try:
            self.write_checkpoints()
        except OSError:
            with self._lock:
                del self._logs[log.topic_partition]
            raise

    def remove(self, topic_partition: TopicPartition) -> None:
        """Remove a log that is deleted or that the cluster does not know. The caller holds the manager's lock."""
        self._logs.pop(topic_partition, None)
        self._departed.add(topic_partition)

    def remove_missing(self) -> None:
        """Note, once every log was found, that other logs in the checkpoints are gone."""
        told_of = {*(self._recovery_points or ()), *self._start_offsets, *self.cleaned.known()}
        self._departed |= told_of - self._logs.keys()

    def may_mistake(self, topic_partition: TopicPartition) -> bool:
        """Return whether the checkpoints may hold entries of an earlier log of that name."""
        return topic_partition in self._departed

    def close_logs(self, deadline_s: float, threads: int) -> bool:
        """Close every log. False if one was not closed by `deadline_s` (`time.monotonic`) or has to be recovered."""
        waiting = self.logs()
        failed: list[Log] = []

        def close_some() -> None:
            while True:
                try:
                    log = waiting.pop()
                except IndexError:
                    return
                try:
                    if time.monotonic() > deadline_s or not log.shut():
                        failed.append(log)
                except KbrokerError as error:
                    logger.error("%s cannot be closed: %s", log, error)
                    failed.append(log)
                except Exception:
                    logger.exception("%s cannot be closed", log)
                    failed.append(log)

        closers = [threading.Thread(target=close_some, name="log-closer") for _ in range(max(1, threads))]
        for thread in closers:
            thread.start()
        for thread in closers:
            thread.join()
        return not failed

    # --- checkpoints

    def write_checkpoints(self) -> None:
        """Write the checkpoints: up to where each log is flushed and visible, and where it starts. Raises OSError.

        Of a log that another thread is changing, and whose leader epochs are not stored, what was written stays.
        """
        with self._checkpoint_lock:
            departed = set(self._departed)
            logs = self.logs()
            points = {log.topic_partition: log.recovery_point for log in logs}
            busy = _settle_epochs(logs)
            for log in busy:
                points[log.topic_partition] = min(points[log.topic_partition], log.written_recovery_point)
            self._store(checkpoints.RECOVERY_POINTS, points)
            for log in logs:
                log.written_recovery_point = points[log.topic_partition]
            self._store_high_watermarks()
            self._store_start_offsets(logs, busy)
            self.cleaned.keep_only(points)
            self._departed -= departed

    def write_start_offsets(self, moved: Collection[Log] = ()) -> None:
        """Write log-start-offset-checkpoint: where each log starts. What is busy is treated as in `write_checkpoints`.

        Raises OSError; EAGAIN if one of `moved` is busy, whose starts are to be written.
        """
        with self._checkpoint_lock:
            logs = self.logs()
            busy = _settle_epochs(logs)
            for log in moved:
                if log in busy:
                    raise OSError(errno.EAGAIN, f"leader epochs of {log} are not written down yet")
            self._store_start_offsets(logs, busy)

    def write_high_watermarks(self) -> None:
        """Write replication-offset-checkpoint: up to where each log is replicated. Raises OSError."""
        with self._checkpoint_lock:
            self._store_high_watermarks()

    def has_noted_lost(self, topic_partitions: Iterable[TopicPartition]) -> bool:
        """Return whether replication-offset-checkpoint says of all these partitions that their logs are lost."""
        stored = self._stored_high_watermarks or {}
        return all(stored.get(each) == NEVER for each in topic_partitions)

    def _store_high_watermarks(self) -> None:
        with self._lock:
            marks = dict.fromkeys(self._lost, NEVER)
            logs = list(self._logs.values())
        marks |= {log.topic_partition: log.checkpointed_high_watermark for log in logs}
        if marks != self._stored_high_watermarks:
            self._store(checkpoints.HIGH_WATERMARKS, marks)
            self._stored_high_watermarks = marks

    def _store_start_offsets(self, logs: list[Log], busy: Collection[Log]) -> None:
        starts: dict[TopicPartition, int] = {}
        for log in logs:
            at = log.topic_partition
            offset = self._stored_start_offsets.get(at, 0) if log in busy else log.checkpointed_start_offset
            if offset > 0:
                starts[at] = offset
        self._store(checkpoints.LOG_START_OFFSETS, starts)
        self._stored_start_offsets = starts

    def _store(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        checkpoints.store_offsets(self._fs, f"{self.path}/{name}", offsets)


def _settle_epochs(logs: list[Log]) -> set[Log]:
    """Store leader epochs before a checkpoint builds on them. Returns the busy logs, whose epochs are not stored."""
    return {log for log in logs if not log.settle_epochs()}
