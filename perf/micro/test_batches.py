"""Measures what happens to every batch: check, walk, stamp, scan, decode; ns per record and GB/s (`extra_info`)."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kbroker._core.log.scan.segment_scan import scan_segment
from kbroker._core.wire import message_set, record_batch
from kbroker._core.wire.columns import Columns, RecordColumns
from kbroker._core.wire.conversion import batch_of_messages, message_sets_of_batch
from kbroker._core.wire.message_set import MessageSetBuilder, SetInfo
from kbroker._core.wire.record_batch import BatchInfo
from kbroker.protocol.compression import Codec, deflate, inflate_shared
from kbroker.protocol.records import BatchBuilder, encode_batch, read_batches

BATCH_SIZE = 64 << 10
HEADERS = (("trace", b"0123456789abcdef"), ("kind", b"click"))
SHAPES: dict[str, tuple[bytes | None, int, bool]] = {
    "100 B": (None, 100, False),
    "100 B keyed": (b"user-0123", 91, False),
    "1 KiB": (None, 1024, False),
    "100 B, 2 headers": (b"user-0123", 91, True),
}


def batch_of(shape: str, size: int = BATCH_SIZE, codec: Codec = Codec.NONE) -> tuple[bytes, int]:
    key, value_size, with_headers = SHAPES[shape]
    count = max(1, size // value_size)
    builder = BatchBuilder(codec=codec)
    for row in range(count):
        value = (b"%08d" % row + bytes(value_size))[:value_size]
        builder.append(1_700_000_000_000 + row // 3, key, value, HEADERS if with_headers else ())
    return builder.build(), count


def measure(benchmark: BenchmarkFixture, function: Callable[[], object], size: int, count: int) -> None:
    benchmark(function)
    seconds = benchmark.stats.stats.median
    benchmark.extra_info.update({"GB/s": round(size / seconds / 1e9, 2), "ns/record": round(seconds / count * 1e9, 2)})


@pytest.mark.parametrize("shape", SHAPES)
def test_walk(benchmark: BenchmarkFixture, shape: str) -> None:
    data, count = batch_of(shape)
    info = record_batch.check(data)
    payload = memoryview(data)[61:]
    measure(benchmark, lambda: record_batch.walk(payload, info), len(data), count)


@pytest.mark.parametrize("shape", SHAPES)
def test_check_and_walk(benchmark: BenchmarkFixture, shape: str) -> None:
    data, count = batch_of(shape)
    payload = memoryview(data)[61:]
    measure(benchmark, lambda: record_batch.walk(payload, record_batch.check(data)), len(data), count)


def test_check_and_walk_one_small_record(benchmark: BenchmarkFixture) -> None:
    data, count = batch_of("100 B", 1)
    payload = memoryview(data)[61:]
    measure(benchmark, lambda: record_batch.walk(payload, record_batch.check(data)), len(data), count)


def test_stamp(benchmark: BenchmarkFixture) -> None:
    data, count = batch_of("100 B")
    writable = bytearray(data)
    measure(benchmark, lambda: record_batch.stamp(writable, 1000, 5), len(data), count)


def test_scan(benchmark: BenchmarkFixture) -> None:
    log, offset = bytearray(), 0
    while len(log) < 16 << 20:
        data, count = batch_of("100 B")
        piece = bytearray(data)
        record_batch.stamp(piece, offset, 1)
        offset += count
        log += piece

    fd = os.memfd_create("segment")
    os.write(fd, log)
    measure(benchmark, lambda: scan_segment(fd, len(log), 0), len(log), offset)
    os.close(fd)


@pytest.mark.parametrize("shape", SHAPES)
def test_columns(benchmark: BenchmarkFixture, shape: str) -> None:
    data, count = batch_of(shape)
    batches = list(read_batches(data)) * 16

    def decode() -> Columns:
        collector = RecordColumns()
        for batch in batches:
            collector.add(batch.info, batch.payload)
        return collector.finish()

    measure(benchmark, decode, len(data) * 16, count * 16)


@pytest.mark.parametrize("shape", SHAPES)
def test_decode_to_objects(benchmark: BenchmarkFixture, shape: str) -> None:
    data, count = batch_of(shape)
    (batch,) = read_batches(data)
    measure(benchmark, batch.records, len(data), count)


@pytest.mark.parametrize("shape", SHAPES)
def test_encode_from_objects(benchmark: BenchmarkFixture, shape: str) -> None:
    data, count = batch_of(shape)
    (batch,) = read_batches(data)
    records = batch.records()
    measure(benchmark, lambda: encode_batch(records), len(data), count)


@pytest.mark.parametrize("size", [300, BATCH_SIZE, 1 << 20])
@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_inflate(benchmark: BenchmarkFixture, codec: Codec, size: int) -> None:
    plain = b"".join(b'{"user": %d, "page": "/p/%d"}' % (row, row % 97) for row in range(size // 20))[:size]
    small = deflate(codec, plain)
    measure(benchmark, lambda: inflate_shared(codec, small, 64 << 20), size, 1)


def old_set(count: int, compressed: bool = False) -> MessageSetBuilder:
    builder = MessageSetBuilder(1, compressed=compressed)
    for row in range(count):
        builder.append(row, 1_700_000_000_000 + row // 3, None, (b"%08d" % row + bytes(100))[:100])
    return builder


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY, Codec.LZ4])
def test_walk_old_messages(benchmark: BenchmarkFixture, codec: Codec) -> None:
    builder = old_set(5000, compressed=codec != Codec.NONE)
    inner = builder.messages()
    data = builder.wrap(codec, deflate(codec, inner)) if codec else inner

    def read() -> SetInfo:
        if not codec:
            return message_set.walk(data)
        wrapper = message_set.check(data)
        value = memoryview(data)[wrapper.value_position : wrapper.value_position + wrapper.value_size]
        return message_set.walk(inflate_shared(wrapper.codec, value, 1 << 20, magic=1), wrapper=wrapper)

    measure(benchmark, read, len(inner), 5000)


def test_old_messages_to_a_batch(benchmark: BenchmarkFixture) -> None:
    data = old_set(500).messages()

    measure(benchmark, lambda: batch_of_messages(data), len(data), 500)


def test_a_batch_to_old_messages(benchmark: BenchmarkFixture) -> None:
    batch = batch_of_messages(old_set(500).messages()).build()
    info: BatchInfo = record_batch.check(batch)
    payload = memoryview(batch)[61:]
    measure(benchmark, lambda: list(message_sets_of_batch(info, payload, 1)), len(payload), 500)
