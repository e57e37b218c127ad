"""One partition's log: owns its files by name; the compiled core appends to them and finds offsets in them.

A log is opened by its first use (`prepare`), so a broker with thousands of partitions starts at once. All methods may
be called from any thread. `_lock` serializes what changes the list of files (open, roll, retention, truncation, close);
an append or a read takes it only to open a file.
"""

from __future__ import annotations

import errno
import logging
import threading
import weakref
from uuid import UUID

from kbroker._core.log.directory import LogDirectory
from kbroker._core.log.segment_list import SegmentView
from kbroker._core.log.partition_state import PartitionState
from kbroker._core.log.segment_list import SegmentHandle
from kbroker.errors import DiskDamaged, ErrorCode, ProtocolError, StorageFailed
from kbroker.model import TopicPartition
from kbroker.storage import checkpoints, lookup, retention
from kbroker.storage.closed_log import ClosedLog
from kbroker.storage.directory import delete_directory_name
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.log_context import ActiveProducer, LogContext, StorageErrors
from kbroker.storage.log_records import LogRecords
from kbroker.storage.options import NEVER, LogOptions
from kbroker.storage.recovery import Progress, create_segment
from kbroker.storage.segment import Segment
from kbroker.storage.segment_files import SegmentFiles
from kbroker.storage.segment_swap import begin_swap, discard_cleaned, finish_swap, rename_to_deleted

logger = logging.getLogger("kbroker.storage")

# What `prepare` is asked for: the PREPARE_* of _core/log/partition.pxd.
_OPEN, _ROLL, _INDEX, _SEGMENT, _DIRECTORY, _TIME_INDEX, _ABORTED = 1, 2, 3, 4, 5, 6, 7


