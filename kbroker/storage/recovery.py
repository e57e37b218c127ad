"""Bringing a log's files into a state that can be served.

After a clean stop the files are taken as they are. After any other stop, every segment that reaches beyond the recovery
point is read: lengths, CRCs, offsets. The log is cut at the first batch that is not whole, and the segments behind the
cut are removed. Indexes, leader epochs and producers are made anew. Every segment but the active one is synced before
the log serves. Segments below the recovery point were synced with their indexes and are not read again. The aborted
transactions of a segment that is read are found again too; if no snapshot tells which transactions were open at the
segment's start, the log before it is read for them.

A clean stop loses nothing, so nothing is cut after one: a log that would lose records is refused (`LogRefused`), with
advice. Small files without a check sum are believed unless the batches contradict them (`Witness`).
"""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from kbroker._core.log.producer_table import ProducerTable
from kbroker._core.log.scan.segment_scan import SegmentScan, find_batch, scan_segment
from kbroker.errors import DiskDamaged, StorageFailed
from kbroker.fs import FileSystem, read_file, write_file
from kbroker.model import NO_LEADER_EPOCH
from kbroker.storage import file_names
from kbroker.storage.checkpoints import LEADER_EPOCHS, LOG_START_OFFSETS
from kbroker.storage.index_entries import ABORTED_TRANSACTION, INDEX_ENTRY, TIME_INDEX_ENTRY
from kbroker.storage.leader_epochs import LeaderEpochs
from kbroker.storage.options import LogOptions
from kbroker.storage.producer_replay import ProducerReplay
from kbroker.storage.segment import Progress, Segment, create_segment, remove_segment, scan_loaded, segment_of
from kbroker.storage.segment_swap import finish_leftovers
from kbroker.storage.witness import Witness

logger = logging.getLogger("kbroker.storage")

_INDEXES = {file_names.INDEX, file_names.TIME_INDEX}
_MOST_OFFSETS = 1 << 31
"""How many offsets a segment can have: its indexes keep them in 31 bits."""


class LogRefused(DiskDamaged):
    """Recovery would lose records of a log that was stopped cleanly. The message says what can be done.

    No record was changed or removed.
    """


class LoadedLog(NamedTuple):
    """A log's files, ready to be served."""

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    flushed_offset: int
    """Every record below this offset survives a power cut."""
    producers: ProducerTable
    cut_bytes: int
    """Bytes that recovery has cut off or removed."""
    unread: frozenset[int]
    """Base offsets of closed segments that are known from their indexes and file sizes only."""


