"""Record batches (magic 2) in Python: building them and reading them, compressed or not.

For internal topics, commands and tests. Code that handles batches of clients in bulk uses `_core.wire.record_batch`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING

from kbroker._core.wire import record_batch
from kbroker._core.wire.columns import Columns, RecordColumns
from kbroker._core.wire.record_batch import HEADER_SIZE, BatchInfo, InvalidBatch
from kbroker._core.wire.records import Record, RecordsBuilder, decode_records
from kbroker.errors import MalformedBytes
from kbroker.protocol.compression import Codec, deflate, inflate_shared

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "Batch",
    "BatchBuilder",
    "BatchInfo",
    "Columns",
    "ControlType",
    "InvalidBatch",
    "Record",
    "control_type",
    "encode_batch",
    "read_batches",
    "read_columns",
    "read_records",
]

INFLATED_LIMIT = 128 << 20  #: bytes that one batch may inflate to, if the caller gives no other limit

_LOG_APPEND_TIME, _TRANSACTIONAL = 0x08, 0x10


class ControlType(IntEnum):
    """Type of a control record, the second field of its key (KIP-98). On disk. Do not renumber."""

    ABORT = 0
    COMMIT = 1


class Batch:
    """One batch of a buffer: its header, and its records on demand."""

    __slots__ = ("info", "payload")

    def __init__(self, info: BatchInfo, payload: memoryview):
        self.info = info
        self.payload = payload
        """The bytes behind the header, compressed as they came. A view of the buffer that was read."""

    def records(self, limit: int = INFLATED_LIMIT) -> list[Record]:
        """Return the records. Raises InvalidBatch or an error of `compression.inflate`, which gets `limit`."""
        return decode_records(inflate_shared(self.info.codec, self.payload, limit), self.info)


class BatchBuilder:
    """Collects the records of one batch whose size has to be known while it grows."""

    def __init__(self, codec: int = Codec.NONE):
        self._records = RecordsBuilder()
        self._codec = codec

    @property
    def count(self) -> int:
        return self._records.count

    @property
    def size(self) -> int:
        """The size in bytes that the batch would have if it were built now, without compression."""
        return HEADER_SIZE + self._records.size

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
    ) -> int:
        """Add a record and return `size`. Raises OverflowError beyond 2 GiB."""
        return HEADER_SIZE + self._records.append(timestamp, key, value, headers)

    def build(self) -> bytes:
        """Return the batch of all records appended so far. More may be appended, and `build` called again."""
        payload = deflate(self._codec, self._records.records()) if self._codec else None
        return self._records.build(payload, self._codec)


def encode_batch(
    records: Iterable[Record | tuple[int, Buffer | None, Buffer | None]],
    *,
    base_offset: int = 0,
    codec: int = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    log_append_time: int | None = None,
) -> bytes:
    """Return one batch of `records`: Record objects, whose offsets are ignored, or (timestamp, key, value)."""
    builder = RecordsBuilder()
    for record in records:
        if isinstance(record, Record):
            builder.append(record.timestamp, record.key, record.value, record.headers)
        else:
            builder.append(*record)
    attributes = codec | (_TRANSACTIONAL if is_transactional else 0)
    if log_append_time is not None:
        attributes |= _LOG_APPEND_TIME
    return builder.build(
        deflate(codec, builder.records(), level) if codec else None,
        attributes, base_offset, leader_epoch, producer_id, producer_epoch, base_sequence, log_append_time,
    )  # fmt: skip


def control_type(record: Record) -> ControlType | None:
    """Return the type of a control record; None if it is unknown: readers skip it. Raises MalformedBytes."""
    if record.key is None or len(record.key) < 4:
        raise MalformedBytes("the key of a control record is too short")
    version, kind = struct.unpack_from(">hh", record.key)
    if version < 0:
        raise MalformedBytes(f"a control record of version {version}")
    return ControlType(kind) if kind in ControlType.__members__.values() else None


def read_batches(buffer: Buffer, *, verify: bool = True) -> Iterator[Batch]:
    """Yield the batches of a buffer, such as Fetch's `records`. A batch that is cut at the end is left out.

    Raises InvalidBatch if the bytes are not a batch of magic 2 or, with `verify`, if a CRC is wrong.
    """
    view = memoryview(buffer).cast("B")
    for info in record_batch.batches(view):
        if verify:
            record_batch.verify(view, info.position)
        yield Batch(info, view[info.position + HEADER_SIZE : info.position + info.size])


def read_records(buffer: Buffer, *, from_offset: int = 0, limit: int = INFLATED_LIMIT) -> Iterator[Record]:
    """Yield the records of a buffer's batches from `from_offset` on, without control records."""
    for batch in read_batches(buffer):
        if batch.info.is_control or batch.info.last_offset < from_offset:
            continue
        for record in batch.records(limit):
            if record.offset >= from_offset:
                yield record


def read_columns(
    buffer: Buffer, *, from_offset: int = 0, to_offset: int = 2**63 - 1, limit: int = INFLATED_LIMIT
) -> Columns:
    """Return the records of a buffer's batches with offsets `from_offset` to `to_offset` - 1 as flat columns."""
    collector = RecordColumns(from_offset, to_offset)
    for batch in read_batches(buffer):
        if batch.info.last_offset >= from_offset and batch.info.base_offset < to_offset:
            collector.add(batch.info, inflate_shared(batch.info.codec, batch.payload, limit))
    return collector.finish()
