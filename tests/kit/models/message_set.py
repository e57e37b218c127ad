"""Messages of magic 0 and 1, slow and obvious: what the compiled core is compared with.

Findings are named as in kbroker._core.wire.record_batch.FINDINGS; the order of the checks is the contract's.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from tests.kit.models.record_batch import Refused

CODEC, LOG_APPEND_TIME = 7, 8


@dataclass(frozen=True)
class Message:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    magic: int = 1
    attributes: int = 0


def sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def framed(offset: int, body: bytes) -> bytes:
    """Return a message of any `body` (the bytes from the magic on), with the right CRC."""
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def encode(message: Message) -> bytes:
    timestamp = struct.pack(">q", message.timestamp) if message.magic else b""
    body = bytes([message.magic, message.attributes]) + timestamp + sized(message.key) + sized(message.value)
    return framed(message.offset, body)


def encode_set(messages: Sequence[Message]) -> bytes:
    return b"".join(map(encode, messages))


def take_sized(data: bytes) -> tuple[bytes | None, bytes]:
    if len(data) < 4:
        raise Refused("BATCH_BAD_RECORD")
    (size,) = struct.unpack_from(">i", data)
    if size < 0:
        return None, data[4:]
    if size > len(data) - 4:
        raise Refused("BATCH_BAD_RECORD")
    return data[4 : 4 + size], data[4 + size :]


def decode_one(data: bytes) -> tuple[Message, bytes]:
    """Return the first message, and the bytes behind it."""
    if len(data) < 12:
        raise Refused("BATCH_TOO_SHORT")
    offset, length = struct.unpack_from(">qi", data)
    if length < 14 or length > 2**31 - 1 - 12:
        raise Refused("BATCH_BAD_LENGTH")
    if len(data) < 17:
        raise Refused("BATCH_TOO_SHORT")
    magic = data[16]
    if magic > 1:
        raise Refused("BATCH_BAD_MAGIC")
    if len(data) < 12 + length:
        raise Refused("BATCH_TOO_SHORT")
    if magic == 1 and length < 22:
        raise Refused("BATCH_BAD_LENGTH")
    (crc,) = struct.unpack_from(">I", data, 12)
    if zlib.crc32(data[16 : 12 + length]) != crc:
        raise Refused("BATCH_BAD_CRC")
    attributes = data[17]
    if attributes & CODEC > 3:
        raise Refused("BATCH_OLD_ZSTD" if attributes & CODEC == 4 else "BATCH_BAD_CODEC")
    timestamp = struct.unpack_from(">q", data, 18)[0] if magic else -1
    key, rest = take_sized(data[26 if magic else 18 : 12 + length])
    value, rest = take_sized(rest)
    if rest or (attributes & CODEC and value is None):
        raise Refused("BATCH_BAD_RECORD")
    return Message(offset, timestamp, key, value, magic, attributes), data[12 + length :]


def decode_set(data: bytes, wrapper: Message | None = None) -> list[Message]:
    """Return the messages of a set or inside of `wrapper`, with absolute offsets and the timestamps Kafka sees."""
    found: list[Message] = []
    while data:
        message, data = decode_one(data)
        if message.magic != (wrapper or (found or [message])[0]).magic:
            raise Refused("BATCH_MIXED_MAGIC")
        if wrapper and message.attributes & CODEC:
            raise Refused("BATCH_NESTED")
        found.append(message)
    if wrapper is None:
        return found
    if not found:
        raise Refused("BATCH_EMPTY")
    base = 0
    if wrapper.magic == 1 and wrapper.offset != 0:
        base = wrapper.offset - found[-1].offset
        if base < 0:
            raise Refused("BATCH_BAD_WRAPPER")
    stamped = wrapper.magic == 1 and wrapper.attributes & LOG_APPEND_TIME
    return [
        Message(m.offset + base, wrapper.timestamp if stamped else m.timestamp, m.key, m.value, m.magic, m.attributes)
        for m in found
    ]
