"""A slow and obvious reading of a segment's bytes: batches and messages of any magic, one after the other."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kbroker.protocol.compression import inflate
from kbroker.protocol.records import Batch, Record, read_batches
from tests.kit.models import message_set as message_set_model
from tests.kit.models.message_set import CODEC

_HEAD = struct.Struct(">qi4xB")
_INFLATED_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class OldMessage:
    """A message of magic 0 or 1, also one inside of a compressed message, that looks like a batch of one record."""

    magic: int
    base_offset: int
    max_timestamp: int
    key: bytes | None
    value: bytes | None
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    record_count: int = 1
    is_control: bool = False
    is_transactional: bool = False

    @property
    def info(self) -> OldMessage:
        return self

    @property
    def last_offset(self) -> int:
        return self.base_offset

    def records(self) -> list[Record]:
        return [Record(self.base_offset, self.max_timestamp, self.key, self.value)]


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch, or a message of magic 0 or 1 with its inner messages."""

    position: int
    base_offset: int
    """The base offset; for a compressed message the offset of its last inner one."""
    last_offset: int
    max_timestamp: int
    content: Batch | tuple[OldMessage, ...]


def stored_batches(data: bytes) -> Iterator[StoredBatch]:
    """Return the batches and messages in these bytes, verified. One that is cut short at the end is left out."""
    position = 0
    while len(data) - position >= _HEAD.size:
        offset, length, magic = _HEAD.unpack_from(data, position)
        one = data[position : position + 12 + length]
        if len(one) < 12 + length:
            return
        if magic == 2:
            (batch,) = read_batches(one)
            info = batch.info
            yield StoredBatch(position, info.base_offset, info.last_offset, info.max_timestamp, batch)
        else:
            outer, _ = message_set_model.decode_one(one)
            messages = [outer]
            if outer.attributes & CODEC:
                assert outer.value is not None
                plain = inflate(outer.attributes & CODEC, outer.value, _INFLATED_LIMIT, magic=magic)
                messages = message_set_model.decode_set(plain, outer)
            assert messages[-1].offset == offset, f"a message at {offset} that ends at {messages[-1].offset}"
            content = tuple(OldMessage(magic, at.offset, at.timestamp, at.key, at.value) for at in messages)
            yield StoredBatch(position, offset, offset, outer.timestamp, content)
        position += len(one)
