"""Measures the two passes of compaction, in GB/s of log read and ns per record (`extra_info`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kbroker._core.log.compaction.dedupe_map import DedupeMap
from kbroker._core.log.compaction.segment_copy import SegmentCopy, copy_segment, feed_map
from kbroker._core.wire import record_batch
from kbroker.protocol.compression import Codec, deflate, inflate_shared
from kbroker.protocol.records import BatchBuilder

SEGMENT_SIZE = 8 << 20
BATCH_SIZE = 16 << 10
LIMIT = 128 << 20


def inflated(codec: int, data: memoryview) -> memoryview:
    return inflate_shared(codec, data, LIMIT)


def segment_of(value_size: int, keys: int, codec: Codec) -> tuple[bytes, int]:
    """Return a segment in which `keys` different keys come again and again, always in the same order.

    The newest record of each key is in the last round.
    """
    log, offset, size = [], 0, 0
    while size < SEGMENT_SIZE:
        base_offset, builder = offset, BatchBuilder(codec)
        while builder.size < BATCH_SIZE:
            builder.append(
                1_700_000_000_000 + offset, b"user-%08d" % (offset % keys), b"%08d" % offset + bytes(value_size)
            )
            offset += 1
        batch = bytearray(builder.build())
        record_batch.stamp(batch, base_offset, 0)
        log.append(batch)
        size += builder.size
    return b"".join(log), offset


def measure(benchmark: BenchmarkFixture, function: Callable[[], object], size: int, count: int) -> None:
    benchmark(function)
    seconds = benchmark.stats.stats.median
    benchmark.extra_info.update({"GB/s": round(size / seconds / 1e9, 2), "ns/record": round(seconds / count * 1e9, 2)})


@pytest.mark.parametrize("value_size", [92, 1016])
def test_feed(benchmark: BenchmarkFixture, value_size: int) -> None:
    data, count = segment_of(value_size, 5000, Codec.NONE)
    found = DedupeMap(1 << 20)
    measure(benchmark, lambda: feed_map(data, found, inflate=inflated), len(data), count)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("stays", ["all", "every second", "newest"])
def test_copy(benchmark: BenchmarkFixture, stays: str, codec: Codec) -> None:
    data, count = segment_of(92, 5000, codec)
    found = DedupeMap(16 << 20)
    if stays == "newest":
        feed_map(data, found, inflate=inflated)
    elif stays == "every second":
        # Half of the keys have a newer record at a later offset.
        for key in range(5000):
            found.enter(b"user-%08d" % key, 2**40 if key % 2 else 0)
    found.latest_offset = 2**40

    def copy() -> SegmentCopy:
        return copy_segment(data, found, inflate=inflated, deflate=deflate, now_ms=0, delete_retention_ms=0)

    measure(benchmark, copy, count * 110, count)
