"""Finds offsets by time (ListOffsets, KIP-33).

`_core/log/time_position.pyx` finds the batch, and the record in it unless the batch is compressed. In a compressed
batch the record is found here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from kbroker.storage.log import Log


class TimestampOffset(NamedTuple):
    """A record's timestamp, offset and leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


def offset_for_timestamp(log: Log, timestamp: int) -> TimestampOffset | None:
    """Return the first record at or after `timestamp` that is not below the log's start; None if there is none.

    Raises ProtocolError.
    """
    while True:
        removals = log.state.removals
        try:
            found = _search(log, timestamp)
        except ProtocolError:
            if log.state.removals == removals:
                raise
        else:
            if log.state.removals == removals:
                return found
        log.open()  # segments were removed meanwhile, perhaps by closing the log


def _search(log: Log, timestamp: int) -> TimestampOffset | None:
    base_offset = position = -1
    while True:
        code, of_record, offset, leader_epoch, base_offset, position, batch = log.state.find_timestamp(
            timestamp, base_offset, position
        )
        if code:
            raise ProtocolError(ErrorCode(code), f"{log}: {ErrorCode(code).name} at timestamp {timestamp}")
        if offset >= 0:
            return TimestampOffset(of_record, offset, leader_epoch)
        if batch is None:
            return None
        found = _look_into(batch, log.state.log_start_offset, timestamp)
        if found is not None:
            return found
        position += len(batch)


def _look_into(compressed: bytes, log_start_offset: int, timestamp: int) -> TimestampOffset | None:
    """Return the record in a compressed batch; None if the batch has none at or after `timestamp`."""
    from kbroker.protocol.records import read_batches  # here: nothing else needs it at a start

    for batch in read_batches(compressed):
        for record in batch.records():
            if record.timestamp >= timestamp and record.offset >= log_start_offset:
                return TimestampOffset(record.timestamp, record.offset, batch.info.leader_epoch)
    return None


def offset_of_max_timestamp(log: Log) -> TimestampOffset | None:
    """Return the first record with the log's largest timestamp; None if no record has a timestamp."""
    newest = log.state.largest_timestamp
    if newest < 0:
        return None
    found = offset_for_timestamp(log, newest)
    if found is None:
        # DeleteRecords took the newest record of the log's first segment, but other records of it are left.
        newest = max(
            (at.max_timestamp for at in log.state.segments() if at.base_offset >= log.state.log_start_offset),
            default=-1,
        )
        step = offset_for_timestamp(log, max(newest, 0))
        while step is not None:
            found = step
            step = offset_for_timestamp(log, found.timestamp + 1)
    return found
