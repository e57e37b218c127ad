"""One segment: what the compiled core has to know about it, and how its files are made, described and removed."""

from __future__ import annotations

import os
from collections.abc import Callable

from kbroker._core.log.producer_table import ProducerTable
from kbroker._core.log.scan.segment_scan import SegmentScan, scan_segment
from kbroker.errors import DiskDamaged
from kbroker.fs import FileSystem, write_file
from kbroker.storage import file_names
from kbroker.storage.index_entries import INDEX_ENTRY, TIME_INDEX_ENTRY

Progress = Callable[[int], None]
"""Called while segments are read, with the number of bytes read since the last call."""


class Segment:
    """What the compiled core has to know about a segment; see `segment_t` in `_core/log/partition.pxd`."""

    def __init__(
        self,
        base_offset: int,
        size: int,
        *,
        max_timestamp: int = -1,
        max_timestamp_offset: int = -1,
        first_timestamp: int = -1,
        index_count: int = 0,
        time_index_count: int = 0,
        last_time_entry: int = -1,
        bytes_since_index: int = 0,
        entry_synced: bool = True,
    ):
        self.base_offset = base_offset
        self.size = size
        self.max_timestamp = max_timestamp
        self.max_timestamp_offset = max_timestamp_offset
        self.first_timestamp = first_timestamp
        self.index_count = index_count
        self.time_index_count = time_index_count
        self.last_time_entry = last_time_entry
        self.bytes_since_index = bytes_since_index
        self.aborted_count = 0
        """The number of entries of its .txnindex."""
        self.entry_synced = entry_synced
        """Whether the names of its files are known to survive a power cut."""


def scan_loaded(
    fs: FileSystem,
    directory: str,
    segment: Segment,
    progress: Progress | None = None,
    producers: ProducerTable | None = None,
    producers_from: int = -1,
) -> SegmentScan:
    """Walk over the batches of a segment whose size is known; no CRC is checked and no index is made.

    The batches from offset `producers_from` on are applied to `producers`.
    """
    fd = fs.open(file_names.path_of(directory, segment.base_offset, file_names.LOG), os.O_RDONLY)
    try:
        return scan_segment(
            fd, segment.size, segment.base_offset, verify=False, index_interval_bytes=(1 << 31) - 1,
            producers=producers, producers_from=producers_from, progress=progress,
        )  # fmt: skip
    finally:
        fs.close(fd)


def segment_of(base_offset: int, scan: SegmentScan, *, is_closed: bool) -> tuple[Segment, bytes]:
    """Return a segment as a scan describes it, and its time index: a closed one's ends with the largest timestamp."""
    time_index, last_time_entry = scan.time_index, scan.last_time_entry
    if is_closed and scan.max_timestamp > last_time_entry:
        time_index += TIME_INDEX_ENTRY.pack(scan.max_timestamp, scan.max_timestamp_offset - base_offset)
        last_time_entry = scan.max_timestamp
    segment = Segment(
        base_offset,
        scan.valid_size,
        max_timestamp=scan.max_timestamp,
        max_timestamp_offset=scan.max_timestamp_offset,
        first_timestamp=scan.first_timestamp,
        index_count=len(scan.index) // INDEX_ENTRY.size,
        time_index_count=len(time_index) // TIME_INDEX_ENTRY.size,
        last_time_entry=last_time_entry,
        bytes_since_index=scan.bytes_since_index,
    )
    return segment, time_index


def write_indexes(fs: FileSystem, directory: str, base_offset: int, scan: SegmentScan, state: str = "") -> Segment:
    """Write and sync the indexes of a segment that takes no more messages. The names of the files are not synced.

    `state` is a suffix at the end of the files' names, such as `.cleaned`. Raises DiskDamaged if the scan ended before
    the segment did.
    """
    if scan.reason is not None:
        path = file_names.path_of(directory, base_offset, file_names.LOG) + state
        raise DiskDamaged(path, scan.valid_size, scan.reason)
    segment, time_index = segment_of(base_offset, scan, is_closed=True)
    for suffix, data in ((file_names.INDEX, scan.index), (file_names.TIME_INDEX, time_index)):
        write_file(fs, file_names.path_of(directory, base_offset, suffix) + state, data)
    return segment


def create_segment(fs: FileSystem, directory: str, base_offset: int, allocated: int = 0) -> Segment:
    """Make the files of an empty segment, with `allocated` bytes reserved for its messages. Raises OSError.

    The first flush makes the names of the files durable.
    """
    for suffix in (file_names.LOG, file_names.INDEX, file_names.TIME_INDEX):
        path = file_names.path_of(directory, base_offset, suffix)
        fd = fs.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            if allocated and suffix == file_names.LOG:
                fs.allocate(fd, allocated)
        finally:
            fs.close(fd)
    return Segment(base_offset, 0, max_timestamp_offset=base_offset, entry_synced=False)


def remove_segment(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Remove the files of a segment. This is durable only once the directory is synced."""
    for suffix in (file_names.LOG, *file_names.INDEX_SUFFIXES, file_names.SNAPSHOT):
        try:
            fs.unlink(file_names.path_of(directory, base_offset, suffix))
        except FileNotFoundError:
            pass


def changed_ms(path: str) -> int:
    """Return when a file was changed last, in ms. Raises FileNotFoundError."""
    return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116


def largest_timestamp(log_path: str, max_timestamp: int) -> int:
    """Return a segment's largest timestamp as Kafka defines it.

    It is `max_timestamp`, that of its records; if they have none (-1), the time its .log was changed last.
    """
    return max_timestamp if max_timestamp >= 0 else changed_ms(log_path)
