"""Batches against Apache Kafka 3.9's own classes: what it refuses and why, what it appends, reads and writes."""

import struct
from dataclasses import replace

import pytest

from kbroker._core.wire import record_batch
from kbroker.errors import BadInput, ErrorCode
from kbroker.protocol.compression import Codec, deflate, inflate_shared
from kbroker.protocol.records import Record, encode_batch, read_records
from tests.kit.kafka import batches as kafka_batches
from tests.kit.kafka.batches import KafkaBatches
from tests.kit.models import record_batch as model
from tests.kit.models.record_batch import Batch
from tests.kit.models.record_batch import Record as ModelRecord

NOW = 1_700_000_000_000


def accept(batch: bytes, *, compacted: bool, log_append_time: bool, bounds_ms: int) -> tuple[bytes, int]:
    """What our produce path does with a batch, step by step: the bytes appended and their largest timestamp."""
    info = record_batch.check(batch)
    record_batch.check_trailing(batch, info)
    payload = inflate_shared(info.codec, memoryview(batch)[61 : info.size], 1 << 20, strict=True)
    newest = record_batch.walk(payload, info, compacted)
    record_batch.check_timestamps(info, log_append_time, NOW, bounds_ms, bounds_ms)
    stored = bytearray(batch[: info.size])
    record_batch.stamp(stored, 1000, 5)
    newest = NOW if log_append_time else newest
    record_batch.stamp_timestamp(stored, log_append_time, newest)
    return bytes(stored), newest


ONE = (ModelRecord(0, 0, b"key", b"value", ((b"name", b"content"), (b"null", None))),)
THREE = (ModelRecord(0, 5, b"", None), ModelRecord(1, -7, None, b"v" * 300), ModelRecord(2, 300, None, None))
GOOD = Batch(THREE, base_timestamp=NOW, leader_epoch=3)


def compressed(codec: Codec, batch: Batch = GOOD) -> Batch:
    return replace(
        batch, attributes=batch.attributes | codec, payload=deflate(codec, model.encode_records(batch.records))
    )


def raw(record: bytes) -> bytes:
    """A batch of one record with this body."""
    return model.encode_batch(Batch(ONE, payload=model.zigzag(len(record)) + record))


