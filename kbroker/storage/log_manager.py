"""All logs of a broker and the directories they are in.

Starting reads the names in each directory and its checkpoints, nothing more: a log is opened by its first use. After an
unclean stop the logs are also recovered in the background, so that nobody has to wait for it later; none serves before.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from kbroker._core.log_directory import LogDirectory
from kbroker._core.registry import Registry
from kbroker._core.segment_list import SegmentHandle
from kbroker.clock import Clock, SystemClock
from kbroker.errors import DiskDamaged, ErrorCode, KbrokerError, ProtocolError, StorageFailed
from kbroker.fs import FileSystem, RealFileSystem, read_file
from kbroker.model import TopicPartition
from kbroker.storage import checkpoints
from kbroker.storage import directory as directories
from kbroker.storage import segment as names
from kbroker.storage.cleaner import LogCleaner
from kbroker.storage.cleaner_checkpoint import CleanerCheckpoint
from kbroker.storage.flush import Flushers, request_due_flushes
from kbroker.storage.log import Log
from kbroker.storage.log_context import DISK_ERRORS, LogContext
from kbroker.storage.open_segments import OpenSegments
from kbroker.storage.options import LogOptions, StorageOptions
from kbroker.storage.retention import PoliciesFor, policies_for
from kbroker.storage.scheduler import Scheduler

logger = logging.getLogger("kbroker.storage")

Resolve = Callable[[TopicPartition], "tuple[UUID, LogOptions] | None"]
"""What the cluster knows of a partition found on disk: its topic's id and options; None: nothing."""

DirectoryFailed = Callable[[str, "list[TopicPartition]"], None]
"""Hears of a log directory that is offline, and of the partitions in it."""

_READERS_WAIT_MS = 1000


@dataclass(slots=True)
class _Home:
    """One log directory."""

    path: str
    directory: LogDirectory
    flushers: Flushers
    is_clean: bool
    recovery_points: dict[TopicPartition, int] | None
    """None: they are lost."""
    start_offsets: dict[TopicPartition, int]
    cleaned: CleanerCheckpoint
    device: tuple[int, int] | None = None
    """What it was when it was opened; None where it cannot be asked."""
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    departed: set[TopicPartition] = field(default_factory=set)
    """Logs that were here when the checkpoints were written last."""
    checkpoint_lock: threading.Lock = field(default_factory=threading.Lock)


