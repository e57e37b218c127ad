"""The cleaner's threads: which compacted log is cleaned next, how fast, and what becomes of one that cannot be cleaned.

The rules of choice are Apache Kafka 3.9's (LogCleaner, LogCleanerManager). A log is due when more than
min.cleanable.dirty.ratio of it was never cleaned, or when it holds a record older than max.compaction.lag.ms. The
dirtiest log that is due comes first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker.clock import Clock
from kbroker.errors import DiskDamaged, KbrokerError, ProtocolError
from kbroker.model import TopicPartition
from kbroker.storage.cleaner_checkpoint import CleanerCheckpoint
from kbroker.storage.failures import DISK_FULL_ERRORS, CleaningAborted
from kbroker.storage.log import Log
from kbroker.storage.options import NEVER, CleanerOptions

if TYPE_CHECKING:
    from kbroker.storage.compaction import CleanableSegment, Cleaned

logger = logging.getLogger("kbroker.storage")

_MIB = 1 << 20
_LONGEST_WAIT_S = 0.3


class DirtyLog(NamedTuple):
    """A compacted log in which there is something to clean."""

    log: Log
    first_dirty_offset: int
    segments: list[CleanableSegment]
    ratio: float
    overdue_ms: int
    """By how much max.compaction.lag.ms is exceeded."""


class Throttle:
    """Limits the bytes that all threads together read and write in a second."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at_s = 0.0

    def charge(self, size: int, bytes_per_second: float) -> float:
        """Count `size` bytes that a thread has just read or written. Return how many seconds it must wait now."""
        with self._lock:
            now_s = self._clock.monotonic()
            self._free_at_s = max(self._free_at_s, now_s) + size / bytes_per_second
            return self._free_at_s - now_s


