"""What stands in the files of a log directory, entry by entry, and what is wrong with them. Reads, never writes.

Formats of Apache Kafka: `.log` (magic 0, 1 and 2), `.index`, `.timeindex`, `.txnindex`, `.snapshot`, checkpoints,
`partition.metadata`, `meta.properties`. A file that cannot be read further ends with a problem.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kbroker._core import crc, offset_index, record_batch
from kbroker._core.record_batch import BatchInfo
from kbroker._core.records import decode_records
from kbroker.config.properties import parse_properties
from kbroker.errors import KbrokerError
from kbroker.protocol.compression import Codec, inflate

INFLATED_LIMIT = 256 << 20
_CODECS = {codec.value: codec.name.lower() for codec in Codec}
_BATCH_HEADER_SIZE = 61
_OLD_OVERHEAD = 12
_MAGIC_POSITION = 16
# .snapshot: int16 version, uint32 CRC-32C of everything behind it, int32 count, then entries.
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_SNAPSHOT_FIELDS = (
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "last_offset",
    "offset_delta",
    "timestamp",
    "coordinator_epoch",
    "transaction_first_offset",
)
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")
_TRANSACTION_FIELDS = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")


class Entry(NamedTuple):
    """One entry of a file."""

    kind: str
    position: int
    fields: dict[str, Any]


class Problem(NamedTuple):
    """Something wrong, and at which byte (-1: of the whole file)."""

    position: int
    what: str


Found = Iterator[Entry | Problem]


def read_file(path: Path, with_records: bool = False) -> Found | None:
    """The entries and problems of a file, None when it is of no known kind. OSError when it cannot be read."""
    name = path.name.removesuffix(".deleted")
    if name.endswith(".log"):
        return _read_log(path, with_records)
    for ending, reader in _BY_NAME.items():
        if name.endswith(ending):
            return reader(path)
    return None


def is_known(path: Path) -> bool:
    name = path.name.removesuffix(".deleted")
    return name.endswith((".log", *_BY_NAME))


def _mapped(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        # An empty file cannot be mapped.
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


# --- .log -------------------------------------------------------------------------------------------


def _base_offset(path: Path) -> int | None:
    digits = path.name.partition(".")[0]
    return int(digits) if digits.isdigit() else None


def _read_log(path: Path, with_records: bool) -> Found:
    data = _mapped(path)
    base = _base_offset(path)
    if base is None:
        yield Problem(-1, "the name does not begin with the offset of the first message")
    position, next_offset = 0, base or 0
    while position < len(data):
        if data[position : position + 64].count(0) == min(64, len(data) - position) and not any(data[position:]):
            yield Problem(position, f"{len(data) - position} bytes of zeros to the end")
            return
        try:
            if len(data) - position > _MAGIC_POSITION and data[position + _MAGIC_POSITION] < 2:
                entry = _old_message(data, position)
            else:
                entry = _batch(record_batch.verify(data, position))
        except KbrokerError as error:
            yield Problem(position, f"{error}; {len(data) - position} bytes from here on are not read")
            return
        first, last = entry.fields["base_offset"], entry.fields["last_offset"]
        if first < next_offset:
            yield Problem(position, f"offset {first} where {next_offset} or more is due")
        next_offset = last + 1
        yield entry
        if entry.kind == "batch":
            yield from _records(data, position, with_records)
        position += entry.fields["size"]


def _batch(info: BatchInfo) -> Entry:
    return Entry(
        "batch",
        info.position,
        {
            "size": info.size,
            "base_offset": info.base_offset,
            "last_offset": info.last_offset,
            "record_count": info.record_count,
            "base_timestamp": info.base_timestamp,
            "max_timestamp": info.max_timestamp,
            "codec": _CODECS.get(info.codec, str(info.codec)),
            "leader_epoch": info.leader_epoch,
            "producer_id": info.producer_id,
            "producer_epoch": info.producer_epoch,
            "base_sequence": info.base_sequence,
            "log_append_time": info.is_log_append_time,
            "transactional": info.is_transactional,
            "control": info.is_control,
        },
    )


def _records(data: mmap.mmap | bytes, position: int, with_records: bool) -> Found:
    """The records of a batch whose CRC is right; only problems unless they are wanted."""
    info = record_batch.header(data, position)
    payload = data[position + _BATCH_HEADER_SIZE : position + info.size]
    try:
        records = decode_records(inflate(info.codec, payload, INFLATED_LIMIT), info)
    except KbrokerError as error:
        yield Problem(position, f"its records: {error}")
        return
    for record in records if with_records else ():
        yield Entry(
            "record",
            position,
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": record.key,
                "value": record.value,
                "headers": record.headers,
            },
        )


def _old_message(data: mmap.mmap | bytes, position: int) -> Entry:
    """A message of magic 0 or 1, perhaps a compressed set of them (its offset is that of the last one inside)."""
    offset, length = struct.unpack_from(">qi", data, position)
    if length < 14 or length > len(data) - position - _OLD_OVERHEAD:
        raise KbrokerError(f"a message of {length} bytes")
    crc_stored, magic, attributes = struct.unpack_from(">Ibb", data, position + _OLD_OVERHEAD)
    end = position + _OLD_OVERHEAD + length
    if zlib.crc32(data[position + 16 : end]) != crc_stored:
        raise KbrokerError("CRC does not match")
    timestamp = struct.unpack_from(">q", data, position + 18)[0] if magic == 1 and length >= 22 else -1
    fields = {
        "size": end - position,
        "base_offset": offset,
        "last_offset": offset,
        "magic": magic,
        "codec": _CODECS.get(attributes & 7, str(attributes & 7)),
        "base_timestamp": timestamp,
        "max_timestamp": timestamp,
        "log_append_time": bool(attributes & 8),
    }
    return Entry("message", position, fields)


def _log_beside(path: Path) -> list[Entry]:
    """The batches of the .log that belongs to an index; none when it is not there."""
    log = path.with_name(path.name.partition(".")[0] + ".log")
    if not log.exists():
        return []
    return [entry for entry in _read_log(log, False) if isinstance(entry, Entry)]


# --- indexes ----------------------------------------------------------------------------------------


def _used(data: mmap.mmap | bytes, entry_size: int) -> tuple[bytes, int]:
    """The entries without the zeros that a preallocated index ends with, and how many bytes are no whole entry."""
    used = bytes(data).rstrip(b"\0")
    size = -(-len(used) // entry_size) * entry_size
    return bytes(data[:size]), len(data) % entry_size


def _read_offset_index(path: Path) -> Found:
    used, odd = _used(_mapped(path), 8)
    base, batches = _base_offset(path) or 0, {entry.position: entry for entry in _log_beside(path)}
    previous = (-1, -1)
    for number, (relative, position) in enumerate(offset_index.offset_entries(used[: len(used) // 8 * 8])):
        at, offset = number * 8, base + relative
        yield Entry("index", at, {"offset": offset, "log_position": position})
        if relative <= previous[0] or position <= previous[1]:
            yield Problem(at, f"entry {relative}, {position} does not come after {previous[0]}, {previous[1]}")
        previous = (relative, position)
        if batches:
            batch = batches.get(position)
            if batch is None:
                yield Problem(at, f"no batch begins at byte {position} of the log")
            elif not batch.fields["base_offset"] <= offset <= batch.fields["last_offset"]:
                yield Problem(at, f"the batch at byte {position} of the log does not hold offset {offset}")
    if odd:
        yield Problem(-1, f"the size is no multiple of 8: {odd} bytes too many")


def _read_time_index(path: Path) -> Found:
    used, odd = _used(_mapped(path), 12)
    base = _base_offset(path) or 0
    batches = _log_beside(path)
    at_batch, previous = 0, (-(2**63), -1)
    for number, (timestamp, relative) in enumerate(offset_index.timestamp_entries(used[: len(used) // 12 * 12])):
        at, offset = number * 12, base + relative
        yield Entry("time_index", at, {"timestamp": timestamp, "offset": offset})
        if timestamp <= previous[0] or relative < previous[1]:
            yield Problem(at, f"entry {timestamp}, {relative} does not come after {previous[0]}, {previous[1]}")
        previous = (timestamp, relative)
        if batches:
            while at_batch < len(batches) - 1 and batches[at_batch].fields["last_offset"] < offset:
                at_batch += 1
            fields = batches[at_batch].fields
            if not fields["base_offset"] <= offset <= fields["last_offset"] or fields["max_timestamp"] != timestamp:
                yield Problem(at, f"the log has no batch with offset {offset} and largest timestamp {timestamp}")
    if odd:
        yield Problem(-1, f"the size is no multiple of 12: {odd} bytes too many")


def _read_transaction_index(path: Path) -> Found:
    data = bytes(_mapped(path))
    for position in range(0, len(data) - len(data) % _TRANSACTION_ENTRY.size, _TRANSACTION_ENTRY.size):
        values = _TRANSACTION_ENTRY.unpack_from(data, position)
        yield Entry("aborted_transaction", position, dict(zip(_TRANSACTION_FIELDS, values, strict=True)))
        if values[0] != 0:
            yield Problem(position, f"version {values[0]}, which is not known")
    if len(data) % _TRANSACTION_ENTRY.size:
        yield Problem(-1, f"the size is no multiple of {_TRANSACTION_ENTRY.size}")


# --- producers --------------------------------------------------------------------------------------


def _read_snapshot(path: Path) -> Found:
    data = bytes(_mapped(path))
    if len(data) < _SNAPSHOT_HEAD.size:
        yield Problem(0, f"{len(data)} bytes are too few")
        return
    version, crc_stored, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != 1:
        yield Problem(0, f"version {version}, which is not known")
        return
    if crc.crc32c_of(data[6:]) != crc_stored:
        yield Problem(2, "CRC does not match")
    if len(data) != _SNAPSHOT_HEAD.size + max(count, 0) * _SNAPSHOT_ENTRY.size:
        yield Problem(6, f"{count} producers do not fit {len(data)} bytes")
        return
    for position in range(_SNAPSHOT_HEAD.size, len(data), _SNAPSHOT_ENTRY.size):
        values = _SNAPSHOT_ENTRY.unpack_from(data, position)
        yield Entry("producer", position, dict(zip(_SNAPSHOT_FIELDS, values, strict=True)))


# --- text files -------------------------------------------------------------------------------------


def _read_checkpoint(path: Path) -> Found:
    """version, count, then one line for each: `topic partition offset`; leader-epoch-checkpoint: `epoch offset`."""
    lines = path.read_text(errors="replace").splitlines()
    names = ("epoch", "start_offset") if path.name.startswith("leader-epoch") else ("topic", "partition", "offset")
    if len(lines) < 2 or not lines[0].isdigit() or not lines[1].isdigit():
        yield Problem(0, "does not begin with a version and a count")
        return
    if lines[0] != "0":
        yield Problem(0, f"version {lines[0]}, which is not known")
    position = len(lines[0]) + len(lines[1]) + 2
    for line in lines[2:]:
        values = line.split()
        numbers = values if names[0] == "epoch" else values[1:]
        if len(values) == len(names) and all(number.lstrip("-").isdigit() for number in numbers):
            typed = [int(value) if name != "topic" else value for name, value in zip(names, values, strict=True)]
            yield Entry("checkpoint", position, dict(zip(names, typed, strict=True)))
        else:
            yield Problem(position, f"{line!r} is not {' '.join(names)}")
        position += len(line.encode()) + 1
    if int(lines[1]) != len(lines) - 2:
        yield Problem(len(lines[0]) + 1, f"{lines[1]} lines are announced, {len(lines) - 2} are there")


def _read_properties(path: Path) -> Found:
    try:
        for name, value, _line in parse_properties(path.read_text(errors="replace"), path.name):
            yield Entry("property", 0, {name: value})
    except KbrokerError as error:
        yield Problem(-1, str(error))


_BY_NAME: dict[str, Callable[[Path], Found]] = {
    ".index": _read_offset_index,
    ".timeindex": _read_time_index,
    ".txnindex": _read_transaction_index,
    ".snapshot": _read_snapshot,
    "-checkpoint": _read_checkpoint,
    "meta.properties": _read_properties,
    "partition.metadata": _read_properties,
}
