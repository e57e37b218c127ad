"""A segment's .log, batch by batch, as `kbroker dump-log` shows it.

Reads one batch at a time, so that a log of any size is shown in bounded memory. A batch that is damaged but has a
possible length is shown as not valid. Reading ends at bytes that cannot be a batch.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kbroker._core.wire import message_set, record_batch
from kbroker._core.wire.crc import crc32c_of
from kbroker._core.wire.record_batch import BatchInfo
from kbroker._core.wire.records import decode_records
from kbroker.errors import KbrokerError
from kbroker.inspection.entries import Entry, Found, Problem, open_regular
from kbroker.protocol.compression import Codec, inflate
from kbroker.protocol.records import INFLATED_LIMIT, ControlType, Record

LARGEST_BATCH = 512 << 20
MOST_RECORDS = 1_000_000  #: the largest number of records of one batch that are shown

NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME = "NoTimestampType", "CreateTime", "LogAppendTime"
CONTROL_TYPES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}

_OVERHEAD = struct.Struct(">qi")
_OLD_HEADER = struct.Struct(">qiIbb")
_BASE_OFFSET = struct.Struct(">q")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_MAGIC_AT, _CRC_AT, _CRC_FROM, _DELTA_AT = 16, 17, 21, 23
_SMALLEST = {0: 14, 1: 22, 2: 49}  # length by magic
_DELETE_HORIZON = 0x40
_END_MARKER = struct.Struct(">hi")
_CODECS = {codec.value: codec.name.lower() for codec in Codec}


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options that say what is shown of a log."""

    is_deep: bool = False
    """Show the records of each batch, too."""
    with_data: bool = False
    """Show the records' keys, values and headers."""
    max_bytes: int | None = None
    """Show only batches that end within this many bytes from the file's start."""


class BatchBytes(NamedTuple):
    """A batch, or a message of magic 0 or 1, as it is in the log."""

    base_offset: int
    last_offset: int
    data: bytes


def batch_bytes(data: bytes) -> BatchBytes:
    """Return the batch of these bytes with its offsets. A message of magic 0 or 1 tells only its last offset."""
    (base_offset,) = _BASE_OFFSET.unpack_from(data)
    (delta,) = _LAST_OFFSET_DELTA.unpack_from(data, _DELTA_AT) if data[_MAGIC_AT] == 2 else (0,)
    return BatchBytes(base_offset, base_offset + delta, data)


def read_batch_bytes(path: Path) -> Iterator[BatchBytes]:
    """Yield the batches of a log as they are, up to bytes that cannot be one. Raises OSError if it cannot be read."""
    fd = open_regular(str(path))
    try:
        size, position = os.fstat(fd).st_size, 0
        while position < size:
            data, problem = _next(fd, position, size)
            if problem is not None:
                return
            yield batch_bytes(data)
            position += len(data)
    finally:
        os.close(fd)


def read_log(path: Path, options: LogOptions) -> Found:
    """Yield the batches, messages and records of a log. Raises OSError if it cannot be read."""
    fd = open_regular(str(path))
    try:
        size = os.fstat(fd).st_size
        end = size if options.max_bytes is None else min(size, options.max_bytes)
        position = 0
        while position < end:
            data, problem = _next(fd, position, end)
            if problem is not None:
                if options.max_bytes is None:
                    yield Entry("invalid_bytes", position, {"count": size - position})
                    yield problem
                return
            yield from _batch(data, position, options) if data[_MAGIC_AT] == 2 else _message(data, position, options)
            position += len(data)
    finally:
        os.close(fd)


def _next(fd: int, position: int, end: int) -> tuple[bytes, Problem | None]:
    """Return the bytes of the batch or message at `position`, or the problem that keeps it from being read."""
    left = end - position
    head = os.pread(fd, min(left, _CRC_AT), position)
    if len(head) < _CRC_AT:
        return b"", Problem(position, f"the last batch is cut off: {left} bytes of it are there")
    _, length = _OVERHEAD.unpack_from(head)
    size = length + _OVERHEAD.size
    unread = f"{left} bytes from here on are not read"
    if not any(head):
        return b"", Problem(position, f"zeros where a batch is due; {unread}")
    if head[_MAGIC_AT] not in _SMALLEST:
        return b"", Problem(position, f"unknown magic {head[_MAGIC_AT]}; {unread}")
    if length < _SMALLEST[head[_MAGIC_AT]] or size > LARGEST_BATCH:
        return b"", Problem(position, f"impossible length {length}; {unread}")
    if size > left:
        return b"", Problem(position, f"the last batch is cut off: {left} bytes of it are there")
    data = os.pread(fd, size, position)
    if len(data) < size:
        return b"", Problem(position, "the file has become shorter")
    return data, None


# --- magic 2 ----------------------------------------------------------------------------------------


