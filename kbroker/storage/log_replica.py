"""What a follower changes of its log because of its leader: leader epochs, truncation, beginning anew elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from kbroker._core.log.segment_list import SegmentView
from kbroker.storage.closed_log import ClosedLog
from kbroker.storage.log_context import LogContext
from kbroker.storage.log_segments import LogSegments


class LogReplica(LogSegments):
    """The part of a log that a follower drives. `_lock` is held during each change."""

    context: LogContext
    truncated_to: int
    _closed: ClosedLog

    def _open_locked(self) -> None:
        raise NotImplementedError

    def _keep_offsets(self) -> None:
        raise NotImplementedError

    def note_durable_start(self, offset: int) -> None:
        """Note that log-start-offset-checkpoint has this start of the log."""
        raise NotImplementedError

    # --- leader epochs

    @property
    def newest_epoch(self) -> int:
        """The newest leader epoch that the log knows; -1 if it knows none. Opens the log."""
        self.open()
        return self.state.newest_epoch

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """The leader epochs that the log knows and where each begins, ascending. Opens the log."""
        self.open()
        with self._lock:
            return self._epochs.entries

    def follow_start(self, offset: int) -> None:
        """Let the log start where its leader's does, but not above the high watermark. Raises StorageFailed."""
        self.move_start(min(offset, self.state.high_watermark))

    def move_start(self, offset: int) -> bool:
        """Move the log's start to `offset`. Return whether log-start-offset-checkpoint has to be written."""
        raise NotImplementedError

    def _follow_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that the leader's `epoch` begins at `start_offset`, where the log goes on. `settle_epochs` stores it."""
        if epoch > self._epochs.latest:
            self._epochs.begin(epoch, start_offset)

    # --- truncation

    def truncate_to(self, offset: int) -> None:
        """Drop every batch with a record at or above `offset`: this broker has more than the leader.

        Leader epochs that begin at `offset` or above are forgotten even if there is no such batch. If compaction has
        left a gap right below `offset`, the log ends with the last batch before the gap, as the next start would find
        it. In Kafka the log ends at `offset` until the next start, which then sets its end and its readers back. Raises
        StorageFailed.
        """
        with self._lock:
            self.open()
            if offset >= self.state.log_end_offset:
                with self.storage_errors:
                    self._epochs.truncate_from_end(offset)
                return
            with self.storage_errors:
                segments = self._begin_cut(offset)
                found = self.state.locate(offset, 1, to_log_end=True)
                base_offset, position = found.base_offset, found.position
                handles = self.state.close()
                if found.code or base_offset < 0:
                    base_offset, position = min(offset, segments[0].base_offset), 0
                elif base_offset > offset:
                    # Compaction has left nothing from `offset` to the end of the segment that it was in.
                    base_offset, position = next(
                        (at.base_offset, at.size) for at in reversed(segments) if at.base_offset <= offset
                    )
                self._reopen_cut(
                    offset, lambda: self._files.truncate([at.base_offset for at in segments], base_offset, position)
                )
            del handles

    def begin_at(self, offset: int) -> None:
        """Empty the log, and let it begin at `offset`: the leader has nothing of what is here.

        Raises StorageFailed.
        """
        with self._lock:
            self.open()
            with self.storage_errors:
                segments = self._begin_cut(offset)
                handles = self.state.close()
                # No start of this log, and no epoch, is left that the new records could be compared with.
                self._closed.start_offset = offset
                self._epochs.clear()
                self._reopen_cut(offset, lambda: self._files.replace([at.base_offset for at in segments], offset))
                self.context.store_start_offsets(self.directory)
            self.note_durable_start(offset)
            del handles

    def _begin_active_at(self, offset: int) -> None:
        """Let the active segment begin at `offset`, if it is empty."""
        if self._files.active.size:
            return
        if len(self.state.segments()) == 1:
            self.begin_at(offset)
            return
        # The offsets up to `offset` have no records, as compaction has left the leader's log.
        active = self._begin_cut(offset)[-1].base_offset
        handles = self.state.close()
        self._reopen_cut(offset, lambda: self._files.replace([active], offset))
        del handles

    def _begin_cut(self, offset: int) -> list[SegmentView]:
        """Hold appends back before something is cut off. Returns the segments."""
        self.state.begin_roll()
        self._keep_offsets()
        segments = self.state.segments()
        self._files.write_indexes(final=False)
        return segments

    def _reopen_cut(self, offset: int, cut: Callable[[], None]) -> None:
        self.history += 1
        self.truncated_to = min(self.truncated_to, offset)
        self._closed.cut(offset)
        cut()
        self._open_locked()
        # The recovery point on the disk may be beyond this log's, which knows what its indexes have not synced.
        self.context.store_recovery_points(self.directory)