class LogManager:
    """Owns the log directories from `start` to `stop`."""

    def __init__(
        self,
        options: StorageOptions,
        *,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        randomness: random.Random | None = None,
        policies_for: PoliciesFor = policies_for,
    ):
        self.options = options
        self._policies_for = policies_for
        self.registry = Registry()
        self.strays: dict[TopicPartition, str] = {}
        """Partitions on disk that the cluster does not know, and where they are. They are left alone."""
        self._fs = fs or RealFileSystem()
        self._clock = clock or SystemClock()
        self._random = randomness or random.Random()
        # Taken again by its holder when a directory fails while a log is made in it.
        self._lock = threading.RLock()
        self._locks: dict[str, directories.DirectoryLock] = {}
        self._left_out: dict[str, str] = {}
        self._on_directory_failed: DirectoryFailed | None = None
        self._homes: list[_Home] = []
        self._logs: dict[TopicPartition, Log] = {}
        self._open_segments = OpenSegments(options.max_open_segments)
        self._scheduler = Scheduler(self._clock, "log-cleaner")
        self._context = LogContext(
            self._fs, self._clock, self._random, self._open_segments.add, self._store_start_offsets, self._remove_later,
            options.producer_id_expiration_ms, self._store_recovery_points,
        )  # fmt: skip
        self._is_stopping = threading.Event()
        self._recoverers: list[threading.Thread] = []
        self._progress = _RecoveryProgress()
        self.cleaner = LogCleaner(options.cleaner, self.logs, lambda log: self._home_of(log).cleaned, self._clock)

    # --- start and stop

    def take_directories(self) -> directories.MetaProperties | None:
        """Make and lock the directories, before anything in them is read or changed; whose they say that they are.

        Those that the disk refuses are left out while others are good. Raises DirectoryInUse, WrongDirectory,
        StorageFailed.
        """
        found: list[directories.MetaProperties] = []
        try:
            for path in (each.rstrip("/") or "/" for each in self.options.directories):
                try:
                    directories.make_directory(self._fs, path)
                    lock = directories.DirectoryLock(path)
                    self._locks[path] = lock
                    meta = directories.load_meta_properties(self._fs, path)
                except (OSError, StorageFailed) as error:
                    self._leave_out(path, error)
                    continue
                if meta is not None:
                    found.append(meta)
            self._refuse_if_none_is_left()
        except BaseException:
            self._release()
            raise
        if not found:
            return None
        return directories.MetaProperties(
            next((meta.node_id for meta in found if meta.node_id is not None), None),
            next((meta.cluster_id for meta in found if meta.cluster_id), None),
            None,
        )

    def _leave_out(self, path: str, error: Exception) -> None:
        """The disk refuses a directory: its partitions are offline until the next start."""
        lock = self._locks.pop(path, None)
        if lock is not None:
            lock.release()
        reason = directories.reason_of(error) if isinstance(error, OSError) else str(error)
        self._left_out[path] = reason if path in reason else f"log directory {path}: {reason}"

    def _refuse_if_none_is_left(self) -> None:
        if not self._locks:
            raise StorageFailed("; ".join(self._left_out.values()) + "; no log directory can be used")

    @property
    def usable_directories(self) -> list[str]:
        """Those that are taken, in the order of log.dirs."""
        return list(self._locks)

    @property
    def left_out(self) -> list[str]:
        """For each directory that the disk refused at the start, the reason."""
        return list(self._left_out.values())

    def start(self, resolve: Resolve, node_id: int = 0, cluster_id: str = "", *, background: bool = True) -> None:
        """Find the logs in the directories, taking these if that was not done. `background`: run the cleaner's thread.

        Raises DirectoryInUse, WrongDirectory, StorageFailed.
        """
        self._progress = _RecoveryProgress()
        if not self._locks:
            self.take_directories()
        try:
            for path in list(self._locks):
                try:
                    self._homes.append(self._open_directory(path, node_id, cluster_id))
                except OSError as error:
                    self._leave_out(path, error)
            self._refuse_if_none_is_left()
            for path, reason in self._left_out.items():
                self._homes.append(self._failed_home(path, reason))
            for home in self._homes:
                if not home.directory.is_offline:
                    self._find_logs(home, resolve)
        except BaseException:
            self._release()
            raise
        for home in self._homes:
            home.flushers.start()
        self._progress.found(sum(len(home.logs) for home in self._homes if home.is_clean))
        if background:
            self._start_background()

    def _failed_home(self, path: str, reason: str) -> _Home:
        directory = LogDirectory(path)
        directory.fail(reason)
        return _Home(path, directory, Flushers(directory, 0), False, None, {}, CleanerCheckpoint(self._fs, path))

    def _open_directory(self, path: str, node_id: int, cluster_id: str) -> _Home:
        try:
            directories.ensure_meta_properties(self._fs, path, node_id, cluster_id)
            entries = set(self._fs.list_directory(path))
            is_clean = directories.take_clean_mark(self._fs, path, entries)
            recovery_points = self._load_recovery_points(path, entries)
            start_offsets = self._load_checkpoint(
                path,
                checkpoints.LOG_START_OFFSETS,
                "logs start with their first segments, records deleted from it return",
            )
            cleaned = CleanerCheckpoint(self._fs, path)
            cleaned.load(entries)
        except OSError as error:
            raise StorageFailed(f"log directory {path}: {directories.reason_of(error)}") from error
        directory = LogDirectory(path)
        home = _Home(
            path,
            directory,
            Flushers(directory, self.options.flusher_threads),
            # Without recovery points there is nothing that a clean mark could vouch for.
            is_clean and recovery_points is not None,
            recovery_points,
            start_offsets or {},
            cleaned,
            _device_of(path) if self._fs.passthrough else None,
        )
        directory.set_on_offline(lambda reason: self._directory_failed(home))
        return home

    def _load_recovery_points(self, path: str, entries: set[str]) -> dict[TopicPartition, int] | None:
        # Kafka makes it empty, and an empty one says nothing.
        if checkpoints.RECOVERY_POINTS in entries and read_file(self._fs, f"{path}/{checkpoints.RECOVERY_POINTS}"):
            return self._load_checkpoint(path, checkpoints.RECOVERY_POINTS, "every log is recovered from its start")
        if not any(directories.parse_partition_directory(name) for name in entries):
            # From now on it is there, so that one that is not has been lost.
            checkpoints.store_offsets(self._fs, f"{path}/{checkpoints.RECOVERY_POINTS}", {})
            return {}
        logger.warning(
            "%s/%s is not there or empty; every log is recovered from its start", path, checkpoints.RECOVERY_POINTS
        )
        return None

    def _load_checkpoint(self, path: str, name: str, otherwise: str) -> dict[TopicPartition, int] | None:
        try:
            return checkpoints.load_offsets(self._fs, f"{path}/{name}")
        except DiskDamaged as damage:
            logger.error("%s; %s", damage, otherwise)
            return None

    def _find_logs(self, home: _Home, resolve: Resolve) -> None:
        for name in sorted(self._fs.list_directory(home.path)):
            path = f"{home.path}/{name}"
            if name.endswith(names.DIRECTORY_DELETE):
                self._scheduler.once(0, partial(self._remove_directory, path, []))
                continue
            if name.endswith(names.DIRECTORY_STRAY):
                logger.warning("%s is left alone: it was put aside as nobody's, and can be removed", path)
                continue
            if name.endswith(names.DIRECTORY_FUTURE):
                logger.warning("%s is left alone: an unfinished copy of a log, which is whole where it was", path)
                continue
            topic_partition = directories.parse_partition_directory(name)
            if topic_partition is None:
                continue
            twin = self._logs.get(topic_partition)
            if twin is not None:
                raise directories.WrongDirectory(
                    f"{path} and {twin.path} are of the same partition; move the one that is not wanted away"
                )
            known = resolve(topic_partition)
            if known is None:
                logger.warning("%s is left alone: the cluster does not know this partition", path)
                self.strays[topic_partition] = path
                home.departed.add(topic_partition)
                continue
            topic_id, options = known
            self._add(home, self._open_found(home, path, topic_partition, topic_id, options))
        # What the checkpoints say of logs that are gone must not be taken for that of new ones with their names.
        home.departed |= ((home.recovery_points or {}).keys() | home.start_offsets.keys()) - home.logs.keys()

    def _open_found(
        self, home: _Home, path: str, topic_partition: TopicPartition, topic_id: UUID, options: LogOptions
    ) -> Log:
        return Log(
            path,
            topic_partition,
            topic_id,
            options,
            home.directory,
            self._context,
            is_clean=home.is_clean,
            recovery_point=(home.recovery_points or {}).get(topic_partition, 0),
            log_start_offset=home.start_offsets.get(topic_partition, 0),
            progress=None if home.is_clean else self._progress.read,
            may_have_gaps=home.recovery_points is None,
        )

    def _start_background(self) -> None:
        options = self.options
        scheduler = self._scheduler
        scheduler.every(options.retention_check_interval_ms, self.check_retention)
        scheduler.every(options.flush_scheduler_interval_ms, self.flush_due)
        scheduler.every(options.flush_checkpoint_interval_ms, self.write_checkpoints)
        scheduler.every(options.start_offset_checkpoint_interval_ms, self.write_start_offsets)
        scheduler.every(options.producer_id_expiration_check_interval_ms, self.expire_producers)
        scheduler.start()
        self.cleaner.start()
        unclean = [home for home in self._homes if not home.is_clean and home.logs and not home.directory.is_offline]
        self._progress.begin(sum(len(home.logs) for home in unclean))
        for home in unclean:
            self._start_recovery(home)

    def _start_recovery(self, home: _Home) -> None:
        waiting = list(home.logs.values())
        logger.info("%s was not stopped cleanly: recovering %d logs", home.path, len(waiting))
        for number in range(self.options.recovery_threads):
            thread = threading.Thread(target=self._recover, args=(waiting,), name=f"log-recovery-{number}", daemon=True)
            self._recoverers.append(thread)
            thread.start()

    def _recover(self, waiting: list[Log]) -> None:
        while not self._is_stopping.is_set():
            try:
                log = waiting.pop()
            except IndexError:
                return
            try:
                log.open()
            except KbrokerError as error:
                logger.error("%s cannot be recovered: %s", log, error)
            except Exception:
                logger.exception("%s cannot be recovered", log)
            self._progress.done()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Flush and close every log, write checkpoints and clean mark. What the time does not allow stays unclean."""
        deadline = time.monotonic() + timeout_s
        self._is_stopping.set()
        self.cleaner.stop(timeout_s)
        self._scheduler.stop()
        for thread in self._recoverers:
            thread.join(max(0.0, deadline - time.monotonic()))
        for home in self._homes:
            is_closed = self._close_logs(home, deadline)
            if home.directory.is_offline:
                continue
            try:
                with home.checkpoint_lock:
                    self._write_checkpoints(home)
                if is_closed:
                    directories.set_clean_mark(self._fs, home.path)
            except OSError as error:
                logger.error("%s: no clean stop: %s", home.path, error)
        self._release()

    def _close_logs(self, home: _Home, deadline: float) -> bool:
        """Whether all are closed and none has to be recovered."""
        waiting = list(home.logs.values())
        failed: list[Log] = []

        def close_some() -> None:
            while True:
                try:
                    log = waiting.pop()
                except IndexError:
                    return
                try:
                    if time.monotonic() > deadline or not log.shut():
                        failed.append(log)
                except KbrokerError as error:
                    logger.error("%s cannot be closed: %s", log, error)
                    failed.append(log)
                except Exception:
                    logger.exception("%s cannot be closed", log)
                    failed.append(log)

        count = max(1, self.options.flusher_threads)
        threads = [threading.Thread(target=close_some, name="log-closer") for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return not failed

    def abandon(self) -> None:
        """For tests of crashes: let go of directories and locks, write nothing down."""
        self._is_stopping.set()
        self.cleaner.stop()
        self._scheduler.stop()
        for home in self._homes:
            for log in home.logs.values():
                log.state.close()
        self._release()

    def _release(self) -> None:
        for home in self._homes:
            home.flushers.stop()
            # Through the compiled core the collector does not see that this leads back to the directory.
            home.directory.set_on_offline(None)
        self._homes.clear()
        for lock in self._locks.values():
            lock.release()
        self._locks.clear()

    # --- logs

    @property
    def producer_id_expiration_ms(self) -> int:
        """May be changed at any time; in force from the next look and the next opening of a log on."""
        return self._context.producer_id_expiration_ms

    @producer_id_expiration_ms.setter
    def producer_id_expiration_ms(self, value: int) -> None:
        self._context.producer_id_expiration_ms = value

    def get(self, topic_partition: TopicPartition) -> Log | None:
        return self._logs.get(topic_partition)

    def logs(self) -> list[Log]:
        with self._lock:
            return list(self._logs.values())

    def create(self, topic: str, topic_id: UUID, partition_id: int, options: LogOptions, *, is_new: bool = True) -> Log:
        """A new log in the directory with the fewest, or the one there is. Raises StorageFailed.

        Not `is_new`: there should be one. While a directory is offline it is taken to be there, and is offline too.
        """
        topic_partition = TopicPartition(topic, partition_id)
        for home in self._homes:
            if topic_partition in home.departed and not home.directory.is_offline:
                # What the checkpoints say of an earlier log of that name must not be taken for this one's.
                with home.checkpoint_lock:
                    self._write_checkpoints(home)
        with self._lock:
            log = self._logs.get(topic_partition)
            if log is not None:
                if log.topic_id != topic_id:
                    raise ProtocolError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic_partition} has id {log.topic_id}")
                return log
            stray = self.strays.pop(topic_partition, None)
            try:
                if stray is not None:
                    home, found = self._settle_stray(stray, topic_partition, topic_id, options)
                    if found is not None:
                        return self._add(home, found)
                home = self._offline_home_of_old(is_new) or self._emptiest()
                if home.directory.is_offline:
                    path = f"{home.path}/{topic_partition}"
                    return self._add(home, Log(path, topic_partition, topic_id, options, home.directory, self._context))
                path = f"{home.path}/{topic_partition}"
                return self._add(
                    home, Log.create(path, topic_partition, topic_id, options, home.directory, self._context)
                )
            except OSError as error:
                raise StorageFailed(f"{topic_partition} cannot be created: {error}") from error

    def _settle_stray(
        self, path: str, topic_partition: TopicPartition, topic_id: UUID, options: LogOptions
    ) -> tuple[_Home, Log | None]:
        """A directory of that name was on disk: it is the log if it has the topic's id, else it steps aside."""
        home = next(home for home in self._homes if path.startswith(home.path + "/"))
        if checkpoints.load_topic_id(self._fs, f"{path}/{checkpoints.PARTITION_METADATA}") == topic_id:
            return home, self._open_found(home, path, topic_partition, topic_id, options)
        target = f"{home.path}/{directories.stray_directory_name(topic_partition, self._random)}"
        logger.warning("%s is of another topic with the same name; it is kept as %s", path, target)
        self._fs.rename(path, target)
        return home, None

    def _offline_home_of_old(self, is_new: bool) -> _Home | None:
        return None if is_new else next((home for home in self._homes if home.directory.is_offline), None)

    def _emptiest(self) -> _Home:
        online = [home for home in self._homes if not home.directory.is_offline]
        if not online:
            raise StorageFailed("every log directory is offline")
        return min(online, key=lambda home: len(home.logs))

    def _add(self, home: _Home, log: Log) -> Log:
        home.logs[log.topic_partition] = log
        self._logs[log.topic_partition] = log
        self.registry.add(log.state)
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take the log out of service; its files go in the background. No-op without one. Raises StorageFailed."""
        with self._lock:
            log = self._logs.pop(topic_partition, None)
            if log is None:
                return
            home = self._home_of(log)
            del home.logs[topic_partition]
            home.departed.add(topic_partition)
        self.registry.remove(log.state)
        self.cleaner.forget(log)
        path, handles = log.delete()
        self._scheduler.once(log.options.file_delete_delay_ms, partial(self._remove_directory, path, handles))

    def _home_of(self, log: Log) -> _Home:
        return next(home for home in self._homes if home.directory is log.directory)

    # --- what the cleaner does

    def check_retention(self) -> None:
        """Delete the segments that the topics' settings are done with."""
        # Where not all of the old names are gone after a power cut, recovery must not take the gap for the log's end.
        self.write_checkpoints()
        for log in self.logs():
            if self._is_stopping.is_set():
                return
            try:
                if not log.directory.is_offline:
                    log.delete_old_segments(self._policies_for(log.options))
            except KbrokerError as error:
                if log.state.state != "deleted":
                    logger.error("%s: retention: %s", log, error)

    def flush_due(self) -> None:
        """Ask for a flush of what is older than flush.ms; close segments that were waiting for one."""
        self._open_segments.trim()
        self._notice_missing_directories()
        request_due_flushes(self.logs(), self._clock.wall_ms())

    def _notice_missing_directories(self) -> None:
        """A directory that was removed or unmounted takes what is written to its open files with it."""
        for home in self._homes:
            if home.device is not None and not home.directory.is_offline and _device_of(home.path) != home.device:
                home.directory.fail("it was removed or unmounted")

    def write_checkpoints(self) -> None:
        """Write down up to where each log is flushed and visible."""
        self._in_each_home(self._write_checkpoints)

    def write_start_offsets(self) -> None:
        """Write down where each log starts."""
        self._in_each_home(lambda home: self._write_start_offsets(home, self._logs_in(home)))

    def _in_each_home(self, write: Callable[[_Home], None]) -> None:
        for home in self._homes:
            if not home.directory.is_offline:
                try:
                    with home.checkpoint_lock:
                        write(home)
                except OSError as error:
                    logger.error("%s: checkpoints: %s", home.path, error)
                    if error.errno in DISK_ERRORS:
                        home.directory.fail(f"checkpoints: {error}")

    def _write_checkpoints(self, home: _Home) -> None:
        """`checkpoint_lock` is held."""
        departed = set(home.departed)
        logs = self._logs_in(home)
        points = {log.topic_partition: log.recovery_point for log in logs}
        checkpoints.store_offsets(self._fs, f"{home.path}/{checkpoints.RECOVERY_POINTS}", points)
        marks = {log.topic_partition: log.state.high_watermark for log in logs if log.is_open}
        checkpoints.store_offsets(self._fs, f"{home.path}/{checkpoints.HIGH_WATERMARKS}", {**points, **marks})
        self._write_start_offsets(home, logs)
        home.cleaned.keep_only(points)
        home.departed -= departed

    def _store_start_offsets(self, log: Log) -> None:
        home = self._home_of(log)
        with home.checkpoint_lock:
            self._write_start_offsets(home, self._logs_in(home))

    def _store_recovery_points(self, log: Log) -> None:
        home = self._home_of(log)
        with home.checkpoint_lock:
            self._write_checkpoints(home)

    def _write_start_offsets(self, home: _Home, logs: Iterable[Log]) -> None:
        starts = {log.topic_partition: offset for log in logs if (offset := log.checkpointed_start_offset) > 0}
        checkpoints.store_offsets(self._fs, f"{home.path}/{checkpoints.LOG_START_OFFSETS}", starts)

    def _logs_in(self, home: _Home) -> list[Log]:
        with self._lock:
            return list(home.logs.values())

    def expire_producers(self) -> None:
        """Forget idempotent producers that have been silent for producer.id.expiration.ms."""
        for log in self.logs():
            log.expire_producers()

    def run_due_jobs(self) -> int:
        """For tests that move the clock: what the cleaner's thread would do now."""
        return self._scheduler.run_due()

    def _remove_later(self, log: Log, handles: list[SegmentHandle], paths: list[str]) -> None:
        self._scheduler.once(log.options.file_delete_delay_ms, lambda: self._remove_files(handles, paths))

    def _remove_files(self, handles: list[SegmentHandle], paths: list[str]) -> None:
        if any(handle.in_use for handle in handles):
            self._scheduler.once(_READERS_WAIT_MS, lambda: self._remove_files(handles, paths))
            return
        for path in paths:
            try:
                self._fs.unlink(path)
            except FileNotFoundError:
                pass

    def _remove_directory(self, path: str, handles: list[SegmentHandle]) -> None:
        if any(handle.in_use for handle in handles):
            self._scheduler.once(_READERS_WAIT_MS, lambda: self._remove_directory(path, handles))
            return
        try:
            directories.remove_partition_directory(self._fs, path)
        except OSError as error:
            # What is left goes at the next start, or somebody looks what it is.
            logger.error("%s cannot be removed: %s", path, directories.reason_of(error))

    def _directory_failed(self, home: _Home) -> None:
        """On the thread that saw it, which may hold any lock: whoever else is to know hears of it on another one."""
        logs = self._logs_in(home)
        for log in logs:
            log.state.go_offline()
        call = self._on_directory_failed
        if call is not None:
            failed = [log.topic_partition for log in logs]
            threading.Thread(target=call, args=(home.path, failed), name="directory-failed", daemon=True).start()

    def set_on_directory_failed(self, call: DirectoryFailed) -> None:
        """It is called for each directory that fails, on a thread of its own; and for those that have, now."""
        self._on_directory_failed = call
        for home in self._homes:
            if home.directory.is_offline:
                call(home.path, [log.topic_partition for log in self._logs_in(home)])

    @property
    def was_stopped_cleanly(self) -> bool:
        """Whether nothing that was acknowledged before this start can have been lost. After `start`."""
        return all(home.is_clean or not home.logs for home in self._homes)

    @property
    def offline_directories(self) -> list[str]:
        return [home.path for home in self._homes if home.directory.is_offline]

    @property
    def directories(self) -> list[LogDirectory]:
        return [home.directory for home in self._homes]

    @property
    def is_stalled(self) -> bool:
        """Whether a directory makes writers wait, so that appends are better not made on a processor's thread."""
        return any(home.directory.is_stalled for home in self._homes)


