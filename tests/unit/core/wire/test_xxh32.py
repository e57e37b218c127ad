"""XXH32 against known values and against the check sums in frames that an lz4 library wrote."""

import cramjam
import pytest

from kbroker._core.wire.xxh32 import xxh32_of


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0x02CC5D05),
        (b"a", 0, 0x550D7456),
        (b"abc", 0, 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0, 0xE2293B2F),
        (b"", 2654435761, 0x36B78AE7),
    ],
)
def test_known_values(data: bytes, seed: int, expected: int) -> None:
    assert xxh32_of(data, seed) == expected
    assert xxh32_of(memoryview(b"x" + data)[1:], seed) == expected


@pytest.mark.parametrize("size", [*range(70), 1000, 65537])
def test_the_check_sum_of_a_frames_content_is_the_librarys(size: int) -> None:
    content = bytes(at * 7 % 251 for at in range(size))
    compressor = cramjam.lz4.Compressor(level=1, content_checksum=True, block_linked=False)
    compressor.compress(content)
    frame = bytes(compressor.finish())
    assert int.from_bytes(frame[-4:], "little") == xxh32_of(content)
    assert frame[4] & 0x0C == 0x04
    assert frame[6] == xxh32_of(frame[4:6]) >> 8 & 0xFF