class LogLoader:
    """Loads one partition's directory, once. `load` raises OSError, StorageFailed and LogRefused.

    `gaps_below`: a gap between segments that ends at this offset or below is kept. Compaction may have left it, or
    nobody knows any more how far the log was flushed, and records behind it may have been acknowledged as durable.
    `leader_epoch`: the newest epoch that the cluster has named so far.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        options: LogOptions,
        epochs: LeaderEpochs,
        *,
        is_clean: bool,
        recovery_point: int,
        log_start_offset: int,
        progress: Progress | None,
        gaps_below: int,
        leader_epoch: int = 0,
    ):
        self.fs = fs
        self.directory = directory
        self.options = options
        self.epochs = epochs
        self.is_clean = is_clean
        self.recovery_point = recovery_point
        self.log_start_offset = log_start_offset
        self.progress = progress
        self.gaps_below = gaps_below
        self.leader_epoch = leader_epoch
        self._witness = Witness(fs, directory)
        self._seen: list[tuple[int, int]] = []
        """Offsets and leader epochs of batches that were read for another reason."""
        self._unread: set[int] = set()
        self._files: dict[int, set[str]] = {}
        """The suffixes of the files in the directory, by base offset."""
        self._segments: list[Segment] = []
        self._next_offset = -1
        self._replay = ProducerReplay(fs, directory, self._files, self._segments, progress)
        self._scanned_epochs: list[tuple[int, int]] = []
        self._scanned_from: int | None = None
        self._scanned: set[int] = set()
        self._cut_bytes = 0
        self._has_new_names = False

    def load(self) -> LoadedLog:
        for name in finish_leftovers(self.fs, self.directory):
            at = file_names.parse_file_name(name)
            if not file_names.is_of_a_log(name):
                logger.warning("%s/%s is left alone: it is no file of a log", self.directory, name)
            elif at is not None and not at.step:
                self._files.setdefault(at.base_offset, set()).add(at.suffix)
        epochs_known = self.epochs.load()
        segments = self._load_segments()
        log_end_offset = self._end_of(segments)
        if segments:
            self._settle_start_offset(segments[0].base_offset, log_end_offset)
        if log_end_offset < self.log_start_offset or not segments:
            # The log was lost below the offset up to which records were deleted. It goes on from that offset: no offset
            # is given out again.
            self._remove(segments)
            self._replay.forget()
            log_end_offset = self.log_start_offset
            segments[:] = [create_segment(self.fs, self.directory, log_end_offset)]
        log_start_offset = max(self.log_start_offset, segments[0].base_offset)
        self.epochs.begin_at(log_start_offset)
        if not epochs_known or self._is_contradicted(segments, log_end_offset):
            self._scanned_from, self._scanned_epochs = segments[0].base_offset, self._scan_epochs(segments)
        else:
            self._cover_epochs(segments, log_start_offset)
        if self._scanned_from is not None:
            self.epochs.replace_from(self._scanned_from, self._scanned_epochs, log_end_offset)
        # The epoch that an empty log begins with stays.
        self.epochs.truncate_from_end(max(log_end_offset, log_start_offset + 1))
        self.epochs.truncate_from_start(log_start_offset)
        producers = self._replay.finish(log_end_offset)
        flushed_offset = log_end_offset
        if not self.is_clean:
            flushed_offset = max(segments[-1].base_offset, min(self.recovery_point, log_end_offset))
        if log_start_offset == log_end_offset:
            self._settle_epoch_of_empty(segments, log_end_offset)
        return LoadedLog(
            segments, log_start_offset, log_end_offset, flushed_offset, producers, self._cut_bytes,
            frozenset(self._unread),
        )  # fmt: skip

    def _settle_start_offset(self, first_base: int, log_end_offset: int) -> None:
        """Compare log-start-offset-checkpoint with the leader epochs, and choose where the log starts.

        The first leader epoch begins where the log does: DeleteRecords makes that durable before it writes the
        checkpoint. So an earlier first epoch contradicts the checkpoint, and the log starts at the epoch. Raises
        LogRefused if the checkpoint would remove all of a log that was stopped cleanly.
        """
        claimed, epochs = self.log_start_offset, self.epochs.entries
        if claimed <= first_base:
            return
        checkpoint = f"{self.directory.rpartition('/')[0]}/{LOG_START_OFFSETS}"
        name = self.directory.rpartition("/")[2]
        if epochs and epochs[0][1] < claimed:
            self.log_start_offset = max(first_base, epochs[0][1])
            logger.error(
                "%s: the log starts at offset %d by %s, at %d by its %s: it starts at %d, so that no record is hidden"
                " or deleted", self.directory, claimed, checkpoint, epochs[0][1], LEADER_EPOCHS, self.log_start_offset,
            )  # fmt: skip
        elif claimed > log_end_offset and self.is_clean:
            what = f"{name} starts at offset {claimed}, its log ends at {log_end_offset}: all of it would be removed"
            advice = (
                f"put the right offset into the line of {name}, or remove the line and lower the number above by one;"
                f" or remove the segments in {self.directory} to go on from offset {claimed}; then start again"
            )
            raise LogRefused(checkpoint, -1, what, advice)

    # --- segments

    def _load_segments(self) -> list[Segment]:
        bases = sorted(base_offset for base_offset, suffixes in self._files.items() if file_names.LOG in suffixes)
        if len(bases) > 1 and self._is_failed_roll(bases[-2], bases[-1]):
            self._remove([Segment(bases.pop(), 0)])
        for number, base_offset in enumerate(bases, start=1):
            scanned_from = self._scanned_from
            goes_on, loaded = self._load_segment(base_offset, bases[number:])
            self._segments.append(loaded)
            if scanned_from is not None and base_offset not in self._scanned:
                # A trusted segment behind one that was read: what is found from there on replaces the known epochs.
                self._add_epochs(scan_loaded(self.fs, self.directory, loaded, self.progress))
            if not goes_on:
                break
        return self._segments

    def _is_failed_roll(self, base_offset: int, next_base: int) -> bool:
        """Whether the newest segment is left over from a failed roll: the segment before it took more batches."""
        if self._log_size(next_base):
            return False
        fd = self.fs.open(self._path(base_offset, file_names.LOG), os.O_RDONLY)
        try:
            size = self.fs.file_size(fd)
            is_trusted = self.is_clean and self._has_indexes(base_offset)
            if is_trusted and self._trust_active(fd, base_offset, size) is not None:
                return self._next_offset > next_base
            return scan_segment(fd, size, base_offset, verify=False).next_offset > next_base
        finally:
            self.fs.close(fd)

    def _load_segment(self, base_offset: int, behind: list[int]) -> tuple[bool, Segment]:
        """Load a segment. Returns whether the log goes on with the segments `behind` it, and the segment."""
        # Not trusted if the recovery point is the next segment's base offset: the point may be older than the roll, and
        # then the indexes are not synced.
        is_trusted = self._has_indexes(base_offset) and (
            self.is_clean or (bool(behind) and behind[0] < self.recovery_point)
        )
        if is_trusted and behind:
            # Reads only sizes and the last index entries: a start loads thousands of segments.
            loaded = self._trust_segment(base_offset, self._log_size(base_offset))
            if loaded is not None:
                self._unread.add(base_offset)
                return True, loaded
        fd = self.fs.open(self._path(base_offset, file_names.LOG), os.O_RDWR)
        try:
            size = self.fs.file_size(fd)
            if is_trusted and not behind:
                loaded = self._trust_active(fd, base_offset, size)
                if loaded is not None:
                    return True, loaded
            return self._recover_segment(fd, base_offset, size, behind)
        finally:
            self.fs.close(fd)

    def _has_indexes(self, base_offset: int) -> bool:
        return self._files[base_offset] >= _INDEXES

    def _trust_segment(self, base_offset: int, size: int) -> Segment | None:
        """Return a segment as its file sizes and last index entries describe it; None if these contradict."""
        loaded = Segment(base_offset, size, max_timestamp_offset=base_offset)
        last_entry = self._last_entry(base_offset, file_names.INDEX, INDEX_ENTRY.size)
        last_time_entry = self._last_entry(base_offset, file_names.TIME_INDEX, TIME_INDEX_ENTRY.size)
        if last_entry is None or last_time_entry is None:
            return None
        loaded.index_count, entry = last_entry
        loaded.time_index_count, time_entry = last_time_entry
        position = 0
        if entry:
            relative_offset, position = INDEX_ENTRY.unpack(entry)
            if relative_offset < 0 or not 0 <= position < size:
                what = f"its last entry points to byte {position} of {size}"
                self._distrust(base_offset, file_names.INDEX, loaded.index_count * INDEX_ENTRY.size, what)
                return None
        loaded.bytes_since_index = size - position
        if file_names.TRANSACTION_INDEX in self._files[base_offset]:
            last_aborted = self._last_entry(base_offset, file_names.TRANSACTION_INDEX, ABORTED_TRANSACTION.size)
            if last_aborted is None:
                return None
            loaded.aborted_count = last_aborted[0]
        if time_entry:
            loaded.max_timestamp, relative_offset = TIME_INDEX_ENTRY.unpack(time_entry)
            if relative_offset < 0 or loaded.max_timestamp < 0:
                at = loaded.time_index_count * TIME_INDEX_ENTRY.size
                self._distrust(base_offset, file_names.TIME_INDEX, at, "its last entry is none")
                return None
            loaded.max_timestamp_offset = base_offset + relative_offset
            loaded.last_time_entry = loaded.max_timestamp
        return loaded

    def _distrust(self, base_offset: int, suffix: str, position: int, what: str) -> None:
        logger.warning("%s: %s, before byte %d; indexes are made anew", self._path(base_offset, suffix), what, position)

    def _trust_active(self, fd: int, base_offset: int, size: int) -> Segment | None:
        """Return the newest segment from its indexes and the batches behind the last index entry.

        None if the batches contradict the indexes.
        """
        loaded = self._trust_segment(base_offset, size)
        if loaded is None:
            return None
        position = size - loaded.bytes_since_index
        scan = scan_segment(
            fd, size, base_offset, position=position, verify=False, max_timestamp=loaded.max_timestamp,
            max_timestamp_offset=loaded.max_timestamp_offset, index_interval_bytes=(1 << 31) - 1,
        )  # fmt: skip
        if scan.reason is not None:
            logger.warning(
                "%s: %s at byte %d after a clean stop",
                self._path(base_offset, file_names.LOG),
                scan.reason,
                scan.valid_size,
            )
            return None
        try:
            first = find_batch(fd, size) if size else None
        except StorageFailed:
            return None  # recovery reads the segment from its start and says what is wrong
        # An empty time index is right only if the tail begins at byte 0 or the messages have no timestamps.
        is_told = loaded.time_index_count > 0 or position == 0 or first is None or first.max_timestamp < 0
        if not is_told or (loaded.time_index_count and not self._witness.has_timestamp(loaded, fd)):
            what = f"its last entry tells of timestamp {loaded.max_timestamp}, which the log does not have there"
            self._distrust(base_offset, file_names.TIME_INDEX, loaded.time_index_count * TIME_INDEX_ENTRY.size, what)
            return None
        if loaded.aborted_count:
            aborted = self._witness.aborted_entries(base_offset, size, scan.next_offset)
            if aborted is not None:
                what = "it does not tell what was aborted in the log"
                self._distrust(base_offset, file_names.TRANSACTION_INDEX, 0, what)
                return None
        loaded.max_timestamp = scan.max_timestamp
        loaded.max_timestamp_offset = scan.max_timestamp_offset
        if first is not None:
            loaded.first_timestamp = first.max_timestamp
            self._seen = [(first.base_offset, first.leader_epoch)]
            self._seen += [(offset, epoch) for epoch, offset in scan.epochs]
        self._next_offset = scan.next_offset
        return loaded

    def _last_entry(self, base_offset: int, suffix: str, entry_size: int) -> tuple[int, bytes] | None:
        """Return the entry count and the last entry of an index file; None if its size is not that of whole entries."""
        fd = self.fs.open(self._path(base_offset, suffix), os.O_RDONLY)
        try:
            size = self.fs.file_size(fd)
            if size % entry_size:
                self._distrust(base_offset, suffix, size, f"{size % entry_size} bytes behind its last entry")
                return None
            return size // entry_size, self.fs.pread(fd, entry_size, size - entry_size) if size else b""
        finally:
            self.fs.close(fd)

    def _recover_segment(self, fd: int, base_offset: int, size: int, behind: list[int]) -> tuple[bool, Segment]:
        self._replay.advance(base_offset)
        scan = scan_segment(
            fd, size, base_offset, index_interval_bytes=self.options.index_interval_bytes, progress=self.progress,
            producers=self._replay.producers, producers_from=self._replay.replayed_to,
        )  # fmt: skip
        is_cut = scan.valid_size < size
        if is_cut and self.is_clean:
            path = self._path(base_offset, file_names.LOG)
            what = f"{scan.reason} in a log that was stopped cleanly, which would lose what is there and behind it,"
            advice = f"put a copy of the file back; or, to go on without, cut it there (truncate -s {scan.valid_size})"
            if behind:
                advice += ", and remove the files of the segments behind it"
            raise LogRefused(path, scan.valid_size, what, f"{advice}; then start again")
        is_active = not behind or is_cut or self._has_gap(base_offset, scan.next_offset, behind[0])
        if is_active and behind:
            # The segments behind go first, durably: with the tail cut first, a power cut could leave a gap before them.
            logger.warning(
                "%s: removing %d segments, the log ends at offset %d", self.directory, len(behind), scan.next_offset
            )
            self._remove([Segment(later, self._log_size(later)) for later in behind])
        if is_cut:
            logger.warning(
                "%s: cut at byte %d of %d, %s; the log ends at offset %d",
                self._path(base_offset, file_names.LOG), scan.valid_size, size, scan.reason, scan.next_offset,
            )  # fmt: skip
            self.fs.ftruncate(fd, scan.valid_size)
            self._cut_bytes += size - scan.valid_size
        if is_cut or not is_active:
            self.fs.fdatasync(fd)
        if self._replay.producers is not None:
            self._replay.replayed_to = scan.next_offset
        aborted = self._aborted_in(fd, base_offset, scan) if scan.marker_seen else scan.aborted
        recovered, time_index = segment_of(base_offset, scan, is_closed=not is_active)
        recovered.aborted_count = len(aborted) // ABORTED_TRANSACTION.size
        self._write_aborted(base_offset, aborted, durable=not is_active)
        # The active segment's indexes are made anew after every unclean stop: they need not survive a power cut.
        self._write_index(base_offset, file_names.INDEX, scan.index, durable=not is_active)
        self._write_index(base_offset, file_names.TIME_INDEX, time_index, durable=not is_active)
        if self._scanned_from is None:
            self._scanned_from = base_offset
        self._scanned.add(base_offset)
        self._add_epochs(scan)
        self._next_offset = scan.next_offset
        return not is_active, recovered

    def _aborted_in(self, fd: int, base_offset: int, scan: SegmentScan) -> bytes:
        """Return the .txnindex of a segment that was read without knowing which transactions were open at its start."""
        producers = self._replay.begin_anew(base_offset)
        again = scan_segment(
            fd, scan.valid_size, base_offset, verify=False, index_interval_bytes=(1 << 31) - 1,
            producers=producers, producers_from=base_offset,
        )  # fmt: skip
        self._replay.replayed_to = scan.next_offset
        return again.aborted

    def _has_gap(self, base_offset: int, next_offset: int, next_base: int) -> bool:
        """Whether records between two segments were lost, at a batch's boundary.

        The segment behind such a gap is beyond the recovery point: its records were never promised to be durable. A
        follower's segment begins where the one before it ends, also if compaction has removed records there, unless
        they are too many for one segment.
        """
        if self.is_clean or self.options.compacted or self.options.may_have_gaps:
            return False
        is_beyond = next_base > max(self.recovery_point, self.gaps_below)
        return is_beyond and next_base > next_offset and next_base - base_offset < _MOST_OFFSETS

    def _write_index(self, base_offset: int, suffix: str, data: bytes, *, durable: bool) -> None:
        """Write an index as a new file; the old file may still be mapped. No-op if it is the same and not `durable`."""
        path = self._path(base_offset, suffix)
        try:
            if not durable and read_file(self.fs, path) == data:
                return
            self.fs.unlink(path)
        except FileNotFoundError:
            pass
        write_file(self.fs, path, data, durable=durable)
        self._has_new_names |= durable

    def _write_aborted(self, base_offset: int, data: bytes, *, durable: bool) -> None:
        """Write a segment's .txnindex. If nothing was aborted in it, remove the old one: it tells of lost records."""
        if data:
            self._write_index(base_offset, file_names.TRANSACTION_INDEX, data, durable=durable)
        elif file_names.TRANSACTION_INDEX in self._files[base_offset]:
            self.fs.unlink(self._path(base_offset, file_names.TRANSACTION_INDEX))
            self._has_new_names |= durable

    def _end_of(self, segments: list[Segment]) -> int:
        if not segments:
            return 0
        # The first flush of the active segment makes the names of its files durable.
        segments[-1].entry_synced = False
        if self._has_new_names:
            self.fs.sync_directory(self.directory)
            self.fs.sync_directory(self.directory.rpartition("/")[0])
        return self._next_offset

    def _remove(self, segments: list[Segment]) -> None:
        """Remove segments, durably, the newest first: after a crash in the middle the rest is still a log."""
        for gone in reversed(segments):
            self._cut_bytes += gone.size
            remove_segment(self.fs, self.directory, gone.base_offset)
            self._files.pop(gone.base_offset, None)
        self.fs.sync_directory(self.directory)

    # --- leader epochs

    def _add_epochs(self, scan: SegmentScan) -> None:
        self._scanned_epochs += [
            entry for entry in scan.epochs if not self._scanned_epochs or entry[0] > self._scanned_epochs[-1][0]
        ]

    def _is_contradicted(self, segments: list[Segment], log_end_offset: int) -> bool:
        """Whether batches that recovery has not read have other leader epochs than the checkpoint says.

        If so, the known epochs are forgotten.
        """
        end_offset = min(log_end_offset, *self._scanned) if self._scanned else log_end_offset
        unread = [at for at in segments if at.size and at.base_offset < end_offset]
        entries = [entry for entry in self.epochs.entries if entry[1] < end_offset]
        seen = [(offset, epoch) for offset, epoch in self._seen if offset < end_offset]
        found = self._witness.against_epochs(entries, unread, end_offset, seen) if unread else None
        if found is None:
            return False
        logger.warning("%s/%s: %s; it is made anew from the log", self.directory, LEADER_EPOCHS, found)
        self.epochs.forget()
        return True

    def _settle_epoch_of_empty(self, segments: list[Segment], end_offset: int) -> None:
        """Believe the newest epoch of an empty log only if the cluster or a batch has named one at least as new.

        Otherwise a damaged checkpoint alone could fence everybody. A member of a cluster has not been told an epoch
        yet: there a leader drops newer ones when it begins its own, and a follower when its leader does not know them.
        """
        if self.leader_epoch == NO_LEADER_EPOCH:
            return
        known = max(self.leader_epoch, self._witness.epoch_before(end_offset, segments))
        if self.epochs.latest > known:
            logger.warning(
                "%s/%s: epoch %d, which no batch has; it is %d as long as nobody says another",
                self.directory, LEADER_EPOCHS, self.epochs.latest, max(known, 0),
            )  # fmt: skip
            self.epochs.forget()
            self.epochs.assign(max(known, 0), end_offset)

    def _cover_epochs(self, segments: list[Segment], log_start_offset: int) -> None:
        """Add the epochs below the first known one, if that begins above the log's start.

        They are missing if a power cut brought segments back whose epochs retention had forgotten, or if the first
        entry of the checkpoint is damaged.
        """
        first_offset = self.epochs.entries[0][1] if self.epochs.entries else 1 << 63
        if first_offset <= log_start_offset:
            return
        if self.is_clean and self._witness.epoch_before(log_start_offset + 1, segments) == NO_LEADER_EPOCH:
            return  # messages of the old formats have no leader epoch
        scanned_from = (1 << 63) if self._scanned_from is None else self._scanned_from
        back = [at for at in segments if at.size and at.base_offset < min(first_offset, scanned_from)]
        if self.is_clean and back:
            logger.warning(
                "%s/%s: its first epoch begins at offset %d, the log at %d; it is completed from the log",
                self.directory, LEADER_EPOCHS, first_offset, log_start_offset,
            )  # fmt: skip
        self.epochs.cover(self._scan_epochs(back))

    def _scan_epochs(self, segments: list[Segment]) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for at in segments:
            scan = scan_loaded(self.fs, self.directory, at, self.progress)
            found += [entry for entry in scan.epochs if not found or entry[0] > found[-1][0]]
        return found

    def _log_size(self, base_offset: int) -> int:
        return self.fs.size_of(self._path(base_offset, file_names.LOG))

    def _path(self, base_offset: int, suffix: str) -> str:
        return file_names.path_of(self.directory, base_offset, suffix)
