"""Checksums: check values of the catalogues, and every implementation against the bitwise model."""

import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.wire import crc
from tests.kit.models.record_batch import CASTAGNOLI, ZLIB
from tests.kit.models.record_batch import crc as model

CASTAGNOLI_NAMES, ZLIB_NAMES = crc.implementations()


@pytest.fixture(autouse=True)
def fastest_afterwards() -> Iterator[None]:
    yield
    crc.choose()


@pytest.mark.parametrize("name", CASTAGNOLI_NAMES)
def test_crc32c_gives_the_catalogue_values(name: str) -> None:
    crc.choose(crc32c_name=name)
    assert crc.crc32c_of(b"123456789") == 0xE3069283
    assert crc.crc32c_of(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert crc.crc32c_of(b"\xff" * 32) == 0x62A8AB43
    assert crc.crc32c_of(bytes(range(32))) == 0x46DD794E
    assert crc.crc32c_of(b"") == 0


@pytest.mark.parametrize("name", ZLIB_NAMES)
def test_crc32_gives_the_catalogue_values(name: str) -> None:
    crc.choose(crc32_name=name)
    assert crc.crc32_of(b"123456789") == 0xCBF43926
    assert crc.crc32_of(b"") == 0


@given(st.binary(max_size=700), st.integers(0, 2**32 - 1))
def test_every_implementation_agrees_with_the_bitwise_model(data: bytes, start: int) -> None:
    for name in CASTAGNOLI_NAMES:
        crc.choose(crc32c_name=name)
        assert crc.crc32c_of(data, start) == model(CASTAGNOLI, data, start), name
    for name in ZLIB_NAMES:
        crc.choose(crc32_name=name)
        assert crc.crc32_of(data, start) == model(ZLIB, data, start), name


# Around every size at which an implementation changes its method: words, lanes, the wide folds and their remainders.
SIZES = sorted(
    {edge + near for edge in (0, 16, 64, 128, 192, 256, 8192, 8256, 8448) for near in range(-17, 18)}
    - set(range(-17, 0))
)


@pytest.mark.parametrize("misalignment", [0, 1, 13])
def test_every_implementation_agrees_at_every_edge_of_size(misalignment: int) -> None:
    data = memoryview(bytes(i * 131 % 251 ^ i >> 8 & 0xFF for i in range(9000)))[misalignment:]
    portable = {}
    crc.choose("portable", "portable")
    for size in SIZES:
        portable[size] = crc.crc32c_of(data[:size], 7), crc.crc32_of(data[:size], 7)
        assert portable[size][1] == zlib.crc32(data[:size], 7)
    for name in CASTAGNOLI_NAMES:
        crc.choose(crc32c_name=name)
        assert [crc.crc32c_of(data[:size], 7) for size in SIZES] == [portable[size][0] for size in SIZES], name
    for name in ZLIB_NAMES:
        crc.choose(crc32_name=name)
        assert [crc.crc32_of(data[:size], 7) for size in SIZES] == [portable[size][1] for size in SIZES], name


def test_a_checksum_goes_on_where_another_ended() -> None:
    data = bytes(range(256)) * 80
    assert crc.crc32c_of(data[9000:], crc.crc32c_of(data[:9000])) == crc.crc32c_of(data)
    assert crc.crc32_of(data[9000:], crc.crc32_of(data[:9000])) == crc.crc32_of(data)


def test_an_implementation_that_is_not_there_is_refused() -> None:
    missing = set(crc.IMPLEMENTATIONS) - set(ZLIB_NAMES)
    for name in missing:
        with pytest.raises(ValueError, match="has no"):
            crc.choose(crc32_name=name)


def test_any_contiguous_buffer_is_taken_and_others_are_refused() -> None:
    assert crc.crc32c_of(bytearray(b"123456789")) == crc.crc32c_of(memoryview(b"0123456789")[1:])
    with pytest.raises(BufferError):
        crc.crc32c_of(memoryview(b"123456789")[::2])


def test_the_checksum_of_rows_is_that_of_each_one_in_any_order() -> None:
    rows = {"": b"", "/a": b"\0" * 40, "/ä/\u65e5": bytes(range(256)), "/b": b""}
    sums = [zlib.crc32(name.encode() + value) for name, value in rows.items()]
    assert crc.crc32_of_rows(rows) == sums[0] ^ sums[1] ^ sums[2] ^ sums[3]
    assert crc.crc32_of_rows(dict(reversed(rows.items()))) == crc.crc32_of_rows(rows)
    assert crc.crc32_of_rows({}) == 0
    for wrong in ({"/a": "text"}, {b"/a": b""}, {"/\udc80": b""}):
        with pytest.raises((TypeError, UnicodeEncodeError)):
            crc.crc32_of_rows(wrong)  # type: ignore[arg-type]
