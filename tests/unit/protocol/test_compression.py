"""Codecs: round trips, framings, limits, and nothing but our errors for rubbish."""

import gzip
import io
import mmap
import random
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.wire.xxh32 import xxh32_of
from kbroker.errors import BadInput, ErrorCode
from kbroker.protocol import compression
from kbroker.protocol.compression import BadCompression, Codec, InflatesTooLarge, UnknownCodec, deflate, inflate
from tests.kit.wire import parser_cases

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
SAMPLE = b"".join(b'{"user": %d, "page": "/p/%d"}' % (i, i % 7) for i in range(4000))


@given(st.sampled_from(list(Codec)), st.binary(max_size=2000) | st.binary(max_size=20).map(lambda piece: piece * 5000))
def test_what_was_deflated_is_inflated_again(codec: Codec, data: bytes) -> None:
    small = deflate(codec, data)
    assert inflate(codec, small, len(data)) == data
    assert inflate(codec, memoryview(b"x" + small)[1:], len(data) + 100) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_one_byte_over_the_limit_is_too_large_and_the_code_makes_clients_split(codec: Codec) -> None:
    small = deflate(codec, SAMPLE)
    with pytest.raises(InflatesTooLarge) as refused:
        inflate(codec, small, len(SAMPLE) - 1)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def bomb(codec: Codec) -> bytes:
    zeros = bytes(1 << 20)
    if codec is Codec.SNAPPY:
        return deflate(codec, zeros)[:16] + deflate(codec, zeros)[16:] * 64
    return deflate(codec, zeros) * 64  # 64 members, frames


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_takes_no_more_memory_than_the_limit(codec: Codec) -> None:
    script = (
        "import resource, sys\n"
        "from kbroker.protocol.compression import InflatesTooLarge, inflate\n"
        "bomb = sys.stdin.buffer.read()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        f"    inflate({int(codec)}, bomb, 8 << 20)\n"
        "    raise SystemExit('the bomb was inflated')\n"
        "except InflatesTooLarge:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input=bomb(codec), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) < 12 << 10  # KiB


def resident_size() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("limit", [80 << 20, 60 << 20])
def test_memory_of_a_large_batch_goes_with_its_last_view(limit: int) -> None:
    small = deflate(Codec.ZSTD, bytes(64 << 20))
    before = resident_size()
    try:
        view = compression.inflate_shared(Codec.ZSTD, small, limit)
        assert view.nbytes == 64 << 20
        assert resident_size() - before > 60 << 20
        del view
    except InflatesTooLarge:
        assert limit < 64 << 20
    assert resident_size() - before < 8 << 20


@pytest.mark.parametrize("codec", COMPRESSED)
def test_rubbish_raises_only_errors_of_ours(codec: Codec) -> None:
    whole = deflate(codec, b"some bytes, some bytes, and some more bytes" * 3)
    assert parser_cases.feed(lambda data: inflate(codec, data, 1000), whole) > len(whole) // 2
    chance = random.Random(1)
    for size in range(40):
        with pytest.raises(BadInput):
            inflate(codec, chance.randbytes(size) + b"\xff", 1000)


def test_an_unknown_codec_is_named() -> None:
    for codec in (5, 6, 7, -1):
        with pytest.raises(UnknownCodec) as refused:
            inflate(codec, b"", 10)
        assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        with pytest.raises(UnknownCodec):
            deflate(codec, b"")


def test_raw_snappy_is_read_too() -> None:
    assert inflate(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(SAMPLE)), len(SAMPLE)) == SAMPLE
    with pytest.raises(InflatesTooLarge):
        inflate(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(SAMPLE)), len(SAMPLE) - 1)


def test_snappy_is_written_as_snappy_java_does() -> None:
    framed = deflate(Codec.SNAPPY, SAMPLE)
    assert framed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    position, sizes = 16, []
    while position < len(framed):
        (size,) = struct.unpack_from(">i", framed, position)
        sizes.append(len(cramjam.snappy.decompress_raw(framed[position + 4 : position + 4 + size])))
        position += 4 + size
    assert sizes == [32768] * (len(SAMPLE) // 32768) + [len(SAMPLE) % 32768]


def test_streams_put_one_behind_the_other_are_one() -> None:
    for codec in COMPRESSED:
        assert inflate(codec, deflate(codec, b"one ") + deflate(codec, b"two"), 7) == b"one two", codec


@pytest.mark.parametrize(
    "lie",
    [
        b"\x7f\xff\xff\xff",  # a chunk of 2 GiB
        b"\xff\xff\xff\xff",
        b"\0\0\0",  # half a size
        b"\0\0\0\x05\xff\xff\xff\xff\x0f",  # raw snappy that claims 4 GiB
        b"\x82SNAPPY\0\0\0\0\1",  # half a header
    ],
)
def test_lying_snappy_chunks_are_refused(lie: bytes) -> None:
    with pytest.raises(BadInput):
        inflate(Codec.SNAPPY, deflate(Codec.SNAPPY, b"good") + lie, 1 << 20)


def lz4(data: bytes, *, checksum: bool, linked: bool) -> bytes:
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=checksum, block_linked=linked)
    compressor.compress(data)
    return bytes(compressor.finish())


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_lz4_frames_of_every_kind_are_read(checksum: bool, linked: bool) -> None:
    assert inflate(Codec.LZ4, lz4(SAMPLE * 3, checksum=checksum, linked=linked), 1 << 20) == SAMPLE * 3


