"""How the list of a log's segments changes while the log is open: rolls, retention, compaction."""

from __future__ import annotations

import logging
import threading

from kbroker._core.log.directory import LogDirectory
from kbroker._core.log.segment_list import SegmentView
from kbroker.errors import StorageFailed
from kbroker.fs import FileSystem
from kbroker.storage import file_names, retention
from kbroker.storage.failures import StorageErrors
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.log_records import LogRecords
from kbroker.storage.options import LogOptions
from kbroker.storage.segment import Segment
from kbroker.storage.segment_files import SegmentFiles
from kbroker.storage.segment_swap import begin_swap, discard_cleaned, finish_swap, rename_to_deleted

logger = logging.getLogger("kbroker.storage")


class LogSegments(LogRecords):
    """The part of a log that changes its list of segments. `_lock` is held during each change."""

    directory: LogDirectory
    storage_errors: StorageErrors
    written_recovery_point: int
    history: int = 0
    """Counts the truncations: after one, an offset may be that of another record than before."""
    _fs: FileSystem
    _lock: threading.RLock
    _options: LogOptions
    _epochs: LeaderEpochs
    _files: SegmentFiles

    def open(self) -> None:
        """Open the log if it is closed."""
        raise NotImplementedError

    def path_of(self, base_offset: int, suffix: str) -> str:
        return self._files.path_of(base_offset, suffix)

    @property
    def path(self) -> str:
        """The log's directory."""
        return self._files.path

    # --- rolls

    def roll(self) -> None:
        """Close the active segment and begin a new one. No-op if the active segment is empty. Raises StorageFailed."""
        with self._lock:
            self.open()
            with self.storage_errors:
                self._roll_locked()

    def _roll_locked(self, *, is_going: bool = False) -> None:
        """Roll the log; the caller holds its lock.

        `is_going`: the active segment is about to be deleted. Then a full disk that takes no index entries is no error:
        the deletion may be what makes space.
        """
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
        # As in Kafka, a closed segment is flushed, so that recovery has only the newest one to read.
        self.state.request_flush()
        self.context.on_segment_opened(self, active.base_offset)

    def _release_allocated(self, segment: SegmentView) -> None:
        """Release the space that was reserved for a segment and not used, once it takes no more messages."""
        if self._options.preallocate:
            self._files.cut(segment.base_offset, segment.size)

    def _roll_jitter_ms(self) -> int:
        limit = min(self._options.segment_jitter_ms, self._options.segment_ms)
        return self.context.random.randrange(limit) if limit > 0 else 0

    # --- retention

    @property
    def delete_delay_ms(self) -> int:
        """How long the log's deleted files stay, in ms; 0 on a full disk, which waits for their space."""
        return 0 if self.directory.is_full else self._options.file_delete_delay_ms

    def delete_old_segments(self, policies: tuple[retention.DeletionPolicy, ...] | None = None) -> int:
        """Delete the segments that the policies let go, and return how many those are. None: the options' policies.

        Their files are removed after file.delete.delay.ms. Raises StorageFailed.
        """
        with self._lock:
            self.open()
            policies = retention.policies_for(self._options) if policies is None else policies
            with self.storage_errors:
                view, count = self._count_deletable(policies)
                if count == 0:
                    return 0
                if count == len(view.segments):
                    self._roll_locked(is_going=True)
                    # Appends went on meanwhile: the records that they brought may have to stay.
                    view = self._retention_view()
                    count = retention.count_of(policies, view)
                segments = self.state.segments()
                count = min(count, len(segments) - 1)
                return self._remove_locked(segments[count].base_offset) if count else 0

    def _count_deletable(self, policies: tuple[retention.DeletionPolicy, ...]) -> tuple[retention.LogView, int]:
        """Return a view of the log, and how many of its oldest segments the policies let go.

        The age of each of these segments was checked against its batches, not only its index.
        """
        while True:
            view = self._retention_view()
            count = retention.count_of(policies, view)
            bases = [at.base_offset for at in view.segments[:count]]
            if not self._files.confirm(bases, self._options.index_interval_bytes):
                return view, count

    def _retention_view(self) -> retention.LogView:
        return retention.view_of(
            self.state, lambda base_offset: self.path_of(base_offset, file_names.LOG), self.context.clock.wall_ms()
        )

    def _remove_locked(self, before_offset: int) -> int:
        start_offset = max(before_offset, self.state.log_start_offset)
        # Recovery knows nothing of a flush after the checkpoint was written.
        recovery_point = min(self.state.recovery_point, self.written_recovery_point)
        handles = self.state.remove_segments(before_offset, start_offset)
        self._epochs.truncate_from_start(start_offset)
        if before_offset >= recovery_point:
            # The name of the log's new first segment may not be durable yet: it must be before the old names go.
            self._fs.sync_directory(self.path)
        paths: list[str] = []
        for handle in handles:
            paths += rename_to_deleted(self._fs, self.path, [handle.base_offset])
            if before_offset > recovery_point:
                # No flush covers these segments. If a power cut brought some of them back, or torn ones, recovery
                # would end the log there.
                self._fs.sync_directory(self.path)
        logger.info("%s: deleting %d segments below offset %d", self, len(handles), before_offset)
        self.context.remove_later(self.delete_delay_ms, handles, paths)
        return len(handles)

    # --- compaction

    def replace_segments(self, segment: Segment, before_offset: int, history: int) -> bool:
        """Replace the segments from `segment`'s base offset to `before_offset` with the compacted `segment`.

        Its `.cleaned` files must be on the device. The active segment is never replaced. `history` is the log's
        `history` when the compaction began. Returns False if the old segments are gone or have changed since; then the
        `.cleaned` files were removed. Raises StorageFailed.
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
                    # Some files may have their old names, others new ones: only the next start can mend that.
                    self.directory.fail(f"{self}: a compacted segment could not be swapped in: {error}")
                    raise
                handles = self.state.replace_segments(segment, before_offset)
            self.context.remove_later(self.delete_delay_ms, handles, paths)
            return True
