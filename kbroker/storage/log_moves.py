"""Moves of logs between the log directories of one broker (KIP-113), as Kafka does them.

A log that moves has a copy in the other directory, `topic-partition.<32 hex digits>-future`, which follows it as a
replica follows its leader. Once the copy has everything, the log goes on in it, between two appends. One log is copied
at a time, by one thread, within `throttle`.

A start that finds an unfinished copy removes it and begins the move anew.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from kbroker._core.base.throttle import Throttle
from kbroker._core.log.directory import LogDirectory
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.fs import FileSystem
from kbroker.model import TopicPartition
from kbroker.storage import directory as directories
from kbroker.storage import file_names
from kbroker.storage.log import Log
from kbroker.storage.log_context import LogContext
from kbroker.storage.log_replica import COPY_EPOCH
from kbroker.storage.open_directory import OpenDirectory
from kbroker.storage.removals import Removals

logger = logging.getLogger("kbroker.storage")

RETRY_S = 1.0
"""How long a copy waits after an error."""


class LogMoves:
    """The moves that are under way, and where logs are to be made. Thread-safe.

    `lock` is the log manager's, which guards `homes` and what is said here of logs.
    """

    def __init__(
        self,
        fs: FileSystem,
        context: LogContext,
        homes: Sequence[OpenDirectory],
        lock: threading.RLock,
        removals: Removals,
        give_up_cleaning: Callable[[Log], None],
    ):
        self.throttle = Throttle()
        """Limits what is copied of all of them."""
        self._fs = fs
        self._context = context
        self._homes = homes
        self._lock = lock
        self._removals = removals
        self._give_up_cleaning = give_up_cleaning
        self._wanted = threading.Condition(lock)
        self._moving: dict[TopicPartition, Log] = {}
        """The logs that have a copy, the longest waiting first."""
        self._preferred: dict[TopicPartition, OpenDirectory] = {}
        self._unfinished: list[tuple[TopicPartition, OpenDirectory]] = []
        """The moves that the last run has left, until `resume`."""
        self._told: WeakKeyDictionary[Log, str] = WeakKeyDictionary()
        """The last error of each log that was logged: a disk that is full stays so for long."""
        self._stepping = threading.Lock()
        """Held while a log is copied."""
        self._is_stopping = False
        self._copies_itself = False
        self._thread: threading.Thread | None = None
        """Made with the first move: most brokers never move a log."""

    def start(self) -> None:
        """Copy on a thread of this object's own, from now on. Without that, the caller does it by `step`."""
        self._copies_itself = True

    def stop(self) -> None:
        """End the copying, and close the copies. The next start begins their moves anew."""
        with self._wanted:
            self._is_stopping = True
            self._wanted.notify_all()
        if self._thread is not None:
            self._thread.join()
        for log in self.moving():
            if log.copy is not None:
                try:
                    log.copy.shut()
                except KbrokerError as error:
                    logger.warning("%s: %s", log.copy.path, error)

    def set_rate(self, bytes_per_second: int) -> None:
        """Limit the copying, from now on: replica.alter.log.dirs.io.max.bytes.per.second."""
        with self._wanted:
            self.throttle.rate = bytes_per_second
            self._wanted.notify_all()

    # --- what is to move

    def moving(self) -> list[Log]:
        """Return the logs that have a copy."""
        with self._lock:
            return list(self._moving.values())

    def preferred(self, topic_partition: TopicPartition) -> OpenDirectory | None:
        """Return where somebody wants the log made that is being made now; None: anywhere. The caller has the lock."""
        home = self._preferred.pop(topic_partition, None)
        return None if home is None or home.directory.is_offline else home

    def move(self, topic_partition: TopicPartition, log: Log | None, path: str) -> None:
        """Move a log to the directory with this absolute path; without a log, have it made there once it is.

        A move to another directory that is under way ends. Raises ProtocolError: LOG_DIR_NOT_FOUND;
        KAFKA_STORAGE_ERROR if a directory has failed, for the log may have a copy in it.
        """
        home = next((each for each in self._homes if str(Path(each.path).absolute()) == path), None)
        if home is None:
            raise ProtocolError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is no log directory of this broker")
        if home.directory.is_offline or (log is not None and log.directory.is_offline):
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} cannot move: a directory is offline")
        if log is not None and log.copy is not None and log.copy.directory is not home.directory:
            self.cancel(log)
        with self._lock:
            if log is None:
                self._preferred[topic_partition] = home
            if log is None or log.copy is not None or log.directory is home.directory:
                return
            if any(each.directory.is_offline for each in self._homes):
                raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} cannot move: one is offline")
            self._begin_locked(log, home)
        self._give_up_cleaning(log)

    def _begin_locked(self, log: Log, home: OpenDirectory) -> None:
        name = directories.future_directory_name(log.topic_partition, self._context.random)
        try:
            copy = Log.create(
                f"{home.path}/{name}", log.topic_partition, log.topic_id, log.options, home.directory, self._context
            )
            copy.follow(COPY_EPOCH)
        except (OSError, KbrokerError) as error:
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log}: no copy in {home.path}: {error}") from error
        log.copy = copy
        self._moving[log.topic_partition] = log
        logger.info("%s moves from %s to %s", log, log.directory.path, home.path)
        if self._copies_itself and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-mover", daemon=True)
            self._thread.start()
        self._wanted.notify_all()

    def cancel(self, log: Log) -> None:
        """End the move of a log, if it moves, and remove the copy. Raises StorageFailed."""
        with self._stepping:
            copy = self._forget(log)
            if copy is not None:
                path, handles = copy.delete()
                self._removals.remove_directory_later(0, handles, path)

    def directory_failed(self, directory: LogDirectory) -> None:
        """End the moves from and to a directory that has failed. What was copied stays, for nobody."""
        for log in self.moving():
            copy = log.copy
            if copy is not None and directory in (log.directory, copy.directory):
                self._forget(log)
                copy.state.go_offline()
                logger.error("%s does not move to %s: %s is offline", log, copy.directory.path, directory.path)

    def _forget(self, log: Log) -> Log | None:
        with self._lock:
            self._moving.pop(log.topic_partition, None)
            copy, log.copy = log.copy, None
            return copy

    # --- what a start finds

    def settle(
        self,
        found: Sequence[tuple[OpenDirectory, str]],
        departed: Collection[TopicPartition],
        logs: Collection[TopicPartition],
    ) -> list[tuple[OpenDirectory, TopicPartition]]:
        """Settle what is left of the moves of the last run: `found` are the directories of copies, by their names.

        `departed`: partitions of which there is a directory of a deleted log; `logs`: those that have a log. A copy
        whose log had left the old directory already gets the log's name. Returns these logs, which are not listed yet.
        Raises OSError.
        """
        whole = []
        all_there = not any(home.directory.is_offline for home in self._homes)
        for home, name in found:
            path = f"{home.path}/{name}"
            topic_partition = directories.parse_departed_directory(name, file_names.DIRECTORY_FUTURE)
            if topic_partition in logs:
                assert topic_partition is not None
                logger.warning("%s is an unfinished copy: it is removed, and the log moves anew", path)
                self._removals.remove_directory_later(0, (), path)
                self._unfinished.append((topic_partition, home))
            elif topic_partition is not None and all_there and topic_partition in departed:
                logger.warning("%s has all of %s, whose move was interrupted", path, topic_partition)
                self._fs.rename(path, f"{home.path}/{topic_partition}")
                self._fs.sync_directory(home.path)
                whole.append((home, topic_partition))
            else:
                logger.warning("%s is left alone: an unfinished copy of a log that is not here", path)
        return whole

    def resume(self, logs: Callable[[TopicPartition], Log | None]) -> None:
        """Begin the moves anew that the last run has left unfinished."""
        for topic_partition, home in self._unfinished:
            try:
                self.move(topic_partition, logs(topic_partition), str(Path(home.path).absolute()))
            except KbrokerError as error:
                logger.error("%s does not move on: %s", topic_partition, error)

    # --- the thread

    def _run(self) -> None:
        pause_s = 0.0
        while (log := self._next(pause_s)) is not None:
            pause_s = self.step(log)

    def _next(self, pause_s: float) -> Log | None:
        """Return the log to copy from, once this pause is over and `throttle` allows it; None if this object stops."""
        with self._wanted:  # a new rate must not arrive between the look at `throttle` and the wait
            if pause_s and not self._is_stopping:
                self._wanted.wait(pause_s)
            while not self._is_stopping:
                wait_ms = self.throttle.wait_ms()
                if self._moving and not wait_ms:
                    return next(iter(self._moving.values()))
                self._wanted.wait(wait_ms / 1000 if self._moving else None)
            return None

    def step(self, log: Log) -> float:
        """Copy some of a log, and let it move if its copy has all. Return how many seconds to wait after an error."""
        with self._stepping:
            copy = log.copy
            if copy is None:
                return 0.0
            try:
                end_offset = log.log_end_offset
                self.throttle.record(log.copy_to(copy))
                if copy.state.log_end_offset >= end_offset:
                    self._finish(log, copy)
            except KbrokerError as error:
                return self._after(error, log)
        return 0.0

    def _after(self, error: KbrokerError, log: Log) -> float:
        """Let the next log come first, and return the pause after an error. A deleted log does not move any more."""
        with self._lock:
            if log.state.state == "deleted":
                return 0.0
            if self._moving.pop(log.topic_partition, None) is not None:
                self._moving[log.topic_partition] = log
        if self._told.get(log) != str(error):
            self._told[log] = str(error)
            logger.warning("%s does not move now: %s", log, error)
        return RETRY_S

    def _finish(self, log: Log, copy: Log) -> None:
        copy.flush()  # while appends go on: what is to be flushed once they wait is little then
        old, new = self._home_of(log.directory), self._home_of(copy.directory)
        cleaned_to = old.cleaned.get(log.topic_partition)

        def left() -> None:
            with self._lock:
                old.remove(log.topic_partition)
                self._forget(log)

        path, handles = log.move_to(copy, lambda: new.arrives(log), left)
        logger.info("%s has moved from %s to %s", log, old.path, new.path)
        self._removals.remove_directory_later(log.delete_delay_ms, handles, path)
        if cleaned_to is not None:
            with log.storage_errors:
                new.cleaned.store(log.topic_partition, cleaned_to)

    def _home_of(self, directory: LogDirectory) -> OpenDirectory:
        return next(home for home in self._homes if home.directory is directory)
