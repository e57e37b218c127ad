"""Messages of magic 0 and 1 at the edge: to a record batch when they come in, from record batches when they go out.

Processors call both on a request handler's thread. What is kept and dropped is told in `_core/wire/conversion.pyx`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker._core.wire.conversion import batch_of_messages, message_sets_of_batch, older_messages
from kbroker._core.wire.message_set import check
from kbroker._core.wire.record_batch import header
from kbroker.errors import BadInput, ErrorCode
from kbroker.protocol.compression import Codec, UnknownCodec, deflate, inflate_shared

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC_AT = 16
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
        return batch_of_messages(messages, limit=limit).build(), first.codec
    if first.size != len(messages):
        raise NotOneMessage(f"{len(messages) - first.size} bytes behind a compressed message")
    payload = messages[first.value_position : first.value_position + first.value_size]
    inner = inflate_shared(first.codec, payload, limit, strict=True, magic=first.magic)
    builder = batch_of_messages(inner, wrapper=first, limit=limit)
    # A producer may not say that: whoever checks the batch shall see it.
    return builder.build(attributes=_LOG_APPEND_TIME if first.is_log_append_time else 0), first.codec


def down_convert(batch: memoryview, start_offset: int, magic: int, limit: int) -> bytes:
    """The messages of magic 0 or 1 of a compressed batch, or of a compressed message of a magic that is too new.

    The client asked for `start_offset`; `limit` bounds what it inflates to. Raises KbrokerError: zstd, which these
    formats do not have.
    """
    if batch[_MAGIC_AT] == 1:
        return _older(batch, limit)
    return b"".join(_message_sets(batch, start_offset, magic, limit))


def _older(message: memoryview, limit: int) -> bytes:
    """A compressed message of magic 1 as one of magic 0."""
    wrapper = check(message)
    payload = message[wrapper.value_position : wrapper.value_position + wrapper.value_size]
    builder = older_messages(inflate_shared(wrapper.codec, payload, limit, magic=1), wrapper)
    return builder.wrap(wrapper.codec, deflate(wrapper.codec, builder.messages(), magic=0))


def _message_sets(batch: memoryview, start_offset: int, magic: int, limit: int) -> Iterator[bytes]:
    info = header(batch)
    if info.codec == Codec.ZSTD:
        raise UnknownCodec("zstd, which clients that ask for messages cannot read")
    records = inflate_shared(info.codec, batch[_HEADER_SIZE:], limit)
    for builder in message_sets_of_batch(info, records, magic, start_offset=start_offset, limit=_SET_SIZE):
        yield builder.wrap(info.codec, deflate(info.codec, builder.messages(), magic=magic))
