"""The lag of groups as metric samples: their committed offsets compared with the ends of this broker's logs.

Lag in records is the high watermark minus the committed offset. Lag in seconds is the age of the oldest record that is
not committed, by the timestamp of its batch, which is read from the log. A log that nobody has used since the start is
not opened for a scrape: its lag in records counts up to its recovery point, which after a clean stop is its end, and it
has no sample in seconds. Lag is computed during a scrape only; nothing is kept between scrapes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.metrics.registry import Sample
from kbroker.storage import file_names

if TYPE_CHECKING:
    from kbroker.clock import Clock
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.storage.log import Log
    from kbroker.storage.log_manager import LogManager

_MAGIC_AT = 16
_BATCH = struct.Struct(">21xh4x2q")  # attributes, first and largest timestamp
_MESSAGE = struct.Struct(">18xq")  # the timestamp of a message of magic 1, which may be shorter than _BATCH
_LOG_APPEND_TIME = 1 << 3


def measure_lag(groups: GroupCoordinator, logs: LogManager, clock: Clock, most: int) -> Iterator[Sample]:
    """Return samples for at most `most` committed offsets, ordered by group name, and how many were left out."""
    committed, left_out = groups.offsets.committed(most)
    now_ms = clock.wall_ms()
    for group_id, at, offset in committed:
        log = logs.get(at)
        if log is None:
            continue
        labels = (group_id, at.topic, str(at.partition_id))
        end_offset = log.state.high_watermark if log.is_open else log.recovery_point
        lag = max(0, end_offset - max(offset, log.state.log_start_offset))
        yield Sample("kbroker_group_lag_records", lag, labels)
        if lag == 0:
            yield Sample("kbroker_group_lag_seconds", 0, labels)
        elif (timestamp := _timestamp_at(log, offset)) is not None:
            yield Sample("kbroker_group_lag_seconds", max(0, now_ms - timestamp) / 1000, labels)
    yield Sample("kbroker_group_lag_left_out", left_out)


def _timestamp_at(log: Log, offset: int) -> int | None:
    """The timestamp of the oldest record from `offset` on, in ms; None if there is none or the log is not open."""
    if not log.is_open:
        return None
    found = log.state.locate(max(offset, log.state.log_start_offset), 1)
    if found.code or found.base_offset < 0:
        return None
    try:
        with open(log.path_of(found.base_offset, file_names.LOG), "rb", buffering=0) as file:  # noqa: PTH123
            head = os.pread(file.fileno(), _BATCH.size, found.position)
    except OSError:  # the segment is just being deleted; a failing disk is reported elsewhere
        return None
    timestamp = _timestamp_in(head)
    return timestamp if timestamp >= 0 else None


def _timestamp_in(head: bytes) -> int:
    """The timestamp of the first record of the batch or message that begins with `head`, in ms; -1 if it has none."""
    magic = head[_MAGIC_AT] if len(head) > _MAGIC_AT else 0
    if magic == 1 and len(head) >= _MESSAGE.size:
        return int(_MESSAGE.unpack_from(head)[0])
    if magic != 2 or len(head) < _BATCH.size:
        return -1
    attributes, first, largest = _BATCH.unpack(head)
    return int(largest if attributes & _LOG_APPEND_TIME else first)
