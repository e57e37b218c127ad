"""Messages of magic 0 and 1 at the edge: to a record batch when they come in, from record batches when they go out.

Processors call both on a request handler's thread. What is kept and dropped is told in `_core/conversion.pyx`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker._core.conversion import batch_of_messages, message_sets_of_batch, older_messages
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
_ATTRIBUTES_AT = 17
_CODEC_MASK = 7
_LOG_APPEND_TIME = 8
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
    # A producer may not say that: whoever checks the batch shall see it.
    return builder.build(attributes=_LOG_APPEND_TIME if first.is_log_append_time else 0), first.codec


def down_convert(batches: memoryview, start_offset: int, magic: int, limit: int) -> bytes:
    """The messages of magic 0 or 1 for a client that asked for `start_offset`; a last batch cut short is left out.

    `limit` bounds what a batch inflates to. A batch with zstd, which these formats do not have, ends it. Raises
    KbrokerError: that batch is the first.
    """
    parts: list[Buffer] = []
    position = 0
    while len(batches) - position > _MAGIC_AT:
        size = _size_at(batches, position)
        batch = batches[position : position + size]
        if len(batch) < size:
            break
        if batch[_MAGIC_AT] <= magic:
            parts.append(batch)
        elif batch[_MAGIC_AT] == 1:
            batch = _run_of_messages(batches, position)
            parts.append(_older(batch, start_offset, limit))
        else:
            try:
                parts.extend(_message_sets(batch, start_offset, magic, limit))
            except UnknownCodec:
                if not parts:
                    raise
                break
        position += len(batch)
    return b"".join(parts)


def _size_at(batches: memoryview, position: int) -> int:
    return _OVERHEAD + int.from_bytes(batches[position + _SIZE_AT : position + _OVERHEAD])


def _run_of_messages(batches: memoryview, start: int) -> memoryview:
    """The message of magic 1 at `start`, and those behind it if none of them is compressed."""
    end = start
    while len(batches) - end > _ATTRIBUTES_AT and batches[end + _MAGIC_AT] == 1:
        size = _size_at(batches, end)
        is_compressed = batches[end + _ATTRIBUTES_AT] & _CODEC_MASK
        if size > len(batches) - end or (is_compressed and end > start):
            break
        end += size
        if is_compressed:
            break
    return batches[start:end]


def _older(run: memoryview, start_offset: int, limit: int) -> bytes:
    """Messages of magic 1 as those of magic 0."""
    first = check(run)
    if first.codec == Codec.NONE:
        return older_messages(run, start_offset=start_offset).messages()
    payload = run[first.value_position : first.value_position + first.value_size]
    builder = older_messages(inflate_shared(first.codec, payload, limit, magic=1), wrapper=first)
    return builder.wrap(first.codec, deflate(first.codec, builder.messages(), magic=0))


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
