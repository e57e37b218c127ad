"""Checks of the indexes of closed segments against the log, before anything is decided by them.

An opening of a log reads only the last entries of these indexes, and an index has no check sum.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from kbroker._core.log.partition_state import PartitionState
from kbroker._core.log.scan.segment_scan import scan_segment
from kbroker.fs import FileSystem, replace_file
from kbroker.storage import file_names
from kbroker.storage.index_entries import ABORTED_TRANSACTION
from kbroker.storage.recovery import LoadedLog
from kbroker.storage.segment import Segment, changed_ms, segment_of
from kbroker.storage.witness import Witness

logger = logging.getLogger("kbroker.storage")


class IndexChecks:
    """Checks the indexes of an open log's closed segments, each once. The caller holds the log's lock.

    An index that contradicts the log is made anew. Methods raise OSError if the disk refuses.
    """

    def __init__(self, fs: FileSystem, directory: str, state: PartitionState, loaded: LoadedLog):
        self._fs = fs
        self._directory = directory
        self._state = state
        self.unread = set(loaded.unread)
        """Base offsets of segments whose largest timestamp is known from the time index only, not confirmed."""
        self._unread_aborted = {at.base_offset for at in loaded.segments if at.aborted_count} & loaded.unread
        """Base offsets of segments whose .txnindex was not checked against the log yet."""

    def _path_of(self, base_offset: int, suffix: str) -> str:
        return file_names.path_of(self._directory, base_offset, suffix)

    def confirm(self, bases: Iterable[int], index_interval_bytes: int) -> bool:
        """Check the largest timestamps of these segments against the log, once for each segment.

        Returns whether one was wrong; then the indexes of that segment were made anew.
        """
        is_changed = False
        for base_offset in self.unread.intersection(bases):
            is_changed |= self._mend(base_offset, index_interval_bytes)
            self.unread.discard(base_offset)
        if not self.unread:
            self.unread = set()  # a set that was emptied keeps its table, and each lookup would walk it
        return is_changed

    def confirm_aborted(self, base_offset: int) -> bool:
        """Check a segment's .txnindex against the log, once. Returns whether it was wrong and was made anew."""
        if base_offset not in self._unread_aborted:
            return False
        is_mended = self._mend_aborted(base_offset)
        self._unread_aborted.discard(base_offset)
        return is_mended

    def _mend(self, base_offset: int, index_interval_bytes: int) -> bool:
        """Make a closed segment's indexes anew, unless the batch named by its time index has its largest timestamp.

        Returns whether they were made anew.
        """
        at = self._state.segment(base_offset)
        if at is None:
            return False
        told = Segment(
            base_offset, at.size, max_timestamp=at.max_timestamp, max_timestamp_offset=at.max_timestamp_offset
        )
        if Witness(self._fs, self._directory).has_timestamp(told):
            return False
        fd = self._fs.open(self._path_of(base_offset, file_names.LOG), os.O_RDONLY)
        try:
            scan = scan_segment(fd, at.size, base_offset, verify=False, index_interval_bytes=index_interval_bytes)
        finally:
            self._fs.close(fd)
        segment, time_index = segment_of(base_offset, scan, is_closed=True)
        if scan.reason is None and scan.max_timestamp == at.max_timestamp:
            return False
        logger.warning(
            "%s: its last entry tells of timestamp %d, which the log does not have there; indexes are made anew",
            self._path_of(base_offset, file_names.TIME_INDEX), at.max_timestamp,
        )  # fmt: skip
        if scan.reason is not None:
            path = self._path_of(base_offset, file_names.LOG)
            logger.error("%s: %s at byte %d; it counts as old as the file", path, scan.reason, scan.valid_size)
            segment.size = at.size
            segment.max_timestamp = max(segment.max_timestamp, changed_ms(path))
        self._replace(segment, scan.index, time_index)
        return True

    def _replace(self, segment: Segment, index: bytes, time_index: bytes) -> None:
        """Replace a closed segment's indexes. Whoever is reading the segment keeps the old ones."""
        path = self._path_of(segment.base_offset, file_names.TRANSACTION_INDEX)
        try:
            segment.aborted_count = self._fs.size_of(path) // ABORTED_TRANSACTION.size
        except FileNotFoundError:
            segment.aborted_count = 0
        for suffix, data in ((file_names.INDEX, index), (file_names.TIME_INDEX, time_index)):
            replace_file(self._fs, self._path_of(segment.base_offset, suffix), data)
        self._state.replace_segments(segment, segment.base_offset + 1)

    def _mend_aborted(self, base_offset: int) -> bool:
        """Make a closed segment's .txnindex anew if it contradicts the log. Returns whether it was made anew."""
        segments = self._state.segments()
        place = [at.base_offset for at in segments].index(base_offset)
        if place + 1 == len(segments):
            return False
        at = segments[place]
        data = Witness(self._fs, self._directory).aborted_entries(base_offset, at.size, segments[place + 1].base_offset)
        if data is None:
            return False
        path = self._path_of(base_offset, file_names.TRANSACTION_INDEX)
        logger.warning("%s: it does not tell what was aborted in the log; it is made anew", path)
        replace_file(self._fs, path, data)
        segment = Segment(
            base_offset, at.size, max_timestamp=at.max_timestamp, max_timestamp_offset=at.max_timestamp_offset,
            first_timestamp=at.first_timestamp, index_count=at.index_count, time_index_count=at.time_index_count,
            last_time_entry=at.max_timestamp,
        )  # fmt: skip
        segment.aborted_count = len(data) // ABORTED_TRANSACTION.size
        self._state.replace_segments(segment, base_offset + 1)
        return True
