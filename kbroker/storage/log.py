"""One partition's log: owns its files by name; the compiled core appends to them and finds offsets in them.

A log is opened by its first use (`meet_need`), so a broker with thousands of partitions starts at once. All methods may
be called from any thread. `_lock` serializes what changes the list of files (open, roll, retention, truncation, close);
an append or a read takes it only to open a file.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress
from uuid import UUID

from kbroker._core.log.directory import LogDirectory
from kbroker._core.log.partition_state import PartitionState
from kbroker._core.log.producer_table import ActiveProducer
from kbroker._core.log.segment_list import SegmentHandle
from kbroker.errors import DiskDamaged, ErrorCode, ProtocolError, StorageFailed
from kbroker.model import NO_LEADER_EPOCH, TopicPartition
from kbroker.storage import checkpoints, lookup
from kbroker.storage.closed_log import ClosedLog
from kbroker.storage.directory import delete_directory_name, remove_partition_directory
from kbroker.storage.failures import StorageErrors
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.log_context import LogContext
from kbroker.storage.log_replica import LogReplica
from kbroker.storage.options import NEVER, LogOptions
from kbroker.storage.recovery import LoadedLog
from kbroker.storage.segment import Progress, create_segment
from kbroker.storage.segment_files import SegmentFiles

logger = logging.getLogger("kbroker.storage")

# The kinds of `meet_need`: NEED_* in _core/log/partition.pxd.
_OPEN, _ROLL, _INDEX, _SEGMENT, _DIRECTORY, _TIME_INDEX, _ABORTED, _EPOCH, _BEGIN, _START = range(1, 11)


NO_PROMISE = -1


class Log(LogReplica):
    """One partition's log."""

    # What few logs change: a start makes thousands of them.
    copy: Log | None = None
    """The copy that is being made in another directory, into which the log moves."""
    _is_shut = False
    _closed_size: int | None = None
    """Bytes of the segments on disk, once somebody has asked: nothing changes them before the log is open."""

    def __init__(
        self,
        path: str,
        topic_partition: TopicPartition,
        topic_id: UUID,
        options: LogOptions,
        directory: LogDirectory,
        context: LogContext,
        *,
        is_clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        progress: Progress | None = None,
        gaps_below: int = 0,
        known_epoch: int = NO_LEADER_EPOCH,
    ):
        """`gaps_below`: recovery keeps gaps between segments up to this offset.

        `known_epoch`: the leader epoch that the cluster has named last, if that is known before a role is given.
        """
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = directory
        self.context = context
        self.storage_errors = StorageErrors(topic_partition, directory)
        self._fs = context.fs
        self._options = options
        self._lock = threading.RLock()
        self._closed = ClosedLog(
            is_clean=is_clean,
            recovery_point=recovery_point,
            start_offset=log_start_offset,
            progress=progress,
            gaps_below=gaps_below,
            known_epoch=known_epoch,
        )
        self.written_recovery_point = recovery_point
        """This log's entry in recovery-point-offset-checkpoint on the disk."""
        self._durable_start_offset = log_start_offset
        self._leader_epoch = NO_LEADER_EPOCH if context.is_member else 0
        self._promised_offset = high_watermark if context.is_member else NO_PROMISE
        """The high watermark that the last life has stored; NO_PROMISE once it is compared with the log."""
        self.state = PartitionState(
            directory,
            topic_partition.topic,
            topic_partition.partition_id,
            topic_id.bytes,
            options,
            self._fs,
            weakref.ref(self),
        )
        self._epochs = LeaderEpochs(self._fs, path, self.state.set_epochs)
        self._files = SegmentFiles(self._fs, path, self.state)
        if context.is_member:
            self.state.become_stopped()
        if not directory.is_offline:
            # Of a log that had been lost it is not known what is committed.
            known = 0 if high_watermark == NEVER else high_watermark
            self.state.set_closed_offsets(log_start_offset, recovery_point, known)
        if options.flush_ms < NEVER:
            context.flushed_by_time.add(self)

    @classmethod
    def create(
        cls,
        path: str,
        topic_partition: TopicPartition,
        topic_id: UUID,
        options: LogOptions,
        directory: LogDirectory,
        context: LogContext,
    ) -> Log:
        """Make the directory of a new, empty log. The first flush makes the directory's name durable.

        Raises OSError for the directory, StorageFailed for the files in it; then nothing is left of them.
        """
        context.fs.mkdir(path)
        log = cls(path, topic_partition, topic_id, options, directory, context)
        try:
            with log.storage_errors:
                checkpoints.store_topic_id(context.fs, f"{path}/{checkpoints.PARTITION_METADATA}", topic_id)
                create_segment(context.fs, path, 0, options.allocated_bytes)
        except StorageFailed:
            with suppress(OSError):
                remove_partition_directory(context.fs, path)
            raise
        return log

    def __str__(self) -> str:
        return str(self.topic_partition)

    # --- what the log knows; a question opens the log if the answer needs it

    @property
    def options(self) -> LogOptions:
        return self._options

    @property
    def is_open(self) -> bool:
        return self.state.state == "open"

    @property
    def log_start_offset(self) -> int:
        self.open()
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> int:
        self.open()
        return self.state.log_end_offset

    @property
    def high_watermark(self) -> int:
        self.open()
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        self.open()
        return self.state.last_stable_offset

    def visible_end(self, *, committed: bool = False) -> int:
        """Return the end of what a consumer may see: the high watermark or, if `committed`, the last stable offset.

        With log.flush.visibility=flushed it is not beyond what is flushed.
        """
        self.open()
        return self.state.visible_end(committed)

    @property
    def recovery_point(self) -> int:
        """Segments that end below this offset need no recovery after a power cut. Known without opening the log."""
        return self.state.recovery_point if self.state.state == "open" else self._closed.recovery_point

    @property
    def checkpointed_start_offset(self) -> int:
        """The log start offset that log-start-offset-checkpoint has to hold. Known without opening the log.

        It is stored even if it is the first segment's base offset: a power cut may bring deleted segments back.
        """
        return self.state.log_start_offset if self.state.state == "open" else self._closed.start_offset

    @property
    def leader_epoch(self) -> int:
        """The log's leader epoch. Known without opening the log, and not changed by opening it.

        A coordinator notes the epoch when it loads a log, and is refused if another epoch is in force at its append.
        """
        return max(self._leader_epoch, self.state.leader_epoch)

    @property
    def size(self) -> int:
        """Bytes of all segments' .log files; known without opening the log. Raises OSError."""
        if self.state.state != "closed":
            return self.state.size
        if self._closed_size is None:
            try:
                self._closed_size = self._files.size
            except FileNotFoundError:
                with self._lock:  # it moves to another directory
                    return self._files.size if self.state.state == "closed" else self.state.size
        return self._closed_size

    # --- opening and closing

    def open(self) -> None:
        """Open the log, and recover it if need be. No-op if it is open.

        Raises StorageFailed if the disk refuses, if the log was refused before, or if the broker stops; ProtocolError
        (UNKNOWN_TOPIC_OR_PARTITION) if the log is deleted; DiskDamaged if the directory is that of another topic or
        the log would lose records (`LogRefused`).
        """
        if self.state.state == "open":
            return
        with self._lock:
            state = self.state.state
            if self._is_shut:
                raise StorageFailed(f"{self}: the broker is stopping")
            if self._closed.refusal:
                raise StorageFailed(self._closed.refusal)
            if state == "closed":
                with self.storage_errors:
                    try:
                        checkpoints.settle_topic_id(self._fs, self.path, self.topic_id)
                        self._open_locked()
                    except DiskDamaged as damage:
                        self.storage_errors.log_once(str(damage))
                        raise
                    self.storage_errors.last_logged = ""
            elif state == "deleted":
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif state == "offline":
                raise StorageFailed(f"{self}: log directory {self.directory.path} is offline")

    def _open_locked(self) -> None:
        flushed_before = self._closed.recovery_point
        loaded = self._closed.load(
            self.topic_partition, self._fs, self.path, self._options, self._epochs, self._leader_epoch
        )
        # As in Kafka, producers that have expired meanwhile are not loaded.
        loaded.producers.expire(self._oldest_producer_ms())
        self._closed.recovery_point = loaded.flushed_offset
        self._durable_start_offset = min(self._durable_start_offset, loaded.log_start_offset)
        self._note_lost_records(loaded)
        if loaded.flushed_offset < flushed_before:
            # Before anything is appended: the checkpoint on the disk would call new records flushed that take the place
            # of truncated or lost ones.
            try:
                self.context.store_recovery_points(self.directory)
            except BaseException:
                self._closed.recovery_point = flushed_before  # so that the next try stores them again
                raise
        # Before the log is open: from then on others append at once.
        if self.state.role == "alone":
            self._begin_epoch(loaded.log_end_offset)
        elif self.state.role == "leader":
            # Loading has forgotten the epoch if this leader had not appended anything yet.
            self._epochs.begin(self._leader_epoch, loaded.log_end_offset)
        self._files.open(loaded, self._roll_jitter_ms)
        self._closed.opened()
        if self._options.flushed_visibility and loaded.flushed_offset < loaded.log_end_offset:
            self.state.request_flush()

    def _note_lost_records(self, loaded: LoadedLog) -> None:
        """Note, when a member opens the log for the first time, what committed records it may have lost.

        The stored high watermark is some seconds old: whatever recovery has cut off may have been committed too.
        """
        promised, self._promised_offset = self._promised_offset, NO_PROMISE
        if promised == NO_PROMISE:
            return
        end_offset = loaded.log_end_offset
        if promised == NEVER and end_offset > 0:
            promised = 0  # a log in place of a lost one is empty until it is made good
        if end_offset < promised:
            logger.error(
                "%s ends at offset %d, and was committed up to %s: this replica leads only if no other one can",
                self, end_offset, promised if promised < NEVER else "an offset that is not known any more",
            )  # fmt: skip
        elif loaded.cut_bytes == 0:
            return
        self.lacks_below = max(self.lacks_below, promised, end_offset + 1)

    def close(self) -> None:
        """Flush the log, store its indexes and producers so that the next open need not read it, and close it.

        No-op if it is not open. Raises StorageFailed.
        """
        with self._lock:
            if self.state.state != "open":
                return
            # Nobody may append between the snapshot and the end.
            self.state.begin_roll()
            with self.storage_errors:
                self._files.write_indexes(final=True, sync=True)
                self.state.flush()
                self._epochs.settle()
                self._files.store_snapshot()
                self._release_allocated(self._files.active)
                # Recovery may have replaced indexes. They are trusted after a clean stop: their names must be durable.
                self._fs.sync_directory(self.path)
            self._keep_offsets()
            self.state.close()

    def shut(self) -> bool:
        """Close the log for good, at the broker's stop. False if it has to be recovered at the next start."""
        with self._lock:
            self._is_shut = True
            self.close()
            return self._closed.is_clean and self.state.state == "closed"

    def _keep_offsets(self) -> None:
        self._closed.start_offset = self.checkpointed_start_offset
        self._closed.recovery_point = self.state.recovery_point

    # --- producers and flushes

    def active_producers(self) -> list[ActiveProducer]:
        """Return every producer that this log remembers, by id (KIP-664)."""
        self.open()
        producers, _ = self.state.producers()
        return producers.states()

    def flush(self) -> None:
        """Flush: everything appended before the call survives a power cut. Raises StorageFailed."""
        self.open()
        self.state.flush()

    # --- lookups

    def offset_for_timestamp(self, timestamp: int) -> lookup.TimestampOffset | None:
        """Return the first record at or after `timestamp`; None if there is none (KIP-33).

        Segments and batches are chosen by their largest timestamps.
        """
        self._confirm_times()
        with self.storage_errors:
            return lookup.offset_for_timestamp(self.state, self.open, timestamp)

    def offset_of_max_timestamp(self) -> lookup.TimestampOffset | None:
        """Return the first record with the log's largest timestamp (KIP-734); None if no record has a timestamp."""
        self._confirm_times()
        with self.storage_errors:
            return lookup.offset_of_max_timestamp(self.state, self.open)

    def _confirm_times(self) -> None:
        """Check, before a lookup by time, the largest timestamps that are known only from indexes."""
        self.open()
        for base_offset in tuple(self._files.unread):
            with self._lock, self.storage_errors:
                self._files.confirm((base_offset,), self._options.index_interval_bytes)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return `(epoch, end offset)` of the largest epoch up to `epoch`; (-1, -1) if it is unknown (KIP-279)."""
        self.open()
        with self._lock:
            return self._epochs.end_offset_for(epoch, self.state.log_end_offset)

    def settle_epochs(self) -> bool:
        """Store leader epochs that are not stored yet, before a checkpoint builds on them. Raises OSError.

        Returns False, with nothing done, if another thread holds the log's lock: that one may wait for the checkpoint.
        """
        if self._epochs.is_stored:
            return True
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._epochs.settle()
        finally:
            self._lock.release()
        return True

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch that wrote `offset`; -1 if it is unknown."""
        with self._lock:
            return self._epochs.epoch_at(offset)

    # --- changes

    def _note_flush_ms(self) -> None:
        if self._options.flush_ms < NEVER:
            self.context.flushed_by_time.add(self)
        else:
            self.context.flushed_by_time.discard(self)

    def update_options(self, options: LogOptions) -> None:
        """Change the log's options. They are in force from the next append, read and retention check on."""
        with self._lock:
            self._options = options
            self.state.update_options(options)
            self._note_flush_ms()
            if self.copy is not None:
                self.copy.update_options(options)

    def be_alone(self, epoch: int) -> None:
        """Lead the partition in `epoch`, without followers: batches are stamped and fetches compared with it."""
        with self._lock:
            self._leader_epoch = max(epoch, self._leader_epoch)
            end_offset = self.state.become_alone(self._leader_epoch)
            if self.state.state == "open":
                with self.storage_errors:
                    self._begin_epoch(end_offset)

    def lead(self, epoch: int, followers: Mapping[int, int], in_sync: Collection[int]) -> int:
        """Lead the partition in `epoch`. Return the log end offset, where the epoch begins.

        A follower may ask for that offset at once. `followers`: the broker epochs of the other replicas by node id, -1
        if unknown. `in_sync`: the committed ISR. Opens the log. Raises StorageFailed.
        """
        with self._lock:
            self.open()
            self._leader_epoch = epoch
            now_ms = round(self.context.clock.monotonic() * 1000)
            end_offset = self.state.become_leader(epoch, followers, in_sync, now_ms)
            self._epochs.begin(epoch, end_offset)
            self._flush_if_due()
            return end_offset

    def follow(self, epoch: int) -> None:
        """Follow the leader of `epoch`. Opens the log. Raises StorageFailed."""
        with self._lock:
            self.open()
            self._leader_epoch = epoch
            self.state.become_follower(epoch)
            self._flush_if_due()

    def _flush_if_due(self) -> None:
        """Flush what an earlier role has left, before another broker counts it as stored here."""
        if self.state.flush_due:
            self.state.flush()

    def stop_replica(self) -> None:
        """Serve nothing of the partition until the controller gives it another role."""
        with self._lock:
            self._leader_epoch = NO_LEADER_EPOCH
            self.state.become_stopped()

    def _begin_epoch(self, end_offset: int) -> None:
        """Stamp batches from `end_offset` on with the newest epoch known, and store where it begins."""
        self._leader_epoch = max(self._leader_epoch, self._epochs.latest)
        self.state.become_alone(self._leader_epoch)
        if self._leader_epoch > self._epochs.latest:
            # The first epoch of an empty log has nothing to lose yet: the first flush makes it durable.
            self._epochs.assign(self._leader_epoch, end_offset, durable=end_offset > 0)

    def delete_records_before(self, offset: int) -> int:
        """Move the log's start to `offset` (-1: to the high watermark), durably. Returns the log start offset.

        Raises ProtocolError(OFFSET_OUT_OF_RANGE) for an offset above the high watermark.
        """
        with self._lock:
            if self.move_start(offset):
                with self.storage_errors:
                    self.context.store_start_offsets(self.directory)
                self.note_durable_start(self.state.log_start_offset)
            return self.state.log_start_offset

    def move_start(self, offset: int) -> bool:
        """Do what `delete_records_before` does, but write no checkpoint. Return whether it has to be written."""
        with self._lock:
            self.open()
            high_watermark = self.state.high_watermark
            offset = high_watermark if offset == -1 else offset
            if not 0 <= offset <= high_watermark:
                raise ProtocolError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"{self}: offset {offset} is not in 0..{high_watermark}"
                )
            # DeleteRecords is durable before it is answered. Retention may have moved the start as far already without
            # making it durable: so the comparison is with the durable start.
            if offset <= self._durable_start_offset:
                return False
            with self.storage_errors:
                self.state.advance_log_start_offset(offset)
                # The epochs first: recovery does not believe a checkpoint with a later start than the first epoch's.
                self._epochs.truncate_from_start(self.state.log_start_offset)
            return True

    def note_durable_start(self, offset: int) -> None:
        """Note that log-start-offset-checkpoint on the disk has this start of the log, or a later one."""
        with self._lock:
            self._durable_start_offset = max(self._durable_start_offset, min(offset, self.checkpointed_start_offset))

    def delete(self) -> tuple[str, list[SegmentHandle]]:
        """Take the log out of service and rename its directory.

        Returns the directory's new path and the handles of the segments, which tell whether they are still read.
        Raises StorageFailed.
        """
        with self._lock:
            handles = self.state.delete()
            directory = self.path.rpartition("/")[0]
            target = f"{directory}/{delete_directory_name(self.topic_partition, self.context.random)}"
            with self.storage_errors:
                self._fs.rename(self.path, target)
                self._fs.sync_directory(directory)
            self._files.path = target
            return target, handles

    def expire_producers(self) -> None:
        """Forget idempotent producers that have been silent for producer.id.expiration.ms."""
        if self.is_open:
            self.state.expire_producers(self._oldest_producer_ms())

    def _oldest_producer_ms(self) -> int:
        return self.context.clock.wall_ms() - self.context.producer_id_expiration_ms

    # --- called by the compiled core, from request handlers and flushers

    def meet_need(self, kind: int, base_offset: int, leader_epoch: int = -1) -> None:
        """Do what the compiled core needs before an append, a read or a flush can go on, such as open a file.

        `kind` is one of NEED_*, `base_offset` that of the segment, or the offset of what a follower appends next. The
        log may have changed since the core asked, so each kind looks again whether it is still needed.
        """
        if kind == _OPEN:
            self.open()
            return
        with self._lock, self.storage_errors:
            if self.state.state != "open":
                return
            if kind == _ROLL:
                if self._files.active.base_offset == base_offset:
                    self._roll_locked()
            elif kind == _INDEX:
                self._files.open_indexes(base_offset)
            elif kind == _SEGMENT:
                if self._files.open_segment(base_offset):
                    self.context.on_segment_opened(self, base_offset)
            elif kind == _DIRECTORY:
                # The first flush of a segment makes its leader epoch durable too.
                self._epochs.make_durable()
                self._files.sync_names(base_offset)
            elif kind == _ABORTED:
                self._files.open_aborted(base_offset)
            elif kind == _TIME_INDEX:
                self._files.open_time_index(base_offset)
            elif kind == _EPOCH:
                self._follow_epoch(leader_epoch, base_offset)
            elif kind == _BEGIN:
                self._begin_active_at(base_offset)
            elif kind == _START:
                self.follow_start(base_offset)
