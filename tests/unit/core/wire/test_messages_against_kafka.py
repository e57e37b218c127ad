"""Messages of magic 0 and 1, and their conversions, against Apache Kafka 3.9's own classes."""

import pytest

from kbroker._core.wire import message_set, record_batch
from kbroker._core.wire.conversion import batch_of_messages, message_sets_of_batch
from kbroker._core.wire.message_set import MessageSetBuilder
from kbroker._core.wire.records import RecordsBuilder
from kbroker.errors import BadInput
from kbroker.protocol.compression import Codec, deflate, inflate
from kbroker.protocol.records import ControlType, Record, read_records
from tests.kit.kafka import batches as kafka_batches
from tests.kit.kafka.batches import KafkaBatches
from tests.kit.models import message_set as model
from tests.kit.models.message_set import Message
from tests.kit.wire.batches import encode_control_batch

MAGICS = [0, 1]
CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
NOW = 1_700_000_000_000
ROWS = [(5, NOW + 9, b"key", b"value"), (6, NOW, None, b"v" * 300), (9, NOW + 3, b"", None), (10, -1, None, b"")]


def encode(magic: int, codec: Codec, log_append_time: bool = False) -> bytes:
    builder = MessageSetBuilder(magic, compressed=codec != Codec.NONE, log_append_time=log_append_time)
    for row in ROWS:
        builder.append(*row)
    messages = builder.messages()
    return builder.wrap(codec, deflate(codec, messages, magic=magic)) if codec else messages


def convert(data: bytes) -> bytes:
    """What a broker appends at offset 1000 in epoch 5 for a produced set."""
    (outer, *_) = message_set.messages(data)
    if outer.codec:
        assert len(data) == outer.size
        inner = inflate(outer.codec, data[outer.value_position :][: outer.value_size], 1 << 20, magic=outer.magic)
        builder = batch_of_messages(inner, wrapper=outer)
        payload = deflate(outer.codec, builder.records())
        return builder.build(payload, attributes=outer.codec, base_offset=1000, leader_epoch=5)
    return batch_of_messages(data).build(base_offset=1000, leader_epoch=5)


def same_batch(ours: bytes, theirs: bytes) -> None:
    """All but what the compressors may do differently: size, check sum and the compressed bytes."""
    assert list(read_records(ours)) == list(read_records(theirs))
    assert record_batch.verify(ours).codec == record_batch.verify(theirs).codec
    assert ours[:8] + ours[12:17] + ours[21:61] == theirs[:8] + theirs[12:17] + theirs[21:61]


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("log_append_time", [False, True])
def test_kafka_reads_what_is_written(kafka: KafkaBatches, magic: int, codec: Codec, log_append_time: bool) -> None:
    times = [time if magic else -1 for _, time, _, _ in ROWS]
    if log_append_time and magic and codec:
        times = [NOW + 9] * len(ROWS)
    expected = [Record(offset, time, key, value) for time, (offset, _, key, value) in zip(times, ROWS, strict=True)]
    assert kafka.read(encode(magic, codec, log_append_time)) == expected


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", CODECS)
def test_kafka_converts_a_produced_set_to_the_same_batch(kafka: KafkaBatches, magic: int, codec: Codec) -> None:
    data = encode(magic, codec)
    same_batch(convert(data), kafka.produce_old(data))


GOOD = Message(0, NOW, None, b"v")
REFUSED = {
    "a wrong check sum": model.encode(GOOD)[:-1] + b"w",
    "two magics": model.encode(GOOD) + model.encode(Message(1, -1, None, b"v", 0)),
    "zstd": model.encode(Message(0, NOW, None, b"v", 1, 4)),
    "no messages inside": model.encode(Message(0, NOW, None, deflate(Codec.GZIP, b""), 1, 1)),
    "another magic inside": model.encode(
        Message(0, NOW, None, deflate(Codec.GZIP, model.encode(Message(0, -1, None, b"v", 0))), 1, 1)
    ),
    "an offset below the last inner one": model.encode(
        Message(1, NOW, None, deflate(Codec.GZIP, model.encode(Message(7, NOW, None, b"v"))), 1, 1)
    ),
    "a wrong check sum inside": model.encode(
        Message(0, NOW, None, deflate(Codec.GZIP, model.encode(GOOD)[:-1] + b"w"), 1, 1)
    ),
    "a compressed one inside": model.encode(
        Message(0, NOW, None, deflate(Codec.GZIP, model.encode(Message(0, NOW, None, b"v", 1, 1))), 1, 1)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_kafka_refuses_the_same_with_the_same_code(kafka: KafkaBatches, name: str) -> None:
    with pytest.raises(kafka_batches.Refused) as theirs:
        kafka.produce_old(REFUSED[name])
    with pytest.raises(BadInput) as ours:
        convert(REFUSED[name])
    assert ours.value.code == theirs.value.code


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("log_append_time", [False, True])
@pytest.mark.parametrize("first_offset", [0, 6, 7])
def test_kafka_converts_a_batch_to_the_same_messages(
    kafka: KafkaBatches, magic: int, codec: Codec, log_append_time: bool, first_offset: int
) -> None:
    builder = RecordsBuilder()
    for offset, time, key, value in ROWS:
        builder.append(time, key, value, [("name", b"x")], offset_delta=offset - 5)
    payload = deflate(codec, builder.records()) if codec else None
    batch = builder.build(payload, attributes=codec | (8 if log_append_time else 0), base_offset=5)
    (made,) = message_sets_of_batch(record_batch.verify(batch), builder.records(), magic, start_offset=first_offset)
    theirs = kafka.down(batch, magic, first_offset)
    if not codec:
        assert made.messages() == theirs
        return
    (wrapper,) = message_set.messages(theirs)
    value = theirs[wrapper.value_position :][: wrapper.value_size]
    assert made.messages() == inflate(codec, value, 1 << 20, magic=magic)
    ours = message_set.check(made.wrap(codec, deflate(codec, made.messages(), magic=magic)))
    fields = ("offset", "magic", "attributes", "timestamp", "key_size")
    assert [getattr(ours, name) for name in fields] == [getattr(wrapper, name) for name in fields]


def test_kafka_drops_control_batches_too(kafka: KafkaBatches) -> None:
    control = encode_control_batch(ControlType.COMMIT, 7, producer_id=1, producer_epoch=0, coordinator_epoch=0)
    assert kafka.down(control, 1) == b""
    assert not list(message_sets_of_batch(record_batch.verify(control), control[61:], 1))