BODY = b"\0" + model.zigzag(0) * 2  # attributes and both deltas
WHOLE = model.encode_batch(GOOD)
CASES: dict[str, bytes] = {
    "as it should be": WHOLE,
    **{f"{codec.name} compressed": model.encode_batch(compressed(codec)) for codec in Codec if codec},
    "with a producer": model.encode_batch(replace(GOOD, producer_id=7, producer_epoch=1, base_sequence=0)),
    "transactional": model.encode_batch(replace(GOOD, producer_id=7, producer_epoch=1, base_sequence=0, attributes=16)),
    "a negative epoch": model.encode_batch(replace(GOOD, producer_id=7, producer_epoch=-1, base_sequence=0)),
    "a maximum that is too low": model.encode_batch(replace(GOOD, max_timestamp=1)),
    "no timestamps": model.encode_batch(Batch(ONE, base_timestamp=-1)),
    "timestamps below -1": model.encode_batch(Batch(ONE, base_timestamp=-100)),
    "log append time from a client": model.encode_batch(replace(GOOD, attributes=8)),
    "log append time without time": model.encode_batch(Batch(ONE, attributes=8, max_timestamp=-1)),
    "log append time of long ago": model.encode_batch(replace(GOOD, attributes=8, max_timestamp=NOW - 10_000)),
    "too old": model.encode_batch(replace(GOOD, base_timestamp=NOW - 10_000)),
    "too far ahead": model.encode_batch(replace(GOOD, base_timestamp=NOW + 10_000)),
    "timestamps that wrap": model.encode_batch(
        Batch((ModelRecord(0, 2**62, None, b""),), base_timestamp=2**63 - 5, max_timestamp=0)
    ),
    "unused attribute bits": model.encode_batch(replace(GOOD, attributes=0x80)),
    "record attributes": model.encode_batch(Batch((replace(ONE[0], attributes=-1),))),
    "nothing": b"",
    "half a header": WHOLE[:30],
    "eleven bytes": WHOLE[:11],
    "thirteen bytes": WHOLE[:13],
    "cut by one byte": WHOLE[:-1],
    "a length below any format's": WHOLE[:8] + struct.pack(">i", 13) + WHOLE[12:],
    "a length below its header's": WHOLE[:8] + struct.pack(">i", 48) + WHOLE[12:60],
    "a negative length": WHOLE[:8] + struct.pack(">i", -1) + WHOLE[12:],
    "a length of two gigabytes": WHOLE[:8] + struct.pack(">i", 2**31 - 13) + WHOLE[12:],
    "magic 0": WHOLE[:16] + b"\0" + WHOLE[17:],
    "magic 1": WHOLE[:16] + b"\1" + WHOLE[17:],
    "magic 3": WHOLE[:16] + b"\3" + WHOLE[17:],
    "magic -1": WHOLE[:16] + b"\xff" + WHOLE[17:],
    "a wrong crc": WHOLE[:-1] + b"\1",
    "a base offset": model.encode_batch(replace(GOOD, base_offset=1)),
    "a base offset and a wrong crc": model.encode_batch(replace(GOOD, base_offset=1))[:-1] + b"\1",
    "another batch behind": WHOLE * 2,
    "half a batch behind": WHOLE + WHOLE[:40],
    "rubbish behind": WHOLE + b"\xff" * 20,
    "zeros behind": WHOLE + bytes(20),
    "an old message behind": WHOLE + struct.pack(">qi", 0, 20) + b"\0\0\0\0\1" + bytes(30),
    "control": model.encode_batch(replace(GOOD, attributes=0x20)),
    "a producer without sequence": model.encode_batch(replace(GOOD, producer_id=7, base_sequence=-1)),
    "no records": model.encode_batch(Batch(())),
    "a negative count": model.encode_batch(replace(GOOD, record_count=-1)),
    "one record fewer than counted": model.encode_batch(replace(GOOD, record_count=4)),
    "one record more than counted": model.encode_batch(replace(GOOD, record_count=2)),
    "last offset delta too high": model.encode_batch(replace(GOOD, last_offset_delta=3)),
    "last offset delta negative": model.encode_batch(replace(GOOD, last_offset_delta=-1)),
    "a record that is longer than the batch": raw(BODY)[:-4] + b"\x7f" + raw(BODY)[-3:],
    "an empty record": raw(b""),
    "a record without headers' count": raw(BODY + model.zigzag(-1) * 2),
    "a record with bytes left": raw(BODY + model.zigzag(-1) * 2 + model.zigzag(0) + b"\0"),
    "a key beyond the record": raw(BODY + model.zigzag(50) + b"\1\0"),
    "negative sizes": raw(BODY + model.zigzag(-5) * 2 + model.zigzag(0)),
    "minus one headers": raw(BODY + model.zigzag(-1) * 2 + model.zigzag(-1)),
    "more headers than bytes": raw(BODY + model.zigzag(-1) * 2 + model.zigzag(9) + bytes(4)),
    "a header without name": raw(BODY + model.zigzag(-1) * 2 + model.zigzag(1) + model.zigzag(-1) * 2),
    "a header with a name that is no text": raw(BODY + model.zigzag(-1) * 2 + model.zigzag(1) + b"\4\xff\xfe\1"),
    "a number that does not end": raw(b"\0" + b"\xff" * 12),
}
# Where we differ on purpose; the code is Kafka's, None where it accepts.
DEVIATIONS: dict[str, tuple[bytes, int | None, int]] = {
    "offset deltas out of order": (
        model.encode_batch(Batch((THREE[0], replace(THREE[1], offset_delta=5)), base_timestamp=NOW)),
        None,  # appended as it is: consumers see the wrong offsets
        ErrorCode.INVALID_RECORD,
    ),
    "unknown codec": (
        model.encode_batch(replace(GOOD, attributes=5)),
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    "gzip that is none": (
        model.encode_batch(replace(GOOD, attributes=1, payload=b"\x1f\x8b rubbish")),
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INVALID_RECORD,
    ),
    "zstd that is cut": (
        model.encode_batch(replace(GOOD, attributes=4, payload=compressed(Codec.ZSTD).payload[:-3])),  # type: ignore[index]
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INVALID_RECORD,
    ),
}


@pytest.mark.parametrize("topic", ["plain", "compacted", "log append time", "bounded"])
@pytest.mark.parametrize("name", CASES)
def test_kafka_says_the_same_to_a_produced_batch(kafka: KafkaBatches, name: str, topic: str) -> None:
    batch = CASES[name]
    compacted, log_append_time = topic == "compacted", topic == "log append time"
    bounds_ms = 1000 if topic == "bounded" else 2**63 - 1
    expected: object
    found: object
    try:
        expected = kafka.produce(
            batch,
            compacted=compacted,
            log_append_time=log_append_time,
            now_ms=NOW,
            before_max_ms=bounds_ms,
            after_max_ms=bounds_ms,
        )
    except kafka_batches.Refused as refused:
        expected = ErrorCode(refused.code)
    try:
        found = accept(batch, compacted=compacted, log_append_time=log_append_time, bounds_ms=bounds_ms)
    except BadInput as error:
        found = error.code
    assert found == expected


@pytest.mark.parametrize("name", DEVIATIONS)
def test_where_we_differ_kafka_still_does_what_is_said_here(kafka: KafkaBatches, name: str) -> None:
    batch, theirs, ours = DEVIATIONS[name]
    if theirs is None:
        kafka.produce(batch, now_ms=NOW)
    else:
        with pytest.raises(kafka_batches.Refused) as refused:
            kafka.produce(batch, now_ms=NOW)
        assert refused.value.code == theirs
    with pytest.raises(BadInput) as error:
        accept(batch, compacted=False, log_append_time=False, bounds_ms=2**63 - 1)
    assert error.value.code == ours


SAMPLE = [
    Record(0, NOW, b"key", b"value", [("name", b"content"), ("none", None), ("", b"")]),
    Record(1, NOW - 5, None, b"v" * 100_000),
    Record(2, NOW + 900, b"", None),
]


@pytest.mark.parametrize("codec", list(Codec))
def test_java_reads_what_we_write(kafka: KafkaBatches, codec: Codec) -> None:
    assert kafka.read(encode_batch(SAMPLE, codec=codec)) == SAMPLE


@pytest.mark.parametrize("level", [None, 1, 9])
@pytest.mark.parametrize("codec", list(Codec))
def test_we_read_what_java_writes(kafka: KafkaBatches, codec: Codec, level: int | None) -> None:
    if level is None or codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        data = kafka.write(codec.name.lower(), SAMPLE, level)
        assert list(read_records(data)) == SAMPLE
        if codec is Codec.NONE:
            assert encode_batch(SAMPLE) == data
