"""Inflates and compresses produced batches for the compiled core, which has no codecs of its own.

The core inflates a small batch on the processor's thread and leaves larger ones to a request handler's thread.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kbroker._core.wire.crc import crc32c_of
from kbroker._core.wire.record_batch import HEADER_SIZE
from kbroker.protocol.compression import deflate, inflate_shared

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LENGTH = struct.Struct(">i")
_LENGTH_AT = 8
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_COUNTED_FROM = 12
_CODEC_MASK = 0x07


def inflate(codec: int, data: Buffer, limit: int) -> memoryview:
    """Return the inflated records of a produced batch, at most `limit` bytes. Valid until this thread's next call.

    Raises KbrokerError with the code to answer.
    """
    return inflate_shared(codec, data, limit, strict=True)


def recompress(header: Buffer, records: Buffer, codec: int, level: int | None) -> bytes:
    """Return the batch that has this `header` and these inflated `records`, compressed with `codec` at `level`."""
    body = deflate(codec, bytes(records), level)
    batch = bytearray(header)
    batch += body
    _LENGTH.pack_into(batch, _LENGTH_AT, HEADER_SIZE + len(body) - _COUNTED_FROM)
    (attributes,) = struct.unpack_from(">H", batch, _ATTRIBUTES_AT)
    struct.pack_into(">H", batch, _ATTRIBUTES_AT, attributes & ~_CODEC_MASK | codec)
    struct.pack_into(">I", batch, _CRC_AT, crc32c_of(memoryview(batch)[_ATTRIBUTES_AT:]))
    return bytes(batch)
