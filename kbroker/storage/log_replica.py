"""What is changed of a log as a replica: leader epochs, truncation, beginning anew elsewhere, another directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from kbroker._core.log.scan.segment_scan import scan_segment
from kbroker._core.log.segment_list import SegmentHandle, SegmentView
from kbroker.errors import ErrorCode, StorageFailed
from kbroker.model import TopicPartition
from kbroker.storage import file_names
from kbroker.storage.closed_log import ClosedLog
from kbroker.storage.directory import delete_directory_name
from kbroker.storage.log_context import LogContext
from kbroker.storage.log_segments import LogSegments
from kbroker.storage.options import NEVER

logger = logging.getLogger("kbroker.storage")

COPY_EPOCH = (1 << 31) - 1
"""The leader epoch in which a copy follows the log that it is of: no record has a newer one."""
COPIED_AT_ONCE = 1 << 20
"""Bytes."""


class LogReplica(LogSegments):
    """The part of a log that a follower drives. `_lock` is held during each change."""

    context: LogContext
    truncated_to: int = NEVER
    """The lowest offset of the truncations that the cleaner's checkpoint does not know of yet."""
    uncut: int = NEVER
    """Up to which offset a copy of this log has the same records, if it had them at its last look."""
    topic_partition: TopicPartition
    _closed: ClosedLog

    lacks_below: int = 0
    """Below this offset committed records may be missing; 0: the log is complete."""
    damaged_from: int = NEVER
    """From this offset on the log is not trusted; NEVER: it is."""

    def open(self) -> None:
        raise NotImplementedError

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

    # --- missing records

    @property
    def is_complete(self) -> bool:
        """Whether the log has every record that was committed when it was used last.

        What a closed log lacks is known when `open` has been called, even if that has failed.
        """
        return not self.lacks_below and not self._closed.refusal

    @property
    def checkpointed_high_watermark(self) -> int:
        """The offset for replication-offset-checkpoint. A log that is not complete keeps that of before."""
        return max(self.state.high_watermark, self.lacks_below)

    def note_lost(self) -> None:
        """Note that this log is new in place of one that the cluster takes for existing: it has been lost."""
        self.lacks_below = NEVER

    def note_damage(self, offset: int) -> None:
        """Note that a batch is damaged, and that the log is not to be trusted from `offset` on."""
        with self._lock:
            self.damaged_from = min(self.damaged_from, offset)
            self.lacks_below = max(self.lacks_below, self.state.high_watermark, offset + 1)

    def find_damage(self, offset: int) -> int | None:
        """Read the segment that has `offset`, with all CRCs. Return the offset of its first damaged batch, if any.

        It is logged with its place. Opens the log. Raises StorageFailed.
        """
        self.open()
        at = next((each for each in reversed(self.state.segments()) if each.base_offset <= offset), None)
        if at is None or not at.size:
            return None
        path = self.path_of(at.base_offset, file_names.LOG)
        with self.storage_errors:
            fd = self._fs.open(path, os.O_RDONLY)
            try:
                scan = scan_segment(fd, at.size, at.base_offset, index_interval_bytes=(1 << 31) - 1)
            finally:
                self._fs.close(fd)
        if scan.reason is None:
            return None
        logger.error("%s: %s at byte %d, offset %d", path, scan.reason, scan.valid_size, scan.next_offset)
        return scan.next_offset

    def mend(self) -> None:
        """Cut off what is damaged. What is missing then comes from the leader: the log counts as complete.

        Raises StorageFailed.
        """
        with self._lock:
            self._closed.allow_cut()
            self.open()
            if self.damaged_from != NEVER:
                self.truncate_to(max(self.damaged_from, self.state.log_start_offset))
            self.lacks_below, self.damaged_from = 0, NEVER

    def accept(self) -> None:
        """Take the log for complete as it is: nobody has more. Raises StorageFailed, DiskDamaged."""
        with self._lock:
            self.open()
            self.lacks_below, self.damaged_from = 0, NEVER

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
        """Let the active segment begin at `offset`, if it is empty; the whole log, if that ends above `offset`.

        What a log has on the disk whose records were all deleted counts for nothing.
        """
        if offset < self.state.log_end_offset:
            if self.state.log_start_offset == self.state.log_end_offset:
                self.begin_at(offset)
            return
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
        self.uncut = min(self.uncut, offset)
        self._closed.cut(offset)
        cut()
        # Should it not open now, a fetch that asks for what follows must not ask beyond what is left.
        self.state.set_closed_offsets(self._closed.start_offset, offset, min(self.state.high_watermark, offset))
        self._open_locked()
        # The recovery point on the disk may be beyond this log's, which knows what its indexes have not synced.
        self.context.store_recovery_points(self.directory)

    # --- another directory

    def close(self) -> None:
        """Flush the log and close it."""
        raise NotImplementedError

    def copy_to(self, copy: LogReplica, max_bytes: int = COPIED_AT_ONCE) -> int:
        """Let `copy`, which follows in COPY_EPOCH, have the next records of this log. Return the bytes; 0: it has all.

        What was cut off here since the last call is cut off there too. Raises StorageFailed; ProtocolError if this log
        has changed in between, and it is worth another try.
        """
        with self._lock:
            self.open()
            uncut, self.uncut = self.uncut, NEVER
        state, start_offset = copy.state, self.state.log_start_offset
        if uncut < state.log_end_offset:
            copy.truncate_to(uncut)
        if state.log_end_offset < start_offset:
            copy.begin_at(start_offset)
        if state.log_end_offset >= self.state.log_end_offset:
            return 0
        records = self.read(state.log_end_offset, max_bytes, to_log_end=True)
        if not records:
            return 0
        code = state.append_as_follower(records, COPY_EPOCH, self.state.high_watermark, start_offset)
        if code:
            raise StorageFailed(f"{copy.path}: {ErrorCode(code).name} at offset {state.log_end_offset}")
        return len(records)

    def move_to(
        self, copy: LogReplica, arrives: Callable[[], None], left: Callable[[], None]
    ) -> tuple[str, list[SegmentHandle]]:
        """Go on in the directory of `copy`, which is flushed and has nearly all of this log.

        Appends wait meanwhile. `arrives` is called before the files have their new name: it writes the checkpoints of
        the new directory, which have to know this log by then. `left` is called before the log serves again. Returns
        the new path of the old directory and the handles of its segments.

        Raises StorageFailed; then the log is where it was.
        """
        with self._lock:
            self.open()
            self.state.begin_roll()
            try:
                while self.copy_to(copy):
                    pass
                if copy.state.log_end_offset < self.state.log_end_offset:
                    copy._begin_active_at(self.state.log_end_offset)  # compaction has left nothing at the end
                copy.close()
                with copy.storage_errors:
                    self._epochs.store_in(copy.path)
                    arrives()
            except BaseException:
                self.state.abort_roll()
                raise
            self._keep_offsets()
            with self.storage_errors:
                handles = self.state.close()
            old_path, new_path = self._rename_for(copy)
            self._files.move(new_path)
            self._epochs.move(new_path)
            self.directory, self.storage_errors = copy.directory, copy.storage_errors
            self.state.set_directory(self.directory)
            self._closed.recovery_point = self.state.log_end_offset
            self.history += 1
            left()
            with self.storage_errors:
                self._open_locked()
            self.state.request_flush()  # whoever waits for a flush has it
            return old_path, handles

    def _rename_for(self, copy: LogReplica) -> tuple[str, str]:
        """Rename this log's directory to that of a deleted log, and the copy's to what this one's was.

        A start that finds the first without the second makes up for it. Returns the new paths. Raises StorageFailed, if
        the log was opened again where it was.
        """
        directory, _, name = self.path.rpartition("/")
        old_path = f"{directory}/{delete_directory_name(self.topic_partition, self.context.random)}"
        new_directory = copy.path.rpartition("/")[0]
        new_path = f"{new_directory}/{name}"
        try:
            with self.storage_errors:
                self._fs.rename(self.path, old_path)
                self._fs.sync_directory(directory)
            try:
                with copy.storage_errors:
                    self._fs.rename(copy.path, new_path)
                    self._fs.sync_directory(new_directory)
            except StorageFailed:
                with self.storage_errors:
                    self._fs.rename(old_path, self.path)
                    self._fs.sync_directory(directory)
                raise
        except StorageFailed:
            with self.storage_errors:
                self._open_locked()
            raise
        return old_path, new_path