def test_producers_may_not_send_lz4_that_no_java_client_can_read() -> None:
    linked = lz4(SAMPLE, checksum=False, linked=True)
    with pytest.raises(BadCompression, match="linked blocks"):
        compression.inflate_shared(Codec.LZ4, linked, 1 << 20, strict=True)
    assert compression.inflate_shared(Codec.LZ4, deflate(Codec.LZ4, SAMPLE), 1 << 20, strict=True) == SAMPLE


def test_lz4_is_written_with_independent_blocks_and_nothing_that_java_does_not_read() -> None:
    frame = deflate(Codec.LZ4, SAMPLE)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & ~0x10 == 0x60  # version 1, independent blocks, with or without their checksums; nothing else


def test_gzip_of_other_writers_is_read() -> None:
    out = io.BytesIO()
    with gzip.GzipFile("a name", "wb", fileobj=out, mtime=5) as file:  # with the optional file name in the header
        file.write(SAMPLE)
    assert inflate(Codec.GZIP, out.getvalue(), 1 << 20) == SAMPLE
    stored = zlib.compressobj(0, wbits=31)
    assert inflate(Codec.GZIP, stored.compress(SAMPLE) + stored.flush(), 1 << 20) == SAMPLE


def test_a_wrong_checksum_inside_the_codec_is_noticed() -> None:
    damaged = bytearray(deflate(Codec.GZIP, SAMPLE))
    damaged[-6] ^= 1
    with pytest.raises(BadCompression):
        inflate(Codec.GZIP, damaged, 1 << 20)


@pytest.mark.parametrize("level", [None, -1, 1, 8, 9])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_every_level_is_read_again(codec: Codec, level: int | None) -> None:
    assert inflate(codec, deflate(codec, SAMPLE, level), len(SAMPLE)) == SAMPLE


def test_threads_do_not_share_their_scratch_memory() -> None:
    mine = compression.inflate_shared(Codec.ZSTD, deflate(Codec.ZSTD, b"mine"), 100)
    other = threading.Thread(target=lambda: compression.inflate_shared(Codec.ZSTD, deflate(Codec.ZSTD, b"theirs"), 100))
    other.start()
    other.join()
    assert mine == b"mine"
    assert mine.readonly


def test_import_stays_light() -> None:
    script = "import sys, kbroker.protocol.records; print(sorted({'numpy', 'pyarrow', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# --- lz4 in messages of magic 0 (KAFKA-3160) ----------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"abc", SAMPLE])
def test_lz4_of_magic_0_has_the_wrong_check_sum_that_its_clients_expect(data: bytes) -> None:
    right, wrong = deflate(Codec.LZ4, data), deflate(Codec.LZ4, data, magic=0)
    assert deflate(Codec.LZ4, data, magic=1) == right
    assert right[:6] + right[7:] == wrong[:6] + wrong[7:]
    assert right[6] == xxh32_of(right[4:6]) >> 8 & 0xFF
    assert wrong[6] == xxh32_of(right[:6]) >> 8 & 0xFF != right[6]
    for frame in (right, wrong, right[:6] + b"\0" + right[7:]):
        assert inflate(Codec.LZ4, frame, len(data), magic=0) == data
    with pytest.raises(BadCompression):
        inflate(Codec.LZ4, wrong, len(data), magic=1)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_other_codecs_are_the_same_in_every_magic(codec: Codec) -> None:
    assert inflate(codec, deflate(codec, SAMPLE, magic=0), len(SAMPLE), magic=0) == SAMPLE


def test_a_content_size_moves_the_check_sum() -> None:
    plain = deflate(Codec.LZ4, b"abc")
    sized = plain[:4] + bytes([plain[4] | 0x08]) + plain[5:6] + struct.pack("<Q", 3) + b"?" + plain[7:]
    assert inflate(Codec.LZ4, sized, 3, magic=0) == b"abc"


def test_only_our_errors_come_out_of_a_hostile_frame_of_magic_0() -> None:
    frame = deflate(Codec.LZ4, b"abc" * 10, magic=0)
    assert parser_cases.feed(lambda data: inflate(Codec.LZ4, data, 1 << 16, magic=0), frame) > 0