class LogCleaner:
    """Cleans compacted logs from `start` to `stop`. All methods may be called from any thread.

    `checkpoint_of` gives the checkpoint of the directory that a log is in.
    """

    def __init__(
        self,
        options: CleanerOptions,
        logs: Callable[[], Iterable[Log]],
        checkpoint_of: Callable[[Log], CleanerCheckpoint],
        clock: Clock,
    ):
        self._options = options
        self._logs = logs
        self._checkpoint_of = checkpoint_of
        self._clock = clock
        self._throttle = Throttle(clock)
        self._changed = threading.Condition()
        self._in_progress: dict[TopicPartition, bool] = {}
        """Logs that are being cleaned. True: the cleaning is to be given up."""
        self._uncleanable: dict[Log, int] = {}
        """Logs that are left alone until the next start, with their sizes in bytes."""
        self._threads: list[threading.Thread] = []
        self._is_stopping = threading.Event()
        self.on_damaged: Callable[[Log], bool] = lambda log: False
        """Called with a log that has a damaged batch. Returns whether it is made good, and so not left alone."""
        self.last: dict[int, Cleaned] = {}
        """What each thread's last cleaning did."""
        self.runs = self.bytes_read = self.bytes_written = 0
        self.max_dirty_ratio = 0.0
        self.max_compaction_delay_ms = 0
        self._last_run_s = clock.monotonic()

    # --- threads

    def start(self) -> None:
        """Start the threads. No-op if log.cleaner.enable is false."""
        if not self._options.enabled:
            return
        self._is_stopping = threading.Event()
        for number in range(self._options.threads):
            thread = threading.Thread(
                target=self._run, args=(number, self._is_stopping), name=f"compaction-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the threads. A cleaning in progress is given up before it reads or writes another buffer."""
        self._is_stopping.set()
        deadline_s = self._clock.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - self._clock.monotonic()))
        self._threads.clear()

    def update_options(self, options: CleanerOptions) -> None:
        """Restart the threads with other settings. No-op if the settings are the same."""
        if options == self._options:
            return
        is_running = bool(self._threads)
        self.stop()
        self._options = options
        if is_running:
            self.start()

    @property
    def dead_threads(self) -> int:
        """The number of threads that have ended although nobody stopped them (Kafka: DeadThreadCount)."""
        return sum(not thread.is_alive() for thread in self._threads)

    @property
    def seconds_since_last_run(self) -> float:
        """The time since a thread last looked for a log to clean."""
        return self._clock.monotonic() - self._last_run_s

    def uncleanable(self) -> dict[str, tuple[int, int]]:
        """Return, for each log directory, how many logs are left alone after a failure, and their bytes."""
        found: dict[str, tuple[int, int]] = {}
        with self._changed:
            for log, size in self._uncleanable.items():
                count, total = found.get(log.directory.path, (0, 0))
                found[log.directory.path] = count + 1, total + size
        return found

    def _run(self, number: int, is_stopping: threading.Event) -> None:
        options = self._options
        offset_map = DedupeMap(options.dedupe_buffer_size // options.threads, options.dedupe_load_factor)
        while not is_stopping.is_set():
            try:
                has_cleaned = self.clean_filthiest(offset_map, number)
            except Exception:
                logger.exception("the log cleaner's thread %d goes on after an error", number)
                has_cleaned = False
            if not has_cleaned:
                is_stopping.wait(options.backoff_ms / 1000)

    # --- what the threads do

    def clean_filthiest(self, offset_map: DedupeMap, number: int = 0) -> bool:
        """Clean the log that needs it most. False if no log is due or the cleaning failed."""
        chosen = self._claim(self._due())
        if chosen is None:
            return False
        try:
            return self._clean(chosen, offset_map, number)
        finally:
            offset_map.clear()
            with self._changed:
                del self._in_progress[chosen.log.topic_partition]
                self._changed.notify_all()

    def _claim(self, due: list[DirtyLog]) -> DirtyLog | None:
        with self._changed:
            chosen = next((each for each in due if each.log.topic_partition not in self._in_progress), None)
            if chosen is not None:
                self._in_progress[chosen.log.topic_partition] = False
            return chosen

    def _due(self) -> list[DirtyLog]:
        """Return the logs that are due, the dirtiest first."""
        self._last_run_s = self._clock.monotonic()
        found: list[DirtyLog] = []
        for log in self._logs():
            is_being_made_good = log.damaged_from != NEVER
            is_left_alone = log.directory.is_offline or log in self._uncleanable or is_being_made_good
            if log.options.compacted and not is_left_alone and log.topic_partition not in self._in_progress:
                dirty = self._look_at(log)
                if dirty is not None and dirty.segments:
                    found.append(dirty)
            if self._is_stopping.is_set():
                return []
        self.max_dirty_ratio = max((each.ratio for each in found), default=0.0)
        self.max_compaction_delay_ms = max((each.overdue_ms for each in found), default=0)
        due = [
            each
            for each in found
            if each.ratio > each.log.options.min_cleanable_ratio or (each.overdue_ms > 0 and each.ratio > 0)
        ]
        return sorted(due, key=lambda each: each.ratio, reverse=True)

    def _look_at(self, log: Log) -> DirtyLog | None:
        """Return what there is to clean in a log; None if the log cannot be looked at now."""
        from kbroker.storage import compaction  # imported here: a start without compacted logs does not need it

        try:
            log.open()
            first_dirty_offset = self._first_dirty_offset(log)
            segments = compaction.cleanable_segments(log, first_dirty_offset)
            return DirtyLog(
                log,
                first_dirty_offset,
                segments,
                compaction.dirty_ratio(segments, first_dirty_offset),
                self._overdue_ms(log, first_dirty_offset),
            )
        except (KbrokerError, FileNotFoundError) as error:
            logger.debug("%s cannot be looked at for compaction: %s", log, error)
        except Exception as error:
            self._leave_alone(log, error)
        return None

    def _first_dirty_offset(self, log: Log) -> int:
        checkpoint = self._checkpoint_of(log)
        start_offset = log.log_start_offset
        known = checkpoint.get(log.topic_partition)
        if known is not None and known > log.truncated_to:
            known = log.truncated_to
            checkpoint.store(log.topic_partition, known)
        log.truncated_to = NEVER
        offset = start_offset if known is None else known
        if start_offset <= offset <= log.log_end_offset:
            return offset
        if offset > log.log_end_offset or not log.options.deleted_by_retention:
            logger.warning(
                "%s: the checkpoint says cleaned up to offset %d, the log is [%d, %d): it is cleaned from its start",
                log, offset, start_offset, log.log_end_offset,
            )  # fmt: skip
        checkpoint.store(log.topic_partition, start_offset)
        return start_offset

    def _overdue_ms(self, log: Log, first_dirty_offset: int) -> int:
        from kbroker.storage.compaction import first_timestamps

        if log.options.max_compaction_lag_ms == NEVER:
            return 0
        oldest = min((at for at in first_timestamps(log, first_dirty_offset) if at > 0), default=NEVER)
        return max(0, self._clock.wall_ms() - log.options.max_compaction_lag_ms - oldest)

    def _clean(self, chosen: DirtyLog, offset_map: DedupeMap, number: int) -> bool:
        """Clean a log. False if the cleaning was given up or failed."""
        log = chosen.log
        try:
            done = self._clean_and_store(chosen, offset_map)
        except (CleaningAborted, ProtocolError) as reason:
            logger.info("%s: cleaning was given up: %s", log, reason)
        except Exception as error:
            cause = error.__cause__
            is_full = isinstance(cause, OSError) and cause.errno in DISK_FULL_ERRORS
            if isinstance(error, DiskDamaged) and self.on_damaged(log):
                logger.warning("%s: cleaning was given up: %s", log, error)
            elif is_full or log.directory.is_offline:
                logger.warning("%s: cleaning was given up and will be tried again: %s", log, error)
            else:
                self._leave_alone(log, error)
        else:
            self.last[number] = done
            self.runs += 1
            self.bytes_read += done.bytes_read
            self.bytes_written += done.bytes_written
            _log_result(log, chosen.first_dirty_offset, done)
            return True
        return False

    def _clean_and_store(self, chosen: DirtyLog, offset_map: DedupeMap) -> Cleaned:
        from kbroker.storage.compaction import clean_log

        log = chosen.log
        io_size = max(1, self._options.io_buffer_size // self._options.threads // 2)
        with log.storage_errors:
            try:
                done = clean_log(log, offset_map, chosen.first_dirty_offset, io_size, partial(self._on_io, log))
            except FileNotFoundError as reason:
                raise CleaningAborted(f"a segment is gone: {reason}") from reason
            self._checkpoint_of(log).store(log.topic_partition, done.next_dirty_offset)
        return done

    def _leave_alone(self, log: Log, error: Exception) -> None:
        logger.error("%s cannot be compacted and is left alone until the next start: %s", log, error)
        with self._changed:
            self._uncleanable[log] = log.state.size

    def _on_io(self, log: Log, size: int) -> None:
        self._check(log)
        rate = self._options.io_max_bytes_per_second
        wait_s = self._throttle.charge(size, rate) if rate > 0 else 0.0
        while wait_s > 0:
            self._is_stopping.wait(min(wait_s, _LONGEST_WAIT_S))
            wait_s -= _LONGEST_WAIT_S
            self._check(log)

    def _check(self, log: Log) -> None:
        if self._is_stopping.is_set():
            raise CleaningAborted("the cleaner stops")
        if self._in_progress.get(log.topic_partition, False):
            raise CleaningAborted("the log goes")
        if log.state.state != "open":
            raise CleaningAborted(f"the log is {log.state.state}")
        if not log.options.compacted:
            raise CleaningAborted("cleanup.policy is not compact any more")

    def forget(self, log: Log, timeout_s: float = 10.0) -> None:
        """Leave a log alone that is being deleted.

        Once this returns the cleaner does not touch the log any more, unless `timeout_s` has passed.
        """
        with self._changed:
            self._uncleanable.pop(log, None)
            if log.topic_partition in self._in_progress:
                self._in_progress[log.topic_partition] = True
                self._changed.wait_for(lambda: log.topic_partition not in self._in_progress, timeout_s)


def _log_result(log: Log, first_dirty_offset: int, done: Cleaned) -> None:
    elapsed_s = max(done.elapsed_s, 1e-6)
    logger.info(
        "%s: cleaned offsets [%d, %d) in %.3f s, %.1f MiB/s: read %.1f MiB with %d records, kept %.1f MiB with"
        " %d records, %.1f%% less; %.3f s for the map of %.1f MiB, %.1f%% full",
        log, first_dirty_offset, done.next_dirty_offset, elapsed_s, done.bytes_read / elapsed_s / _MIB,
        done.bytes_read / _MIB, done.records_read, done.bytes_written / _MIB, done.records_kept,
        100 * (1 - done.bytes_written / max(done.bytes_read, 1)), done.map_s, done.map_bytes_read / _MIB,
        100 * done.map_utilization,
    )  # fmt: skip
