"""Messages of magic 0 and 1 at the edge: to a record batch when they come in, from record batches when they go out.

Processors call both on a request handler's thread. What is kept and dropped is told in `_core/conversion.pyx`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker._core.conversion import batch_of_messages, message_sets_of_batch
from kbroker._core.message_set import check
from kbroker._core.record_batch import header
from kbroker.errors import BadInput, ErrorCode
from kbroker.protocol.compression import Codec, UnknownCodec, deflate, inflate_shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

_SIZE_AT = 8
_OVERHEAD = 12
_MAGIC_AT = 16
_HEADER_SIZE = 61
_SET_SIZE = 8 << 20
"""Bytes of messages that are made at a time; one compressed message holds no more, unless a record alone is larger."""


class MessageTooLarge(BadInput):
    """A message is over max.message.bytes."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class NotOneMessage(BadInput):
    """Something stands behind a compressed message."""

    code = ErrorCode.INVALID_RECORD


def convert(messages: memoryview, largest: int, limit: int) -> tuple[bytes, int]:
    """A batch without codec of the messages that a producer sent, and the codec that they had.

    `largest` bounds the size of a message, `limit` what a compressed one inflates to. Raises KbrokerError.
    """
    first = check(messages)
    if first.size > largest:
        raise MessageTooLarge(f"a message of {first.size} bytes, more than {largest}")
    if first.codec == Codec.NONE:
        builder, _ = batch_of_messages(messages, limit=limit)
        return builder.build(), first.codec
    if first.size != len(messages):
        raise NotOneMessage(f"{len(messages) - first.size} bytes behind a compressed message")
    if first.codec == Codec.ZSTD:
        raise UnknownCodec("zstd in a message of magic 0 or 1")
    payload = messages[first.value_position : first.value_position + first.value_size]
    inner = inflate_shared(first.codec, payload, limit, strict=True, magic=first.magic)
    builder, _ = batch_of_messages(inner, wrapper=first, limit=limit)
    return builder.build(), first.codec


def down_convert(batches: memoryview, start_offset: int, magic: int, limit: int) -> bytes:
    """The messages of magic 0 or 1 for a client that asked for `start_offset`; a last batch cut short is left out.

    `limit` bounds what a batch inflates to. Raises KbrokerError: zstd, which these formats do not have.
    """
    parts: list[Buffer] = []
    position = 0
    while len(batches) - position > _MAGIC_AT:
        size = _OVERHEAD + int.from_bytes(batches[position + _SIZE_AT : position + _OVERHEAD])
        batch = batches[position : position + size]
        if len(batch) < size:
            break
        if batch[_MAGIC_AT] <= magic:
            parts.append(batch)
        else:
            parts.extend(_message_sets(batch, start_offset, magic, limit))
        position += size
    return b"".join(parts)


def _message_sets(batch: memoryview, start_offset: int, magic: int, limit: int) -> Iterator[bytes]:
    info = header(batch)
    if info.codec == Codec.ZSTD:
        raise UnknownCodec("zstd, which clients that ask for messages cannot read")
    records = inflate_shared(info.codec, batch[_HEADER_SIZE:], limit)
    for builder in message_sets_of_batch(info, records, magic, start_offset=start_offset, limit=_SET_SIZE):
        if info.codec == Codec.NONE:
            yield builder.messages()
        else:
            yield builder.wrap(info.codec, deflate(info.codec, builder.messages(), magic=magic))
