"""Measures checksums, next to zlib's for scale. `extra_info` has the GB/s of each size and implementation."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kbroker._core.wire import crc

SIZES = [100, 1000, 16_384, 1 << 20]
CASTAGNOLI, ZLIB = crc.implementations()


@pytest.fixture(autouse=True)
def fastest_afterwards() -> Iterator[None]:
    yield
    crc.choose()


def rate(benchmark: BenchmarkFixture, size: int) -> None:
    benchmark.extra_info["GB/s"] = round(size / benchmark.stats.stats.median / 1e9, 2)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CASTAGNOLI)
def test_crc32c(benchmark: BenchmarkFixture, name: str, size: int) -> None:
    crc.choose(crc32c_name=name)
    benchmark(crc.crc32c_of, bytes(size))
    rate(benchmark, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [*ZLIB, "zlib"])
def test_crc32(benchmark: BenchmarkFixture, name: str, size: int) -> None:
    if name != "zlib":
        crc.choose(crc32_name=name)
    benchmark(zlib.crc32 if name == "zlib" else crc.crc32_of, bytes(size))
    rate(benchmark, size)
