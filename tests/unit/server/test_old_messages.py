"""Produce 0 to 2 and Fetch 0 to 3: messages of magic 0 and 1 in, record batches in the log, messages out."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker._core.wire.message_set import MessageSetBuilder, check, messages, wrap
from kbroker.errors import ErrorCode
from kbroker.protocol.api import ApiKey
from kbroker.protocol.compression import CODECS, Codec, deflate, inflate
from kbroker.protocol.records import encode_batch
from kbroker.storage.options import LogOptions
from tests.kit.clients.wire import WireClient
from tests.kit.logs.home import batch_of
from tests.kit.parts.processors import ProcessorRig, produce_request, wait_until
from tests.kit.wire.message_rows import Row, read_rows

OLD_CODECS = [codec for name, codec in CODECS.items() if name != "zstd"]
TIME = 1_700_000_000_000
VALUES = [b"one", None, b"", b"four" * 100]
KEYS = [b"a", b"b", None, b""]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ProcessorRig]:
    with ProcessorRig(tmp_path / "logs", max_inflated_size=1 << 20) as rig:
        yield rig


def message_set(magic: int, codec: int = Codec.NONE) -> bytes:
    builder = MessageSetBuilder(magic, compressed=codec != Codec.NONE)
    for number, (key, value) in enumerate(zip(KEYS, VALUES, strict=True)):
        builder.append(number, TIME + number if magic else -1, key, value)
    if codec == Codec.NONE:
        return builder.messages()
    return builder.wrap(codec, deflate(codec, builder.messages(), magic=magic))


def produced(client: WireClient, version: int, records: bytes, topic: str = "orders") -> Any:
    request = produce_request(topic, records)
    return client.call(ApiKey.PRODUCE, version, request).responses[0].partition_responses[0]


def fetched(rig: ProcessorRig, client: WireClient, version: int, offset: int, **fields: Any) -> Any:
    request = rig.fetch_request("orders", offset, **fields)
    if version < 3:
        request.max_bytes = 0x7FFFFFFF
    return client.call(ApiKey.FETCH, version, request).responses[0].partitions[0]


def read(data: bytes) -> list[Row]:
    """Return offset, timestamp, key and value of every message, also of those inside compressed ones."""
    found: list[Row] = []
    for outer in messages(data):
        inner, wrapper = data[outer.position : outer.position + outer.size], None
        if outer.codec:
            at = outer.value_position
            inner, wrapper = inflate(outer.codec, data[at : at + outer.value_size], 1 << 20, magic=outer.magic), outer
        found += read_rows(inner, wrapper)
    return found


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_messages_become_one_batch_with_their_codec(rig: ProcessorRig, version: int, magic: int, codec: int) -> None:
    (log,) = rig.create("orders")
    client = rig.connect()
    for turn in range(2):
        answer = produced(client, version, message_set(magic, codec))
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 4 * turn, -1)
    records = rig.records("orders")
    assert [(r.offset, r.key, r.value) for r in records] == [
        (number, KEYS[number % 4], VALUES[number % 4]) for number in range(8)
    ]
    assert [r.timestamp for r in records] == [TIME + n % 4 if magic else -1 for n in range(8)]
    stored = log.read(0, 1)
    assert stored[16] == 2 and stored[22] & 7 == codec


def test_a_topic_with_a_codec_of_its_own_gets_it(rig: ProcessorRig) -> None:
    (log,) = rig.create("orders", compression=int(Codec.ZSTD))
    assert produced(rig.connect(), 2, message_set(1, Codec.GZIP)).error_code == 0
    assert log.read(0, 1)[22] & 7 == Codec.ZSTD and len(rig.records("orders")) == 4


@pytest.mark.parametrize(("codec", "least", "most"), [(1, 1, 9), (4, -1000, 19)])
@pytest.mark.parametrize("sent", [Codec.NONE, Codec.LZ4])
def test_a_topic_may_be_compressed_harder(rig: ProcessorRig, sent: int, codec: int, least: int, most: int) -> None:
    flat = MessageSetBuilder(1, compressed=sent != Codec.NONE)
    for number in range(200):
        flat.append(number, TIME, None, b"%d, %d; " % (number, number * number) * 20)
    made = flat.wrap(sent, deflate(sent, flat.messages(), magic=1)) if sent else flat.messages()
    sizes = []
    for topic, level in (("fast", least), ("small", most)):
        (log,) = rig.create(topic, compression=codec, compression_level=level)
        assert produced(rig.connect(), 2, made, topic).error_code == 0
        sizes.append(len(log.read(0, 1 << 20)))
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_batch_of_today_is_taken_as_it_is(rig: ProcessorRig, version: int) -> None:
    rig.create("orders")
    client = rig.connect()
    assert produced(client, version, batch_of([b"x"])).error_code == 0
    assert [record.value for record in rig.records("orders")] == [b"x"]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (flipped(message_set(0), 28), ErrorCode.CORRUPT_MESSAGE),
        (flipped(message_set(1, Codec.GZIP), 60), ErrorCode.CORRUPT_MESSAGE),
        (message_set(1, Codec.GZIP) * 2, ErrorCode.INVALID_RECORD),
        (wrap(deflate(Codec.GZIP, message_set(1, Codec.GZIP)), Codec.GZIP, 1, 0, TIME), ErrorCode.INVALID_RECORD),
        (wrap(deflate(Codec.GZIP, message_set(0)), Codec.GZIP, 1, 0, TIME), ErrorCode.INVALID_RECORD),
        (wrap(bytes(20), Codec.GZIP, 1, 0, TIME), ErrorCode.INVALID_RECORD),
        (wrap(deflate(Codec.GZIP, bytes(4 << 20)), Codec.GZIP, 1, 0, TIME), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["crc", "outer crc", "two", "nested", "mixed magic", "no gzip", "a bomb"],
)
def test_what_is_wrong_is_refused_and_the_next_is_taken(rig: ProcessorRig, records: bytes, code: ErrorCode) -> None:
    rig.create("orders")
    client = rig.connect()
    assert produced(client, 2, records).error_code == code
    assert rig.records("orders") == []
    assert produced(client, 2, message_set(1)).base_offset == 0


def test_a_message_over_the_limit_is_refused(rig: ProcessorRig) -> None:
    rig.create("orders", max_message_bytes=100)
    assert produced(rig.connect(), 2, message_set(1)).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_old_consumers_get_messages(rig: ProcessorRig, version: int, codec: int) -> None:
    (log,) = rig.create("orders")
    records = [(TIME + number, key, value) for number, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))]
    for _ in range(3):
        log.append(bytearray(encode_batch(records, codec=codec)))
    answer = fetched(rig, rig.connect(), version, 5)
    assert (answer.error_code, answer.high_watermark) == (0, 12)
    magic = 0 if version < 2 else 1
    got = read(answer.records)
    assert check(answer.records).magic == magic
    first = 4 if codec else 5
    assert got == [
        (number, TIME + number % 4 if magic else -1, KEYS[number % 4], VALUES[number % 4])
        for number in range(first, 12)
    ]


def test_a_long_poll_of_an_old_consumer_is_answered_when_something_comes(rig: ProcessorRig) -> None:
    rig.create("orders")
    consumer, producer = rig.connect(), rig.connect()
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(fetched(rig, consumer, 3, 0, max_wait_ms=20_000)))
    waiting.start()
    assert produced(producer, 2, message_set(1)).error_code == 0
    waiting.join(10)
    assert [value for *_, value in read(answers[0].records)] == VALUES


def test_an_old_consumer_that_leaves_during_the_conversion_disturbs_nobody(rig: ProcessorRig) -> None:
    (log,) = rig.create("orders")
    for _ in range(50):
        log.append(bytearray(encode_batch([(TIME, None, b"x" * 1000)] * 100, codec=Codec.GZIP)))
    for _ in range(20):
        client = rig.connect()
        client.send(ApiKey.FETCH, 3, rig.fetch_request("orders", 0, max_bytes=4 << 20))
        client.close()
    wait_until(lambda: rig.connection_count == 0, "all have left")
    assert fetched(rig, rig.connect(), 3, 0).error_code == 0


def at_offset(data: bytes, offset: int) -> bytes:
    return struct.pack(">q", offset) + data[8:]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_log_of_every_magic_is_read_as_messages_of_magic_0(rig: ProcessorRig, codec: int) -> None:
    """A directory that several releases of Kafka have used, one after the other, has such logs."""
    parts = [
        at_offset(message_set(0, codec), 3) if codec else message_set(0),
        *(
            wrap(deflate(codec, message_set(1)), codec, 1, 4 * n + 3, TIME + 3)
            if codec
            else moved(message_set(1), 4 * n)
            for n in (1, 2)
        ),
        moved(encode_batch([(TIME, key, value) for key, value in zip(KEYS, VALUES, strict=True)], codec=codec), 12),
    ]
    (log,) = rig.create("orders")
    log.open()
    log.close()
    Path(log.path_of(0, ".log")).write_bytes(b"".join(parts))
    for index in Path(log.path).glob("*index"):
        index.unlink()
    client = rig.connect()
    for asked, first in ((0, 0), (6, 4 if codec else 6), (14, 12 if codec else 14)):
        answer = fetched(rig, client, 1, asked)
        assert read(answer.records) == [(n, -1, KEYS[n % 4], VALUES[n % 4]) for n in range(first, 16)]
    same = b"".join(parts[:3])
    for cut in (0, 1, len(parts[3]) - 1):  # a last batch that is cut short is left out, whatever it is
        assert fetched(rig, client, 3, 0, max_bytes=len(same) + cut).records == same


def moved(data: bytes, base: int) -> bytes:
    """Return a flat message set or a batch, with offsets from `base` on."""
    if data[16] == 2:
        return at_offset(data, base)
    return b"".join(
        at_offset(data[one.position : one.position + one.size], base + one.offset) for one in messages(data)
    )


def test_what_stands_before_zstd_can_be_read(rig: ProcessorRig) -> None:
    (log,) = rig.create("orders")
    for codec in (Codec.GZIP, Codec.ZSTD, Codec.GZIP):
        log.append(bytearray(encode_batch([(TIME, None, b"x")], codec=codec)))
    client = rig.connect()
    first, second, third = (fetched(rig, client, 3, offset) for offset in range(3))
    assert (first.error_code, [offset for offset, *_ in read(first.records)]) == (0, [0])
    assert (second.error_code, second.records) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"")
    assert (third.error_code, [offset for offset, *_ in read(third.records)]) == (0, [2])


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_topic_may_forbid_the_conversion(rig: ProcessorRig, version: int) -> None:
    (log,) = rig.create("orders")
    log.append(batch_of([b"x"]))
    log.update_options(LogOptions(downconversion=False))
    client = rig.connect()
    answer = fetched(rig, client, version, 0)
    assert (answer.error_code, answer.records) == (ErrorCode.UNSUPPORTED_VERSION, b"")
    assert fetched(rig, client, 4, 0).error_code == 0
    log.update_options(LogOptions())
    assert [offset for offset, *_ in read(fetched(rig, client, version, 0).records)] == [0]


def test_zstd_has_no_messages(rig: ProcessorRig) -> None:
    (log,) = rig.create("orders")
    log.append(bytearray(encode_batch([(TIME, None, b"x")], codec=Codec.ZSTD)))
    answer = fetched(rig, rig.connect(), 3, 0)
    assert (answer.error_code, answer.records) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, b"")