def _device_of(path: str) -> tuple[int, int] | None:
    """What a directory is besides its name."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _RecoveryProgress:
    """Tells people how far recovery is, at most every few seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._done = 0
        self._read_bytes = 0
        self._began = self._told = time.monotonic()

    def found(self, count: int) -> None:
        """So many need no recovery: they can serve."""
        if count:
            logger.info("Loaded %d logs in %d ms, stopped cleanly; each is opened by its first use", count, self._ms())

    def begin(self, count: int) -> None:
        with self._lock:
            self._total += count

    def done(self) -> None:
        with self._lock:
            self._done += 1
            self._maybe_tell(is_last=self._done == self._total)

    def read(self, size: int) -> None:
        with self._lock:
            self._read_bytes += size
            self._maybe_tell(is_last=False)

    def _maybe_tell(self, *, is_last: bool) -> None:
        now = time.monotonic()
        if is_last or now - self._told > 5:
            self._told = now
            logger.info("recovery: %d of %d logs, %.1f GB read", self._done, self._total, self._read_bytes / 1e9)
        if is_last:
            logger.info("Loaded %d logs in %d ms, recovered", self._total, self._ms())

    def _ms(self) -> int:
        """Since the directories were opened, as Kafka counts its own line of that name."""
        return int((time.monotonic() - self._began) * 1000)
