"""How far groups are behind, as samples for a scrape: what they have committed against the ends of the logs here.

In records: the high watermark less the committed offset. In seconds: the age of the oldest record that is not
committed, by its batch's timestamp, which is read from the log. A log that nobody has used since the start is not
opened for a scrape: its records are counted as far as it was flushed, which after a clean stop is its end, and of their
age nothing is said. Nothing is remembered between scrapes, and nobody counts before one comes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.metrics.registry import Sample
from kbroker.storage import segment as names

if TYPE_CHECKING:
    from kbroker.clock import Clock
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.storage.log import Log
    from kbroker.storage.log_manager import LogManager

_MAGIC_AT = 16
_BATCH = struct.Struct(">21xh4x2q")  # attributes, first and largest timestamp
_MESSAGE = struct.Struct(">18xq")  # of a message of magic 1, which may be shorter than a batch's head: timestamp
_LOG_APPEND_TIME = 1 << 3


def measure_lag(groups: GroupCoordinator, logs: LogManager, clock: Clock, most: int) -> Iterator[Sample]:
    """Of `most` committed offsets, in the order of their groups' names, and how many more there are."""
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
    """Of the oldest record from `offset` on; None for a log that is not open, or where the record has none."""
    if not log.is_open:
        return None
    code, base_offset, position, _ = log.state.locate(max(offset, log.state.log_start_offset), 1)
    if code or base_offset < 0:
        return None
    try:
        with open(log.path_of(base_offset, names.LOG), "rb", buffering=0) as file:  # noqa: PTH123
            head = os.pread(file.fileno(), _BATCH.size, position)
    except OSError:  # it is just being deleted; of a disk that fails others tell
        return None
    timestamp = _timestamp_in(head)
    return timestamp if timestamp >= 0 else None


def _timestamp_in(head: bytes) -> int:
    """Of the first record of what begins so; -1 for none."""
    magic = head[_MAGIC_AT] if len(head) > _MAGIC_AT else 0
    if magic == 1 and len(head) >= _MESSAGE.size:
        return int(_MESSAGE.unpack_from(head)[0])
    if magic != 2 or len(head) < _BATCH.size:
        return -1
    attributes, first, largest = _BATCH.unpack(head)
    return int(largest if attributes & _LOG_APPEND_TIME else first)
