"""Finds offsets by time (ListOffsets, KIP-33).

`_core/log/time_position.pyx` finds the batch, and the record in it unless the batch is compressed. In a compressed
batch the record is found here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker._core.log.partition_state import PartitionState
from kbroker.errors import ErrorCode, ProtocolError
from kbroker.model import TopicPartition


class TimestampOffset(NamedTuple):
    """A record's timestamp, offset and leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


class SearchedLog(NamedTuple):
    """What a lookup needs of a log."""

    name: TopicPartition
    state: PartitionState
    open: Callable[[], None]
    """Opens the log if it is closed, as `Log.open` does."""


def offset_for_timestamp(log: SearchedLog, timestamp: int) -> TimestampOffset | None:
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


def _search(log: SearchedLog, timestamp: int) -> TimestampOffset | None:
    base_offset = position = -1
    while True:
        search = log.state.find_timestamp(timestamp, base_offset, position)
        if search.code:
            code = ErrorCode(search.code)
            raise ProtocolError(code, f"{log.name}: {code.name} at timestamp {timestamp}")
        if search.offset >= 0:
            return TimestampOffset(search.timestamp, search.offset, search.leader_epoch)
        if search.batch is None:
            return None
        found = _look_into(search.batch, log.state.log_start_offset, timestamp)
        if found is not None:
            return found
        base_offset, position = search.base_offset, search.position + len(search.batch)


def _look_into(compressed: bytes, log_start_offset: int, timestamp: int) -> TimestampOffset | None:
    """Return the record in a compressed batch; None if the batch has none at or after `timestamp`."""
    from kbroker.protocol.records import read_batches  # here: nothing else needs it at a start

    for batch in read_batches(compressed):
        for record in batch.records():
            if record.timestamp >= timestamp and record.offset >= log_start_offset:
                return TimestampOffset(record.timestamp, record.offset, batch.info.leader_epoch)
    return None


def offset_of_max_timestamp(log: SearchedLog) -> TimestampOffset | None:
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