def _batch(data: bytes, position: int, options: LogOptions) -> Found:
    info = record_batch.header(data)
    (crc,) = struct.unpack_from(">I", data, _CRC_AT)
    is_valid = crc32c_of(memoryview(data)[_CRC_FROM:]) == crc
    has_horizon = bool(info.attributes & _DELETE_HORIZON)
    timestamp_type = LOG_APPEND_TIME if info.is_log_append_time else CREATE_TIME
    yield Entry(
        "batch",
        position,
        {
            "base_offset": info.base_offset,
            "last_offset": info.last_offset,
            "count": info.record_count,
            "base_sequence": info.base_sequence,
            "last_sequence": _sequence(info, info.last_offset_delta),
            "producer_id": info.producer_id,
            "producer_epoch": info.producer_epoch,
            "partition_leader_epoch": info.leader_epoch,
            "is_transactional": info.is_transactional,
            "is_control": info.is_control,
            "delete_horizon_ms": info.base_timestamp if has_horizon else None,
            "timestamp_type": timestamp_type,
            "base_timestamp": info.base_timestamp,
            "max_timestamp": info.max_timestamp,
            "size": info.size,
            "magic": 2,
            "codec": _CODECS.get(info.codec, str(info.codec)),
            "crc": crc,
            "is_valid": is_valid,
        },
    )
    if not is_valid:
        yield Problem(position, "CRC does not match")
        return
    if not options.is_deep:
        return
    if info.record_count > MOST_RECORDS:
        yield Problem(position, f"{info.record_count} records, more than are shown")
        return
    try:
        payload = inflate(info.codec, memoryview(data)[record_batch.HEADER_SIZE :], INFLATED_LIMIT)
        records = decode_records(payload, info)
    except KbrokerError as error:
        yield Problem(position, f"its records: {error}")
        return
    for record in records:
        yield Entry("record", position, _record_fields(info, record, timestamp_type, options))


def _sequence(info: BatchInfo, delta: int) -> int:
    """Return the sequence of a record in a batch; -1 if it has none. After the largest int32 sequences go on at 0."""
    return info.base_sequence if info.base_sequence < 0 else (info.base_sequence + delta) & 0x7FFFFFFF


def _record_fields(info: BatchInfo, record: Record, timestamp_type: str, options: LogOptions) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp_type": timestamp_type,
        "timestamp": record.timestamp,
        "key_size": _size(record.key),
        "value_size": _size(record.value),
        "sequence": _sequence(info, record.offset - info.base_offset),
        "header_keys": [name for name, _ in record.headers],
    }
    if info.is_control:
        fields |= _control_fields(record)
    elif options.with_data:
        fields |= {"key": record.key, "value": record.value, "headers": record.headers}
    return fields


def _control_fields(record: Record) -> dict[str, Any]:
    if record.key is None or len(record.key) < 4:
        return {"control_type": "UNKNOWN", "control_type_id": -1}
    _, kind = struct.unpack_from(">hh", record.key)
    if kind in ControlType.__members__.values() and record.value is not None and len(record.value) >= _END_MARKER.size:
        return {"end_txn_marker": CONTROL_TYPES[kind], "coordinator_epoch": _END_MARKER.unpack_from(record.value)[1]}
    return {"control_type": CONTROL_TYPES.get(kind, "UNKNOWN"), "control_type_id": kind}


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


# --- magic 0 and 1 ----------------------------------------------------------------------------------


def _message(data: bytes, position: int, options: LogOptions) -> Found:
    offset, _, crc, magic, attributes = _OLD_HEADER.unpack_from(data)
    timestamp_type = NO_TIMESTAMP_TYPE if magic == 0 else LOG_APPEND_TIME if attributes & 8 else CREATE_TIME
    fields = {
        "offset": offset,
        "timestamp_type": timestamp_type,
        "max_timestamp": struct.unpack_from(">q", data, 18)[0] if magic else -1,
        "size": len(data),
        "magic": magic,
        "codec": _CODECS.get(attributes & 7, str(attributes & 7)),
        "crc": crc,
    }
    try:
        message = message_set.check(data)
    except KbrokerError as error:
        yield Entry("message", position, {**fields, "is_valid": False})
        yield Problem(position, str(error))
        return
    yield Entry("message", position, {**fields, "is_valid": True})
    if not options.is_deep:
        return
    if not message.codec:
        yield Entry("record", position, _old_fields(data, message, 0, timestamp_type, options))
        return
    value = memoryview(data)[message.value_position : message.value_position + message.value_size]
    try:
        inner = inflate(message.codec, value, INFLATED_LIMIT, magic=magic)
        found = message_set.walk(inner, wrapper=message)
        messages = message_set.messages(inner)
    except KbrokerError as error:
        yield Problem(position, f"its messages: {error}")
        return
    base = found.first_offset - messages[0].offset
    for one in messages:
        record = _old_fields(inner, one, base, timestamp_type, options)
        if message.is_log_append_time:
            record["timestamp"] = message.timestamp
        yield Entry("record", position, record)


def _old_fields(
    data: bytes, message: message_set.Message, base_offset: int, timestamp_type: str, options: LogOptions
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "offset": base_offset + message.offset,
        "timestamp_type": timestamp_type,
        "timestamp": message.timestamp,
        "key_size": message.key_size,
        "value_size": message.value_size,
        "is_valid": True,
        "crc": struct.unpack_from(">I", data, message.position + 12)[0],
    }
    if options.with_data:
        key, value = (
            None if size < 0 else data[at : at + size]
            for at, size in (
                (message.key_position, message.key_size),
                (message.value_position, message.value_size),
            )
        )
        fields |= {"key": key, "value": value, "headers": ()}
    return fields
