"""The compression codecs of record batches, by their id in the batch's attributes.

Inflating is bounded: bytes from outside never inflate to more than `limit` bytes, and no memory is allocated because a
length field says so. Each thread reserves address space once and inflates into it; only pages that are written become
memory.

`inflate` reads gzip with any number of members, lz4 frames with every option, zstd frames (lz4 and zstd frames may be
concatenated), and snappy, raw or in the framing of snappy-java ("xerial"). `deflate` writes what Kafka's own clients
write.

In messages of magic 0 Kafka computed the check sum of an lz4 frame's descriptor over the frame's magic number too,
which is wrong (KAFKA-3160). With `magic=0` the wrong check sum is written, and any is accepted. Messages of magic 1 and
2 have the right one.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

import cramjam

from kbroker._core.wire.xxh32 import xxh32_of
from kbroker.errors import BadInput, ErrorCode

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes. On disk. Do not renumber."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS = {codec.name.lower(): codec for codec in Codec}  #: by the names that settings and commands use


class UnknownCodec(BadInput):
    """The attributes name a codec that does not exist."""

    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class BadCompression(BadInput):
    """Compressed bytes cannot be inflated. Kafka answers UNKNOWN_SERVER_ERROR instead."""

    code = ErrorCode.INVALID_RECORD


class InflatesTooLarge(BadInput):
    """Compressed bytes inflate to more than the limit.

    They are a bomb or a large batch; the error's code makes clients split the batch.
    """

    code = ErrorCode.MESSAGE_TOO_LARGE


def inflate(codec: int, data: Buffer, limit: int, *, magic: int = 2) -> bytes:
    """Return `data` inflated. Raises UnknownCodec, BadCompression, and InflatesTooLarge beyond `limit` bytes."""
    return bytes(inflate_shared(codec, data, limit, magic=magic))


def inflate_shared(codec: int, data: Buffer, limit: int, *, strict: bool = False, magic: int = 2) -> memoryview:
    """Do what `inflate` does, without the last copy: this thread's next call of either overwrites the result.

    `strict` is for batches from producers: it refuses an lz4 frame with linked blocks, which no Java client can read.
    `magic` is that of the message or batch that holds `data`.
    """
    if codec == Codec.NONE:
        plain = memoryview(data)
        if plain.nbytes > limit:
            raise InflatesTooLarge(f"{plain.nbytes} bytes are over the limit of {limit}")
        return plain
    function = _INFLATE.get(codec)
    if function is None:
        raise UnknownCodec(f"unknown compression codec {codec}")
    if strict and codec == Codec.LZ4 and _has_linked_blocks(data):
        raise BadCompression("lz4: linked blocks, which Kafka's clients cannot read")
    if magic == 0 and codec == Codec.LZ4:
        data = _with_lz4_checksum(data, broken=False)
    room = _scratch.room(limit)
    try:
        size = function(data, room)
    except cramjam.DecompressionError as error:
        _scratch.give_back()
        # The text of Rust's io::Write for a full slice. A test checks that the pinned cramjam still gives it.
        if "failed to write whole buffer" in str(error):
            raise InflatesTooLarge(f"{Codec(codec).name.lower()}: inflates to more than {limit} bytes") from None
        raise BadCompression(f"{Codec(codec).name.lower()}: {error}") from None
    if size > _KEPT_SIZE:
        _scratch.give_back()
    return room[:size].toreadonly()


def deflate(codec: int, data: Buffer, level: int | None = None, *, magic: int = 2) -> bytes:
    """Return `data` compressed as Kafka's clients compress it. Raises UnknownCodec.

    `level` is the codec's level in Kafka's settings; None: its default; snappy has no level. `magic` is that of the
    message or batch that is to hold the result.
    """
    function = _DEFLATE.get(codec)
    if function is None:
        raise UnknownCodec(f"unknown compression codec {codec}")
    small = function(data, level)
    return _with_lz4_checksum(small, broken=True) if magic == 0 and codec == Codec.LZ4 else small


# --- scratch memory ---------------------------------------------------------------------------------

_KEPT_SIZE = 1 << 20  # bytes of memory that a thread keeps: a producer's batch at its defaults


class _Scratch(threading.local):
    """One thread's reserved address space for inflated bytes."""

    space: mmap.mmap | None = None

    def room(self, limit: int) -> memoryview:
        """Return `limit` writable bytes. They overlap those of the last call."""
        if self.space is None or len(self.space) < limit:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
            self.space = mmap.mmap(-1, max(limit, _KEPT_SIZE), flags=flags)
        return memoryview(self.space)[:limit]

    def give_back(self) -> None:
        """Release the address space, because too much of it has become memory; the next call reserves another.

        The memory is freed with the last view of it.
        """
        self.space = None


_scratch = _Scratch()

# --- snappy -----------------------------------------------------------------------------------------

