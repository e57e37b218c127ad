"""Finds offsets by time (ListOffsets, KIP-33).

`_core/log/time_position.pyx` finds the batch, and the record in it unless the batch is compressed. In a compressed
batch the record is found here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kbroker._core.log.partition_state import PartitionState
from kbroker.errors import ErrorCode, ProtocolError


class TimestampOffset(NamedTuple):
    """A record's timestamp, offset and leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


def offset_for_timestamp(state: PartitionState, open_log: Callable[[], None], timestamp: int) -> TimestampOffset | None:
    """Return the first record at or after `timestamp` that is not below the log's start; None if there is none.

    `open_log` opens the log if it is closed. Raises ProtocolError.
    """
    while True:
        removals = state.removals
        try:
            found = _search(state, timestamp)
        except ProtocolError:
            if state.removals == removals:
                raise
        else:
            if state.removals == removals:
                return found
        open_log()  # segments were removed meanwhile, perhaps by closing the log


def _search(state: PartitionState, timestamp: int) -> TimestampOffset | None:
    base_offset = position = -1
    while True:
        search = state.find_timestamp(timestamp, base_offset, position)
        if search.code:
            code = ErrorCode(search.code)
            raise ProtocolError(code, f"{state.topic}-{state.partition_id}: {code.name} at timestamp {timestamp}")
        if search.offset >= 0:
            return TimestampOffset(search.timestamp, search.offset, search.leader_epoch)
        if search.batch is None:
            return None
        found = _look_into(search.batch, state.log_start_offset, timestamp)
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


def offset_of_max_timestamp(state: PartitionState, open_log: Callable[[], None]) -> TimestampOffset | None:
    """Return the first record with the log's largest timestamp; None if no record has a timestamp."""
    newest = state.largest_timestamp
    if newest < 0:
        return None
    found = offset_for_timestamp(state, open_log, newest)
    if found is None:
        # DeleteRecords took the newest record of the log's first segment, but other records of it are left.
        newest = max(
            (at.max_timestamp for at in state.segments() if at.base_offset >= state.log_start_offset), default=-1
        )
        step = offset_for_timestamp(state, open_log, max(newest, 0))
        while step is not None:
            found = step
            step = offset_for_timestamp(state, open_log, found.timestamp + 1)
    return found