class Log(LogRecords):
    """One partition's log."""

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
        progress: Progress | None = None,
        may_have_gaps: bool = False,
    ):
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
            may_have_gaps=may_have_gaps,
        )
        self.written_recovery_point = recovery_point
        """What recovery-point-offset-checkpoint on the disk says."""
        self._durable_start_offset = log_start_offset
        self._leader_epoch = 0
        self._epochs = LeaderEpochs(self._fs, path)
        self._is_shut = False
        self._closed_size: int | None = None
        """Bytes of the segments on disk, as far as somebody has asked: nothing changes them before the log is open."""
        self.history = 0
        """Goes up when offsets may stand for other records than before."""
        self.truncated_to = NEVER
        """The lowest offset of a truncation of which the cleaner's checkpoint does not know yet."""
        self.state = PartitionState(
            directory,
            topic_partition.topic,
            topic_partition.partition_id,
            topic_id.bytes,
            options,
            self._fs,
            weakref.ref(self),
        )
        self._files = SegmentFiles(self._fs, path, self.state)
        if not directory.is_offline:
            self.state.set_closed_offsets(log_start_offset, recovery_point)

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
        """Make the directory of a new, empty log. Its name is durable with the first flush."""
        context.fs.mkdir(path)
        log = cls(path, topic_partition, topic_id, options, directory, context)
        with log.storage_errors:
            checkpoints.store_topic_id(context.fs, f"{path}/{checkpoints.PARTITION_METADATA}", topic_id)
            create_segment(context.fs, path, 0, options.allocated_bytes)
        return log

    def __str__(self) -> str:
        return str(self.topic_partition)

    # --- what it knows; opens the log where the answer needs it

    @property
    def path(self) -> str:
        """Its directory."""
        return self._files.path

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
        """The end of what a consumer may see: the high watermark or the last stable offset, as far as
        log.flush.visibility lets it.
        """
        self.open()
        return self.state.visible_end(committed)

    @property
    def recovery_point(self) -> int:
        """Segments that end below need no recovery after a power cut; known without opening the log."""
        return self.state.recovery_point if self.state.state == "open" else self._closed.recovery_point

    @property
    def checkpointed_start_offset(self) -> int:
        """What log-start-offset-checkpoint has to say; known without opening the log.

        Said even where the first segment's name says the same: deleted segments' names may come back in a power cut.
        """
        return self.state.log_start_offset if self.state.state == "open" else self._closed.start_offset

    @property
    def leader_epoch(self) -> int:
        """As it will be once the log is open, too: what was loaded before must not take itself for of another epoch."""
        return max(self._leader_epoch, self.state.leader_epoch)

    @property
    def size(self) -> int:
        """Bytes of all segments' .log files; known without opening the log. Raises OSError."""
        if self.state.state != "closed":
            return self.state.size
        if self._closed_size is None:
            self._closed_size = self._files.size
        return self._closed_size

    # --- opening and closing

    def open(self) -> None:
        """Make the log serve, recovered if need be. No-op when it is open.

        Raises StorageFailed, ProtocolError; DiskDamaged where the directory is of another topic.
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
                        self.storage_errors.tell(str(damage))
                        raise
                    self.storage_errors.told = ""
            elif state == "deleted":
                raise ProtocolError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif state == "offline":
                raise StorageFailed(f"{self}: log directory {self.directory.path} is offline")

    def _open_locked(self) -> None:
        promised = self._closed.recovery_point
        loaded = self._closed.load(
            self.topic_partition, self._fs, self.path, self._options, self._epochs, self._leader_epoch
        )
        # As Kafka: what has expired while nobody looked is not taken up again.
        loaded.producers.expire(self._oldest_producer_ms())
        self._closed.recovery_point = loaded.flushed_offset
        self._durable_start_offset = min(self._durable_start_offset, loaded.log_start_offset)
        if loaded.flushed_offset < promised:
            # Before anything is appended: the next recovery must not take for flushed what comes where something
            # was truncated or lost.
            self.context.on_recovery_point_lowered(self)
        # Once it is open others append at once.
        self._begin_epoch(loaded.log_end_offset)
        self._files.open(loaded, self._roll_jitter_ms)
        self._closed.opened()
        if self._options.flushed_visibility and loaded.flushed_offset < loaded.log_end_offset:
            self.state.request_flush()

    def close(self) -> None:
        """Flush, write down what the next open would else have to read the log for, close. Raises StorageFailed."""
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
                # Indexes may have been made anew: after a clean stop nobody looks whether they tell of this log.
                self._fs.sync_directory(self.path)
            self._keep_offsets()
            self.state.close()

    def shut(self) -> bool:
        """Close for good, at the broker's stop. False when the log has to be recovered at the next start."""
        with self._lock:
            self._is_shut = True
            self.close()
            return self._closed.is_clean and self.state.state == "closed"

    def _keep_offsets(self) -> None:
        self._closed.start_offset = self.checkpointed_start_offset
        self._closed.recovery_point = self.state.recovery_point

    # --- producers and flushes

    def active_producers(self) -> list[ActiveProducer]:
        """Every producer that is remembered here, by id (KIP-664)."""
        self.open()
        producers, _ = self.state.producers()
        return [
            ActiveProducer(producer_id, epoch, last_sequence, timestamp, coordinator_epoch, first)
            for producer_id, epoch, coordinator_epoch, timestamp, first, last_sequence in producers.states()
        ]

    def flush(self) -> None:
        """Everything appended before the call survives a power cut. Raises StorageFailed."""
        self.open()
        self.state.flush()

    # --- lookups

    def offset_for_timestamp(self, timestamp: int) -> lookup.TimestampOffset | None:
        """The first record at or after `timestamp`, by segments' and batches' largest timestamps (KIP-33)."""
        self._confirm_times()
        with self.storage_errors:
            return lookup.offset_for_timestamp(self, timestamp)

    def offset_of_max_timestamp(self) -> lookup.TimestampOffset | None:
        """The first record with the log's largest timestamp (KIP-734); None when no record has one."""
        self._confirm_times()
        with self.storage_errors:
            return lookup.offset_of_max_timestamp(self)

    def _confirm_times(self) -> None:
        """Lookups by time choose segments by largest timestamps: the first one asks the log whether it has those."""
        self.open()
        for base_offset in tuple(self._files.unread):
            with self._lock, self.storage_errors:
                self._files.confirm((base_offset,), self._options.index_interval_bytes)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """`(epoch, end offset)` of the largest epoch up to `epoch`; (-1, -1) when unknown (KIP-279)."""
        self.open()
        with self._lock:
            return self._epochs.end_offset_for(epoch, self.state.log_end_offset)

    def settle_epochs(self) -> None:
        """Write down what a full disk has kept of the leader epochs, before a checkpoint builds on it. Raises
        OSError, also where somebody else has the log's lock: he may wait for that checkpoint."""
        if self._epochs.is_stored:
            return
        if not self._lock.acquire(blocking=False):
            raise OSError(errno.EAGAIN, f"leader epochs of {self} are not written down yet")
        try:
            self._epochs.settle()
        finally:
            self._lock.release()

    def epoch_at(self, offset: int) -> int:
        """Leader epoch that wrote `offset`, -1 when unknown."""
        with self._lock:
            return self._epochs.epoch_at(offset)

    # --- changes

    def update_options(self, options: LogOptions) -> None:
        """In force from the next append, read and retention check on."""
        with self._lock:
            self._options = options
            self.state.update_options(options)

    def set_leader_epoch(self, epoch: int) -> None:
        """This broker leads the partition in `epoch`; batches are stamped with it, and fetches are compared."""
        with self._lock:
            self._leader_epoch = max(epoch, self._leader_epoch)
            end_offset = self.state.set_leader_epoch(self._leader_epoch)
            if self.state.state == "open":
                with self.storage_errors:
                    self._begin_epoch(end_offset)

    def _begin_epoch(self, end_offset: int) -> None:
        """Batches from `end_offset` on are stamped with the newest epoch known, and its start is written down."""
        self._leader_epoch = max(self._leader_epoch, self._epochs.latest)
        self.state.set_leader_epoch(self._leader_epoch)
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
                    self.context.on_log_start_moved(self)
                self.note_durable_start(self.state.log_start_offset)
            return self.state.log_start_offset

    def move_start(self, offset: int) -> bool:
        """As `delete_records_before`, without the checkpoint. Whether one has to be written."""
        with self._lock:
            self.open()
            high_watermark = self.state.high_watermark
            offset = high_watermark if offset == -1 else offset
            if not 0 <= offset <= high_watermark:
                raise ProtocolError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"{self}: offset {offset} is not in 0..{high_watermark}"
                )
            # Durable before it is answered: a power cut must not bring back what was deleted. Retention alone may have
            # moved the start as far, but that it does not make durable.
            if offset <= self._durable_start_offset:
                return False
            with self.storage_errors:
                self.state.advance_log_start_offset(offset)
                # The epochs first: a checkpoint that knows of a later start than they is not believed (recovery).
                self._epochs.truncate_from_start(self.state.log_start_offset)
            return True

    def note_durable_start(self, offset: int) -> None:
        """A checkpoint on the disk has this start of the log, or a later one."""
        with self._lock:
            self._durable_start_offset = max(self._durable_start_offset, min(offset, self.checkpointed_start_offset))

    def delete_old_segments(self, policies: tuple[retention.DeletionPolicy, ...] | None = None) -> int:
        """Delete whole segments that the policies are done with; how many. Files go after file.delete.delay.ms."""
        with self._lock:
            self.open()
            policies = retention.policies_for(self._options) if policies is None else policies
            with self.storage_errors:
                view, count = self._done_with(policies)
                if count == 0:
                    return 0
                if count == len(view.segments):
                    self._roll_locked(is_going=True)
                    # Appends go on meanwhile: what has come to the segment since may have to stay.
                    view = retention.view_of(self, self.context.clock.wall_ms())
                    count = retention.count_of(policies, view)
                segments = self.state.segments()
                count = min(count, len(segments) - 1)
                return self._remove_locked(segments[count].base_offset) if count else 0

    def _done_with(self, policies: tuple[retention.DeletionPolicy, ...]) -> tuple[retention.LogView, int]:
        """The log, and how many of its segments may go; of none of these an index alone says how old it is."""
        while True:
            view = retention.view_of(self, self.context.clock.wall_ms())
            count = retention.count_of(policies, view)
            bases = [at.base_offset for at in view.segments[:count]]
            if not self._files.confirm(bases, self._options.index_interval_bytes):
                return view, count

    def _remove_locked(self, before_offset: int) -> int:
        start_offset = max(before_offset, self.state.log_start_offset)
        # A flush since the checkpoint was written is not known to a recovery.
        recovery_point = min(self.state.recovery_point, self.written_recovery_point)
        handles = self.state.remove_segments(before_offset, start_offset)
        self._epochs.truncate_from_start(start_offset)
        if before_offset >= recovery_point:
            # The name of what the log begins with now is not flushed either: it must not go while theirs do.
            self._fs.sync_directory(self.path)
        paths: list[str] = []
        for handle in handles:
            paths += rename_to_deleted(self._fs, self.path, [handle.base_offset])
            if before_offset > recovery_point:
                # No flush covers them any more: were they back after a power cut, torn, or some only, recovery
                # would end the log there.
                self._fs.sync_directory(self.path)
        logger.info("%s: deleting %d segments below offset %d", self, len(handles), before_offset)
        self.context.remove_later(self, handles, paths)
        return len(handles)

    def replace_segments(self, segment: Segment, before_offset: int, history: int) -> bool:
        """Put the compacted `segment`, in `.cleaned` files, into the place of those from its base to `before_offset`.

        Never of the active one. The files must be on the device; `history` is the log's when they were begun. False:
        the old segments are gone or others meanwhile, and the files were removed.
        """
        base_offset = segment.base_offset
        with self._lock:
            is_other = self.state.state != "open" or self.history != history
            bases = [] if is_other else [at.base_offset for at in self.state.segments()[:-1]]
            old = [at for at in bases if base_offset <= at < before_offset]
            if not old or old[0] != base_offset:
                discard_cleaned(self._fs, self.path, base_offset)
                return False
            with self.storage_errors:
                begin_swap(self._fs, self.path, base_offset)
                try:
                    paths = finish_swap(self._fs, self.path, base_offset, old)
                except OSError as error:
                    # Neither the old names nor the new ones: only the next start can tell.
                    self.directory.fail(f"{self}: a compacted segment could not be swapped in: {error}")
                    raise
                handles = self.state.replace_segments(segment, before_offset)
            self.context.remove_later(self, handles, paths)
            return True

    def truncate_to(self, offset: int) -> None:
        """Drop every batch with a record at or above `offset` (a leader has less). Raises StorageFailed.

        Where compaction has left nothing right below `offset` the log ends with its last batch, as a start finds it. In
        Kafka it ends at `offset` until the next start: its end, and who reads there, are set back then.
        """
        with self._lock:
            self.open()
            if offset >= self.state.log_end_offset:
                return
            with self.storage_errors:
                self.state.begin_roll()
                self._keep_offsets()
                segments = self.state.segments()
                self._files.write_indexes(final=False)
                code, base_offset, position, _ = self.state.locate(offset, 1)
                handles = self.state.close()
                if code or base_offset < 0:
                    base_offset, position = min(offset, segments[0].base_offset), 0
                elif base_offset > offset:
                    # Compaction has left nothing from there to the end of its segment.
                    base_offset, position = next(
                        (at.base_offset, at.size) for at in reversed(segments) if at.base_offset <= offset
                    )
                self.history += 1
                self.truncated_to = min(self.truncated_to, offset)
                self._closed.cut(offset)
                self._files.truncate([at.base_offset for at in segments], base_offset, position)
                self._open_locked()
                # The one on the disk may be beyond that of this log, which knows what its indexes have not synced.
                self.context.on_recovery_point_lowered(self)
            del handles

    def delete(self) -> tuple[str, list[SegmentHandle]]:
        """Take the log out of service and rename its directory: its new path, and its segments for their readers."""
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

    def prepare(self, kind: int, base_offset: int) -> None:
        """Do what an append, a read or a flush cannot go on without. The situation may have changed: look again."""
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
                # The first flush of a segment: its leader epoch is to survive with it.
                self._epochs.make_durable()
                self._files.sync_names(base_offset)
            elif kind == _ABORTED:
                self._files.open_aborted(base_offset)
            elif kind == _TIME_INDEX:
                self._files.open_time_index(base_offset)

    def roll(self) -> None:
        """Close the active segment and begin a new one, unless it is empty."""
        with self._lock:
            self.open()
            with self.storage_errors:
                self._roll_locked()

    def _roll_locked(self, *, is_going: bool = False) -> None:
        """`is_going`: the active segment is about to be deleted, which may be what a full disk waits for."""
        base_offset = self.state.begin_roll()
        try:
            active = self._files.active
            if active.size == 0:
                return
            try:
                self._files.write_indexes(final=True)
            except StorageFailed:
                if not is_going or self.directory.is_offline:
                    raise
            self._files.store_snapshot()
            allocated = 0 if self.directory.is_full else self._options.allocated_bytes
            self._files.begin(base_offset, allocated, self._roll_jitter_ms())
            self._release_allocated(active)
        finally:
            self.state.abort_roll()
        # As Kafka: a closed segment is flushed, so that recovery has only the newest to read.
        self.state.request_flush()
        self.context.on_segment_opened(self, active.base_offset)

    def _release_allocated(self, segment: SegmentView) -> None:
        """What was reserved for a segment that takes no more messages, and not used."""
        if self._options.preallocate:
            self._files.cut(segment.base_offset, segment.size)

    # --- helpers

    def path_of(self, base_offset: int, suffix: str) -> str:
        return self._files.path_of(base_offset, suffix)

    def _roll_jitter_ms(self) -> int:
        limit = min(self._options.segment_jitter_ms, self._options.segment_ms)
        return self.context.random.randrange(limit) if limit > 0 else 0
