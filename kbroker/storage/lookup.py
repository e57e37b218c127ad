"""Offsets by time (ListOffsets): time index, then batch headers, then the records of one batch."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

from kbroker._core.offset_index import find_timestamp
from kbroker._core.segment_scan import find_batch
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.protocol.records import read_batches
from kbroker.storage import segment as names

if TYPE_CHECKING:
    from kbroker.storage.log import Log

_MAGIC = 16  # where the byte stands that tells the format
_SEGMENT = 1_000_000  # any number of bytes: only where a read would begin is asked for


class TimestampOffset(NamedTuple):
    """A record's place."""

    timestamp: int
    offset: int
    leader_epoch: int


def offset_for_timestamp(log: Log, timestamp: int) -> TimestampOffset | None:
    """The first record at or after `timestamp` that is not below the log's start; None when there is none."""
    for base_offset, size, max_timestamp, *_ in log.state.segments():
        if max_timestamp >= timestamp and size:
            found = _search_segment(log, base_offset, size, timestamp)
            if found is not None:
                return found
    return None


def offset_of_max_timestamp(log: Log) -> TimestampOffset | None:
    """The first record with the largest timestamp of all."""
    newest: TimestampOffset | None = None
    for base_offset, size, max_timestamp, *_ in log.state.segments():
        if size and max_timestamp > (newest.timestamp if newest else -1):
            found = _search_segment(log, base_offset, size, max_timestamp)
            if found is None and base_offset < log.state.log_start_offset:
                # The segment's newest record was deleted by DeleteRecords; others of it are there.
                found = _newest_left(log, base_offset, size)
            if found is not None and (newest is None or found.timestamp > newest.timestamp):
                newest = found
    return newest


def _newest_left(log: Log, base_offset: int, size: int) -> TimestampOffset | None:
    newest: TimestampOffset | None = None
    found = _search_segment(log, base_offset, size, 0)
    while found is not None:
        newest = found
        found = _search_segment(log, base_offset, size, newest.timestamp + 1)
    return newest


def _search_segment(log: Log, base_offset: int, size: int, timestamp: int) -> TimestampOffset | None:
    fs = log.context.fs
    log_start_offset = log.state.log_start_offset
    position = _start_position(log, base_offset, timestamp)
    try:
        fd = fs.open(log.path_of(base_offset, names.LOG), os.O_RDONLY)
    except FileNotFoundError:
        return None  # deleted meanwhile
    try:
        while True:
            found = find_batch(fd, size, position=position, timestamp=timestamp, offset=log_start_offset)
            if found is None:
                return None
            position, batch_size, first_offset, _, batch_timestamp, leader_epoch = found
            data = fs.pread(fd, batch_size, position)
            if data[_MAGIC] < 2:
                # A message of an old format; of a compressed set the last record's offset is all that its header tells.
                return TimestampOffset(batch_timestamp, max(first_offset, log_start_offset), leader_epoch)
            for batch in read_batches(data):
                if batch.info.is_log_append_time:
                    return TimestampOffset(batch_timestamp, max(first_offset, log_start_offset), leader_epoch)
                for record in batch.records():
                    if record.timestamp >= timestamp and record.offset >= log_start_offset:
                        return TimestampOffset(record.timestamp, record.offset, leader_epoch)
            position += batch_size
    finally:
        fs.close(fd)


def _start_position(log: Log, base_offset: int, timestamp: int) -> int:
    """Where to begin: the batch of the newest time index entry that is older than `timestamp`."""
    try:
        fd = log.context.fs.open(log.path_of(base_offset, names.TIME_INDEX), os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:
        if log.context.fs.file_size(fd) < names.TIME_INDEX_ENTRY.size:
            return 0
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as entries:
            entry = find_timestamp(entries, timestamp - 1)
    finally:
        log.context.fs.close(fd)
    if entry is None:
        return 0
    code, found_base, position, _ = log.state.locate(base_offset + entry[1], _SEGMENT)
    if code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
        raise ProtocolError(ErrorCode(code))
    return position if found_base == base_offset else 0
