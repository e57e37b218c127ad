"""All logs of a broker and the directories they are in.

A start reads the names in each directory and its checkpoints, nothing more: a log is opened by its first use. After an
unclean stop the logs are also recovered in the background, so that later requests need not wait for their recovery. No
log serves before it is recovered.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from uuid import UUID

from kbroker._core.log.directory import LogDirectory
from kbroker._core.log.partition_table import PartitionTable
from kbroker._core.log.producers import limit_memory
from kbroker.clock import Clock, SystemClock
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError, StorageFailed
from kbroker.fs import FileSystem, RealFileSystem
from kbroker.model import NO_LEADER_EPOCH, TopicPartition, topic_ids_differ
from kbroker.storage import checkpoints, file_names
from kbroker.storage import directory as directories
from kbroker.storage.cleaner import LogCleaner
from kbroker.storage.disk_space import CHECK_INTERVAL_MS, SpaceWatch, is_full
from kbroker.storage.failures import DISK_ERRORS
from kbroker.storage.flush import request_due_flushes
from kbroker.storage.locked_directories import LockedDirectories
from kbroker.storage.log import Log
from kbroker.storage.log_context import LogContext
from kbroker.storage.log_moves import LogMoves
from kbroker.storage.open_directory import OpenDirectory
from kbroker.storage.open_segments import OpenSegments
from kbroker.storage.options import LogOptions, StorageOptions
from kbroker.storage.recovery_progress import RecoveryProgress
from kbroker.storage.removals import Removals
from kbroker.storage.retention import PoliciesFor, policies_for
from kbroker.storage.scheduler import Scheduler

logger = logging.getLogger("kbroker.storage")

Resolve = Callable[[TopicPartition], "tuple[UUID, LogOptions] | None"]
"""Returns the topic id and options of a partition found on disk; None if the cluster does not know the partition."""
EpochOf = Callable[[TopicPartition], int]
"""Returns the leader epoch that the cluster has named last; NO_LEADER_EPOCH if that is not known yet."""

DirectoryFailed = Callable[[str, "list[TopicPartition]"], None]
"""Called with the path of a log directory that went offline, and the partitions in it."""

_is_stalled = attrgetter("directory.is_stalled")
"""Each request that appends asks this of every directory: a map of it costs less than a generator."""


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
        is_member: bool = False,
    ):
        """`is_member`: the broker is a member of a cluster, so a log waits for the role that the controller gives."""
        self.options = options
        limit_memory(options.producers_max_bytes)
        self._policies_for = policies_for
        self.partition_table = PartitionTable(is_member)
        self.strays: dict[TopicPartition, str] = {}
        """Partitions on disk that the cluster does not know, with their paths. They are left alone."""
        self._fs = fs or RealFileSystem()
        self._clock = clock or SystemClock()
        self._random = randomness or random.Random()
        # Reentrant: its holder takes it again if a directory fails while a log is made in it.
        self._lock = threading.RLock()
        self._directories = LockedDirectories(self._fs)
        self._on_directory_failed: DirectoryFailed | None = None
        self._homes: list[OpenDirectory] = []
        self._logs: dict[TopicPartition, Log] = {}
        self._lost: set[TopicPartition] = set()
        """Logs that should be there and are not, until they are made anew."""
        self._open_segments = OpenSegments(options.max_open_segments)
        self._scheduler = Scheduler(self._clock, "log-cleaner")
        self._removals = Removals(self._fs, self._scheduler)
        self._context = LogContext(
            self._fs,
            self._clock,
            self._random,
            self._open_segments.add,
            self._store_start_offsets,
            self._removals.remove_files_later,
            options.producer_id_expiration_ms,
            self._store_recovery_points,
            is_member=is_member,
        )
        self._space_watch = SpaceWatch(options.free_warning_percent)
        self._is_stopping = threading.Event()
        self._recoverers: list[threading.Thread] = []
        self._progress: RecoveryProgress
        self._epoch_of: EpochOf
        self.cleaner = LogCleaner(
            options.cleaner,
            lambda: [log for log in self.logs() if log.copy is None],
            lambda log: self._home_of(log.directory).cleaned,
            self._clock,
        )

        self.moves = LogMoves(self._fs, self._context, self._homes, self._lock, self._removals, self.cleaner.forget)

    # --- start and stop

    def lock_directories(self) -> directories.MetaProperties | None:
        """Make and lock the directories before anything in them is read or changed, and read their identity.

        Returns the node id and the cluster id that their meta.properties name; None if no directory has that file. A
        directory that the disk refuses is left out. Raises DirectoryInUse, WrongDirectory; StorageFailed if no
        directory is left.
        """
        return self._directories.lock(self.options.directories)

    @property
    def usable_directories(self) -> list[str]:
        """The directories that were made and locked, in the order of log.dirs."""
        return self._directories.usable

    @property
    def left_out(self) -> list[str]:
        """The reason for each directory that the disk refused at the start."""
        return list(self._directories.left_out.values())

    def start(
        self,
        resolve: Resolve,
        node_id: int = 0,
        cluster_id: str = "",
        *,
        epoch_of: EpochOf = lambda topic_partition: NO_LEADER_EPOCH,
        background: bool = True,
    ) -> None:
        """Find the logs in the directories; take the directories first if that was not done.

        `background` starts the scheduled jobs, the log cleaner and, after an unclean stop, the recovery of the logs.
        Raises DirectoryInUse, WrongDirectory, StorageFailed.
        """
        self._progress = RecoveryProgress()
        self._epoch_of = epoch_of
        if not self._directories.usable:
            self.lock_directories()
        try:
            for path in self._directories.usable:
                try:
                    self._homes.append(self._open_home(path, node_id, cluster_id))
                except OSError as error:
                    self._directories.leave_out(path, error)
            self._directories.refuse_if_none_is_left()
            for path, reason in self._directories.left_out.items():
                home = OpenDirectory(self._fs, path, 0, self._lock, self._lost, is_member=self._context.is_member)
                home.directory.fail(reason)
                self._homes.append(home)
            copies: list[tuple[OpenDirectory, str]] = []
            departed: set[TopicPartition] = set()
            for home in self._homes:
                if not home.directory.is_offline:
                    self._find_logs(home, resolve, copies, departed)
            for home, topic_partition in self.moves.settle(copies, departed, self._logs):
                self._find_log(home, f"{home.path}/{topic_partition}", topic_partition, resolve)
            for home in self._homes:
                home.remove_missing()
        except BaseException:
            self._release()
            raise
        for home in self._homes:
            home.flushers.start()
        self._progress.found(sum(home.log_count for home in self._homes if home.is_clean))
        if background:
            self._start_background()

    def _open_home(self, path: str, node_id: int, cluster_id: str) -> OpenDirectory:
        home = OpenDirectory(
            self._fs, path, self.options.flusher_threads, self._lock, self._lost, is_member=self._context.is_member
        )
        home.open(node_id, cluster_id)
        home.directory.set_on_offline(lambda reason: self._directory_failed(home))
        return home

    def _find_logs(
        self,
        home: OpenDirectory,
        resolve: Resolve,
        copies: list[tuple[OpenDirectory, str]],
        departed: set[TopicPartition],
    ) -> None:
        """Find the logs in one directory.

        Add what the last run has left there: to `copies` the names of copies of logs that move, to `departed` the
        partitions of which there is a directory of a deleted log.
        """
        for name in sorted(self._fs.list_directory(home.path)):
            path = f"{home.path}/{name}"
            topic_partition = directories.parse_partition_directory(name)
            if topic_partition is not None:
                self._find_log(home, path, topic_partition, resolve)
            elif name.endswith(file_names.DIRECTORY_DELETE):
                self._removals.remove_directory_later(0, (), path)
                deleted = directories.parse_departed_directory(name, file_names.DIRECTORY_DELETE)
                if deleted is not None:
                    departed.add(deleted)
            elif name.endswith(file_names.DIRECTORY_STRAY):
                logger.warning("%s is left alone: it was put aside as nobody's, and can be removed", path)
            elif name.endswith(file_names.DIRECTORY_FUTURE):
                copies.append((home, name))

    def _find_log(self, home: OpenDirectory, path: str, topic_partition: TopicPartition, resolve: Resolve) -> None:
        twin = self._logs.get(topic_partition)
        if twin is not None:
            raise directories.WrongDirectory(
                f"{path} and {twin.path} are of the same partition; move the one that is not wanted away"
            )
        known = resolve(topic_partition)
        if known is None:
            logger.warning("%s is left alone: the cluster does not know this partition", path)
            self.strays[topic_partition] = path
            home.remove(topic_partition)
            return
        topic_id, options = known
        epoch = self._epoch_of(topic_partition)
        found = home.found_log(path, topic_partition, topic_id, options, self._context, self._progress.read, epoch)
        self._add(home, found)

    def _start_background(self) -> None:
        options = self.options
        scheduler = self._scheduler
        scheduler.every(options.retention_check_interval_ms, self.check_retention)
        scheduler.every(options.flush_scheduler_interval_ms, self.flush_due)
        scheduler.every(options.flush_checkpoint_interval_ms, self.write_checkpoints)
        scheduler.every(options.start_offset_checkpoint_interval_ms, self.write_start_offsets)
        if self._context.is_member:
            scheduler.every(options.high_watermark_checkpoint_interval_ms, self.write_high_watermarks)
        scheduler.once(0, self.check_space)
        scheduler.every(CHECK_INTERVAL_MS, self.check_space)
        scheduler.every(options.producer_id_expiration_check_interval_ms, self.expire_producers)
        scheduler.start()
        self.cleaner.start()
        self.moves.start()
        self.moves.resume(self.get)
        unclean = [
            home for home in self._homes if not home.is_clean and home.log_count and not home.directory.is_offline
        ]
        self._progress.begin(sum(home.log_count for home in unclean))
        for home in unclean:
            self._start_recovery(home)

    def _start_recovery(self, home: OpenDirectory) -> None:
        waiting = home.logs()
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
        """Flush and close every log, then write the checkpoints and the clean mark of each directory.

        A directory with a log that could not be closed in time gets no clean mark.
        """
        deadline = time.monotonic() + timeout_s
        self._is_stopping.set()
        self.cleaner.stop(timeout_s)
        self.moves.stop()
        self._scheduler.stop()
        for thread in self._recoverers:
            thread.join(max(0.0, deadline - time.monotonic()))
        for home in self._homes:
            is_closed = home.close_logs(deadline, self.options.flusher_threads)
            if home.directory.is_offline:
                continue
            try:
                home.write_checkpoints()
                if is_closed:
                    directories.set_clean_mark(self._fs, home.path)
            except OSError as error:
                logger.error("%s: no clean stop: %s", home.path, error)
        self._release()

    def abandon(self) -> None:
        """Release directories and locks without writing anything, for tests of crashes."""
        self._is_stopping.set()
        self.cleaner.stop()
        self.moves.stop()
        self._scheduler.stop()
        for home in self._homes:
            for log in home.logs():
                log.state.close()
        self._release()

    def _release(self) -> None:
        for home in self._homes:
            home.flushers.stop()
            # The garbage collector cannot see this reference cycle, which goes through the compiled core.
            home.directory.set_on_offline(None)
        self._homes.clear()
        self._directories.release()

    # --- logs

    @property
    def producer_id_expiration_ms(self) -> int:
        """producer.id.expiration.ms. A change is in force from the next check and the next opening of a log on."""
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
        """Return the log of a partition; make one in the directory with the fewest logs if there is none.

        `is_new=False`: the partition should have a log already. If a directory is offline, the log is assumed to be in
        it, and is offline too; else a new log of a member is not complete. Raises ProtocolError (INCONSISTENT_TOPIC_ID)
        if the log has another topic id, both being known; StorageFailed if the log cannot be made.
        """
        topic_partition = TopicPartition(topic, partition_id)
        if is_new:
            self._forget_lost(topic_partition)
        elif self._context.is_member:
            self.expect((topic_partition,))
        for home in self._homes:
            if home.may_mistake(topic_partition) and not home.directory.is_offline:
                try:
                    home.write_checkpoints()
                except OSError as error:
                    raise StorageFailed(f"{topic_partition} cannot be created: {error}") from error
        with self._lock:
            log = self._logs.get(topic_partition)
            if log is not None:
                if topic_ids_differ(log.topic_id, topic_id):
                    raise ProtocolError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic_partition} has id {log.topic_id}")
                return log
            stray = self.strays.pop(topic_partition, None)
            try:
                if stray is not None:
                    home, found = self._settle_stray(stray, topic_partition, topic_id, options)
                    if found is not None:
                        return self._add(home, found)
                offline = None if is_new else self._offline_home
                home = offline or self.moves.preferred(topic_partition) or self._emptiest()
                is_lost = self._context.is_member and not is_new and not home.directory.is_offline
                if is_lost and not home.has_noted_lost((topic_partition,)):
                    raise StorageFailed(f"{topic_partition} is lost, and {home.path} cannot note that")
                make = Log if home.directory.is_offline else Log.create
                path = f"{home.path}/{topic_partition}"
                log = make(path, topic_partition, topic_id, options, home.directory, self._context)
                if is_lost:
                    log.note_lost()
                    self._lost.discard(topic_partition)
                return self._add(home, log)
            except OSError as error:
                raise StorageFailed(f"{topic_partition} cannot be created: {error}") from error

    def expect(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Note durably which of these logs are lost: they should be there. `create` then makes them anew.

        All of them are noted by one write. A directory that refuses it is logged, and `create` makes no log in it. If
        a directory is offline, all logs that are not found are taken to be in it.
        """
        if self._offline_home is not None:
            return
        with self._lock:
            lost = [each for each in topic_partitions if each not in self._logs and each not in self.strays]
            self._lost.update(lost)
        if not all(home.has_noted_lost(lost) for home in self._homes):
            self.write_high_watermarks()

    def _forget_lost(self, topic_partition: TopicPartition) -> None:
        with self._lock:
            if topic_partition in self._lost:
                self._lost.remove(topic_partition)
                for home in self._homes:
                    home.remove(topic_partition)

    def _settle_stray(
        self, path: str, topic_partition: TopicPartition, topic_id: UUID, options: LogOptions
    ) -> tuple[OpenDirectory, Log | None]:
        """Decide what becomes of a stray directory that has the partition's name.

        It becomes the partition's log if it has the topic's id; else it is renamed to `-stray`. Returns the log
        directory that it is in and the log, if it is one. Raises OSError.
        """
        home = next(home for home in self._homes if path.startswith(home.path + "/"))
        if checkpoints.load_topic_id(self._fs, f"{path}/{checkpoints.PARTITION_METADATA}") == topic_id:
            return home, home.found_log(path, topic_partition, topic_id, options, self._context, self._progress.read)
        target = f"{home.path}/{directories.stray_directory_name(topic_partition, self._random)}"
        logger.warning("%s is of another topic with the same name; it is kept as %s", path, target)
        self._fs.rename(path, target)
        return home, None

    @property
    def _offline_home(self) -> OpenDirectory | None:
        return next((home for home in self._homes if home.directory.is_offline), None)

    def _emptiest(self) -> OpenDirectory:
        online = [home for home in self._homes if not home.directory.is_offline]
        if not online:
            raise StorageFailed("every log directory is offline")
        return min(online, key=lambda home: home.log_count)

    def _add(self, home: OpenDirectory, log: Log) -> Log:
        home.add(log)
        self._logs[log.topic_partition] = log
        self.partition_table.add(log.state)
        return log

    def delete(self, topic_partition: TopicPartition) -> None:
        """Take the partition's log out of service; its files are removed in the background. No-op if it has no log.

        Raises StorageFailed.
        """
        with self._lock:
            log = self._logs.pop(topic_partition, None)
            if log is None:
                return
            self._home_of(log.directory).remove(topic_partition)
        self.partition_table.remove(log.state)
        self.cleaner.forget(log)
        self.moves.cancel(log)  # first: a copy without its log would be taken for the log
        path, handles = log.delete()
        self._removals.remove_directory_later(log.delete_delay_ms, handles, path)

    def _home_of(self, directory: LogDirectory) -> OpenDirectory:
        return next(home for home in self._homes if home.directory is directory)

    # --- scheduled jobs

    def check_retention(self) -> None:
        """Delete the segments that the topics' settings let go."""
        # A power cut may bring some deleted segments back: with these checkpoints, no recovery ends the log at the gap.
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

    def check_space(self) -> None:
        """Warn about directories whose disks run low on space."""
        self._space_watch.check(self.directories)

    def free_space(self) -> None:
        """Check retention now, if a directory is full, instead of at the next interval."""
        if any(home.directory.is_full for home in self._homes):
            self._scheduler.once(0, self.check_retention)

    def flush_due(self) -> None:
        """Ask for a flush of every log with records older than flush.ms; close segments that waited for a flush."""
        self._open_segments.trim()
        self._notice_missing_directories()
        request_due_flushes(list(self._context.flushed_by_time))

    def _notice_missing_directories(self) -> None:
        """Take directories offline that were removed or unmounted: what is written to their open files is lost."""
        for home in self._homes:
            if not home.directory.is_offline and home.is_missing:
                home.directory.fail("it was removed or unmounted")

    def write_checkpoints(self) -> None:
        """Write every directory's checkpoints: up to where each log is flushed and visible, and where it starts."""
        self._in_each_home(OpenDirectory.write_checkpoints)

    def write_high_watermarks(self) -> None:
        """Write replication-offset-checkpoint of every directory: the high watermarks, for a member's next start."""
        self._in_each_home(OpenDirectory.write_high_watermarks)

    def write_start_offsets(self) -> None:
        """Write log-start-offset-checkpoint of every directory: where each log starts."""
        self._in_each_home(OpenDirectory.write_start_offsets)

    def _in_each_home(self, write: Callable[[OpenDirectory], None]) -> None:
        for home in self._homes:
            if not home.directory.is_offline:
                try:
                    write(home)
                except OSError as error:
                    logger.error("%s: checkpoints: %s", home.path, error)
                    if error.errno in DISK_ERRORS:
                        home.directory.fail(f"checkpoints: {error}")

    def delete_records_before(self, offsets: Mapping[Log, int]) -> dict[Log, int | KbrokerError]:
        """Move the start of several logs, as `Log.delete_records_before`, with one checkpoint for each log directory.

        Returns for each log its start offset, or the error that kept it from being moved durably.
        """
        outcomes: dict[Log, int | KbrokerError] = {}
        moved: dict[OpenDirectory, dict[Log, int]] = {}
        for log, offset in offsets.items():
            try:
                is_to_write = log.move_start(offset)
                outcomes[log] = start = log.log_start_offset
                if is_to_write:
                    moved.setdefault(self._home_of(log.directory), {})[log] = start
            except KbrokerError as error:
                outcomes[log] = error
        for home, starts in moved.items():
            try:
                with next(iter(starts)).storage_errors:
                    home.write_start_offsets(starts)
            except StorageFailed as error:
                outcomes.update(dict.fromkeys(starts, error))
                continue
            for log, start in starts.items():
                log.note_durable_start(start)
        return outcomes

    def _store_start_offsets(self, directory: LogDirectory) -> None:
        self._home_of(directory).write_start_offsets()

    def _store_recovery_points(self, directory: LogDirectory) -> None:
        self._home_of(directory).write_checkpoints()

    def expire_producers(self) -> None:
        """Forget idempotent producers that have been silent for producer.id.expiration.ms."""
        for log in self.logs():
            log.expire_producers()

    def run_due_jobs(self) -> int:
        """Run the scheduled jobs that are due, on the caller's thread, for tests that move the clock."""
        return self._scheduler.run_due()

    def _directory_failed(self, home: OpenDirectory) -> None:
        """Take the logs of a failed directory offline, and report it.

        This runs on the thread that met the error, which may hold any lock. So the report is made on another thread.
        """
        logs = home.logs()
        for log in logs:
            log.state.go_offline()
        self.moves.directory_failed(home.directory)
        call = self._on_directory_failed
        if call is not None:
            failed = [log.topic_partition for log in logs]
            threading.Thread(target=call, args=(home.path, failed), name="directory-failed", daemon=True).start()

    def set_on_directory_failed(self, call: DirectoryFailed) -> None:
        """Have `call` called for each directory that fails, on a thread of its own.

        For directories that have failed already it is called now, on the caller's thread.
        """
        self._on_directory_failed = call
        for home in self._homes:
            if home.directory.is_offline:
                call(home.path, [log.topic_partition for log in home.logs()])

    @property
    def was_stopped_cleanly(self) -> bool:
        """Whether every directory with logs was stopped cleanly, so that no acknowledged record can have been lost.

        Meaningful after `start`.
        """
        return all(home.is_clean or not home.log_count for home in self._homes)

    @property
    def offline_directories(self) -> list[str]:
        return [home.path for home in self._homes if home.directory.is_offline]

    @property
    def full_directories(self) -> list[str]:
        """The directories that take no appends for lack of space. Failed directories are not among them."""
        return [directory.path for directory in self.directories if is_full(directory)]

    @property
    def directories(self) -> list[LogDirectory]:
        return [home.directory for home in self._homes]

    @property
    def is_stalled(self) -> bool:
        """Whether a disk makes writers wait. Then appends belong on request handler threads, not a processor's."""
        return any(map(_is_stalled, self._homes))
