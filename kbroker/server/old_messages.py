"""Converts messages of magic 0 and 1: to a record batch when they are produced, from record batches when fetched.

Both run on a request handler's thread. `_core/wire/conversion.pyx` says what a conversion keeps and what it drops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker._core.wire.conversion import batch_of_messages, message_sets_of_batch, older_messages
from kbroker._core.wire.message_set import check
from kbroker._core.wire.record_batch import HEADER_SIZE, header
from kbroker.errors import BadInput, ErrorCode
from kbroker.protocol.compression import Codec, UnknownCodec, deflate, inflate_shared

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC_AT = 16
_LOG_APPEND_TIME = 8
_SET_SIZE = 8 << 20
"""Most bytes of messages that are converted at a time and put into one compressed message; one record may exceed it."""


class MessageTooLarge(BadInput):
    """A message is over max.message.bytes."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class NotOneMessage(BadInput):
    """A produced message set has more bytes behind its compressed message."""

    code = ErrorCode.INVALID_RECORD


def convert(messages: memoryview, largest: int, limit: int) -> tuple[bytes, int]:
    """Return the messages that a producer sent as one uncompressed record batch, and the codec that they had.

    `largest` is the most bytes of a message, `limit` the most that a compressed one may inflate to. Raises KbrokerError
    if the messages are malformed or too large.
    """
    first = check(messages)
    if first.size > largest:
        raise MessageTooLarge(f"a message of {first.size} bytes, more than {largest}")
    if first.codec == Codec.NONE:
        return batch_of_messages(messages, limit=limit).build(), first.codec
    if first.size != len(messages):
        raise NotOneMessage(f"{len(messages) - first.size} bytes behind a compressed message")
    payload = messages[first.value_position : first.value_position + first.value_size]
    inner = inflate_shared(first.codec, payload, limit, strict=True, magic=first.magic)
    builder = batch_of_messages(inner, wrapper=first, limit=limit)
    # A producer must not set log append time; the bit is kept so that the check of the batch refuses it.
    return builder.build(attributes=_LOG_APPEND_TIME if first.is_log_append_time else 0), first.codec


def down_convert(batch: memoryview, start_offset: int, magic: int, limit: int) -> bytes:
    """Convert a compressed batch to messages of magic 0 or 1, or a compressed message of magic 1 to magic 0.

    `start_offset` is the offset that the client asked for, `limit` the most bytes that the records may inflate to.
    Raises KbrokerError if they cannot be converted, for example for zstd, which these formats do not have.
    """
    if batch[_MAGIC_AT] == 1:
        return _older(batch, limit)
    return b"".join(_message_sets(batch, start_offset, magic, limit))


def _older(message: memoryview, limit: int) -> bytes:
    """Convert a compressed message of magic 1 to magic 0."""
    wrapper = check(message)
    payload = message[wrapper.value_position : wrapper.value_position + wrapper.value_size]
    builder = older_messages(inflate_shared(wrapper.codec, payload, limit, magic=1), wrapper)
    return builder.wrap(wrapper.codec, deflate(wrapper.codec, builder.messages(), magic=0))


def _message_sets(batch: memoryview, start_offset: int, magic: int, limit: int) -> Iterator[bytes]:
    info = header(batch)
    if info.codec == Codec.ZSTD:
        raise UnknownCodec("zstd, which clients that ask for messages cannot read")
    records = inflate_shared(info.codec, batch[HEADER_SIZE:], limit)
    for builder in message_sets_of_batch(info, records, magic, start_offset=start_offset, limit=_SET_SIZE):
        yield builder.wrap(info.codec, deflate(info.codec, builder.messages(), magic=magic))