# snappy-java's SnappyOutputStream: magic, version, lowest compatible version, then chunks of (size, raw snappy).
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_CHUNK_SIZE = 32 << 10


def _inflate_snappy(data: Buffer, room: memoryview) -> int:
    source = memoryview(data).cast("B")
    if source[:8] != _XERIAL_MAGIC:
        return _inflate_raw_snappy(source, room)
    position = size = 0
    while position < len(source):
        if source[position : position + 8] == _XERIAL_MAGIC:  # at the start, or at the start of another stream
            position += len(_XERIAL_HEADER)
            if position > len(source):
                raise cramjam.DecompressionError("framing ends inside its header")
            continue
        if len(source) - position < 4:
            raise cramjam.DecompressionError("framing ends inside a chunk's size")
        (chunk_size,) = struct.unpack_from(">i", source, position)
        position += 4
        if chunk_size < 0 or chunk_size > len(source) - position:
            raise cramjam.DecompressionError(f"a chunk of {chunk_size} bytes where {len(source) - position} are left")
        size += _inflate_raw_snappy(source[position : position + chunk_size], room[size:])
        position += chunk_size
    return size


def _inflate_raw_snappy(source: memoryview, room: memoryview) -> int:
    # The engine of python-snappy, called directly: docs/DEPENDENCIES.md has the figure.
    if cramjam.snappy.decompress_raw_len(source) > len(room):
        raise cramjam.DecompressionError("failed to write whole buffer")
    return int(cramjam.snappy.decompress_raw_into(source, room))


def _deflate_snappy(data: Buffer, _level: int | None) -> bytes:
    import snappy  # imported here: a broker that starts compresses nothing

    source = memoryview(data).cast("B")
    parts = [_XERIAL_HEADER]
    for position in range(0, len(source), _XERIAL_CHUNK_SIZE):
        chunk = snappy.compress(source[position : position + _XERIAL_CHUNK_SIZE])
        parts += [struct.pack(">i", len(chunk)), chunk]
    return b"".join(parts)


# --- lz4 --------------------------------------------------------------------------------------------

# A frame: magic number, FLG, BD, content size (8 bytes) and dictionary (4 bytes) if FLG has them, header check sum.
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_INDEPENDENT_BLOCKS, _LZ4_CONTENT_SIZE, _LZ4_DICTIONARY = 0x20, 0x08, 0x01


def _with_lz4_checksum(data: Buffer, *, broken: bool) -> bytes:
    """Return an lz4 frame with its descriptor's right check sum or, if `broken`, with that of magic 0.

    Bytes that are not a frame are returned unchanged.
    """
    frame = bytearray(data)
    if frame[:4] != _LZ4_MAGIC or len(frame) < 7:
        return bytes(frame)
    end = 6 + (8 if frame[4] & _LZ4_CONTENT_SIZE else 0) + (4 if frame[4] & _LZ4_DICTIONARY else 0)
    if end < len(frame):
        frame[end] = xxh32_of(frame[0 if broken else 4 : end]) >> 8 & 0xFF
    return bytes(frame)


def _has_linked_blocks(data: Buffer) -> bool:
    """Return whether an lz4 frame's FLG byte lacks the bit for independent blocks."""
    start = bytes(memoryview(data).cast("B")[:5])
    return start[:4] == _LZ4_MAGIC and len(start) == 5 and not start[4] & _LZ4_INDEPENDENT_BLOCKS


def _deflate_lz4(data: Buffer, level: int | None) -> bytes:
    # Kafka's default level, 9, means its fast compressor, which is level 1 here.
    fast = level in (None, -1, 9)
    # Kafka's Lz4BlockInputStream reads only independent blocks without a check sum of the content.
    compressor = cramjam.lz4.Compressor(level=1 if fast else level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))  # it takes nothing but bytes
    return bytes(compressor.finish())


# --- the others -------------------------------------------------------------------------------------


def _deflate_gzip(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.gzip.compress(data, level=6 if level in (None, -1) else level))


def _deflate_zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))


_INFLATE: dict[int, Callable[[Buffer, memoryview], int]] = {
    Codec.GZIP: lambda data, room: int(cramjam.gzip.decompress_into(data, room)),
    Codec.SNAPPY: _inflate_snappy,
    Codec.LZ4: lambda data, room: int(cramjam.lz4.decompress_into(data, room)),
    Codec.ZSTD: lambda data, room: int(cramjam.zstd.decompress_into(data, room)),
}
_DEFLATE: dict[int, Callable[[Buffer, int | None], bytes]] = {
    Codec.NONE: lambda data, _level: bytes(data),
    Codec.GZIP: _deflate_gzip,
    Codec.SNAPPY: _deflate_snappy,
    Codec.LZ4: _deflate_lz4,
    Codec.ZSTD: _deflate_zstd,
}
