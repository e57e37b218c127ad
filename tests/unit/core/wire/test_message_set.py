"""Messages of magic 0 and 1 against the model and against kafka-python's own implementation."""

import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatch, LegacyRecordBatchBuilder

from kbroker._core.wire import message_set
from kbroker._core.wire.message_set import MessageSetBuilder
from kbroker._core.wire.record_batch import InvalidBatch
from kbroker.errors import ErrorCode
from kbroker.protocol.compression import Codec, deflate, inflate
from tests.kit.models import message_set as model
from tests.kit.models.message_set import Message
from tests.kit.models.record_batch import Refused
from tests.kit.wire import parser_cases
from tests.kit.wire.message_rows import Row, read_rows

MAGICS = [0, 1]
OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
optional_bytes = st.none() | st.binary(max_size=40)
timestamps = st.sampled_from([-1, 0, 5, 2**63 - 1, -(2**63)]) | st.integers(0, 2**45)
offsets = st.integers(0, 2**62)


@st.composite
def sets(draw: st.DrawFn, min_size: int = 0) -> list[Message]:
    magic = draw(st.sampled_from(MAGICS))
    one = st.builds(
        Message,
        offsets,
        timestamps if magic else st.just(-1),
        optional_bytes,
        optional_bytes,
        st.just(magic),
        st.sampled_from([0, 8]),
    )
    return draw(st.lists(one, min_size=min_size, max_size=12))


def outcome(function: Callable[[], object]) -> object:
    try:
        return function()
    except Refused as refused:
        return str(refused)
    except InvalidBatch as refused:
        return refused.name


def plain(messages: list[Message]) -> list[Row]:
    return [(m.offset, m.timestamp, m.key, m.value) for m in messages]


# --- reading ------------------------------------------------------------------------------------------


@given(sets())
@example([Message(0, 2**63 - 1, None, None)])
def test_a_set_is_read_as_the_model_wrote_it(messages: list[Message]) -> None:
    data = model.encode_set(messages)
    info = message_set.walk(data)
    assert read_rows(data) == plain(messages)
    assert (info.count, info.size) == (len(messages), len(data))
    assert info.magic == (messages[0].magic if messages else -1)
    assert (info.first_offset, info.last_offset) == (
        (messages[0].offset, messages[-1].offset) if messages else (-1, -1)
    )
    assert [m.offset for m in message_set.messages(data)] == [m.offset for m in messages]


@given(sets(min_size=1), st.data())
def test_a_mangled_set_gets_the_finding_of_the_model(messages: list[Message], data: st.DataObject) -> None:
    encoded = bytearray(model.encode_set(messages))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    assert outcome(lambda: read_rows(cut)) == outcome(lambda: plain(model.decode_set(cut)))


@given(
    st.sampled_from(MAGICS),
    st.integers(0, 15) | st.integers(0, 255),
    st.lists(st.integers(-3, 12), min_size=2, max_size=2),
    st.binary(max_size=16),
)
def test_sizes_that_lie_under_a_right_crc_get_the_finding_of_the_model(
    magic: int, attributes: int, lies: list[int], tail: bytes
) -> None:
    body = bytes([magic, attributes]) + (bytes(8) if magic else b"")
    body += struct.pack(">i", lies[0]) + bytes(max(0, lies[0] // 2 * 2)) + struct.pack(">i", lies[1]) + tail
    data = model.framed(7, body)
    assert outcome(lambda: read_rows(data)) == outcome(lambda: plain(model.decode_set(data)))


@pytest.mark.parametrize("magic", MAGICS)
def test_the_smallest_message_and_shorter_ones(magic: int) -> None:
    data = model.encode(Message(5, 6, None, None, magic))
    assert message_set.check(data).size == len(data) == (34 if magic else 26)
    shorter = model.framed(5, data[16:-4])
    assert outcome(lambda: message_set.check(shorter)) == "BATCH_BAD_LENGTH"
    assert outcome(lambda: message_set.check(data[:-1])) == "BATCH_TOO_SHORT"


@pytest.mark.parametrize("magic", MAGICS)
def test_only_our_errors_come_out_of_hostile_bytes(magic: int) -> None:
    data = model.encode_set([Message(3, 9, b"key", b"value", magic), Message(4, -1, None, b"", magic)])
    for read in (message_set.walk, message_set.messages):
        assert parser_cases.feed(read, data) > len(data)


def test_the_codes_that_producers_get() -> None:
    good = model.encode(Message(0, 1, None, b"v"))
    for data, code in (
        (good[:-1] + b"w", ErrorCode.CORRUPT_MESSAGE),
        (good[:16] + b"\2" + good[17:], ErrorCode.CORRUPT_MESSAGE),
        (model.encode(Message(0, 1, None, b"v", 1, 4)), ErrorCode.INVALID_RECORD),
        (model.encode(Message(0, 1, None, b"v", 1, 5)), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (model.encode(Message(0, 1, None, None, 1, 1)), ErrorCode.INVALID_RECORD),
        (good + model.encode(Message(1, 1, None, b"v", 0)), ErrorCode.INVALID_RECORD),
    ):
        with pytest.raises(InvalidBatch) as refused:
            message_set.walk(data)
        assert refused.value.code == code
    with pytest.raises(IndexError):
        message_set.check(good, len(good) + 1)


def test_a_finding_tells_where_the_bad_message_starts() -> None:
    good = model.encode(Message(0, 1, None, b"v"))
    with pytest.raises(InvalidBatch) as refused:
        message_set.walk(good * 2 + good[:-1] + b"w")
    assert refused.value.position == 2 * len(good)


# --- compressed messages ------------------------------------------------------------------------------


@given(sets(), offsets, timestamps, st.sampled_from([1, 9]), st.sampled_from(MAGICS))
def test_inner_messages_are_read_as_the_model_reads_them(
    messages: list[Message], offset: int, timestamp: int, attributes: int, magic: int
) -> None:
    # Relative or absolute offsets, of the wrapper's magic or not: whatever stands there.
    outer = Message(offset, timestamp if magic else -1, None, b"", magic, attributes)
    wrapper = message_set.check(model.encode(outer))
    for shift in (0, messages[0].offset if messages else 0):
        data = model.encode_set([replace(m, offset=max(0, m.offset - shift)) for m in messages])
        assert outcome(lambda data=data: read_rows(data, wrapper)) == outcome(
            lambda data=data: plain(model.decode_set(data, outer))
        )


@pytest.mark.parametrize("magic", MAGICS)
def test_a_compressed_message_holds_neither_a_compressed_one_nor_none(magic: int) -> None:
    wrapper = message_set.check(model.encode(Message(9, 1, None, b"", magic, 1)))
    nested = model.encode(Message(0, 1, None, b"v", magic, 2))
    other = model.encode(Message(0, 1, None, b"v", 1 - magic))
    for data, finding in ((nested, "BATCH_NESTED"), (b"", "BATCH_EMPTY"), (other, "BATCH_MIXED_MAGIC")):
        assert outcome(lambda data=data: message_set.walk(data, wrapper=wrapper)) == finding


def test_an_outer_offset_of_zero_makes_inner_offsets_absolute() -> None:
    wrapper = message_set.check(model.encode(Message(0, 1, None, b"", 1, 2)))
    data = model.encode_set([Message(at, 1, None, b"v") for at in range(3)])
    assert message_set.walk(data, wrapper=wrapper).last_offset == 2


# --- writing ------------------------------------------------------------------------------------------


@given(sets())
def test_a_set_is_written_as_the_model_writes_it(messages: list[Message]) -> None:
    magic = messages[0].magic if messages else 1
    for log_append_time in (False, True):
        builder = MessageSetBuilder(magic, log_append_time=log_append_time)
        sizes = [builder.append(m.offset, m.timestamp, m.key, m.value) for m in messages]
        expected = [replace(m, attributes=8 if log_append_time and magic else 0) for m in messages]
        assert builder.messages() == model.encode_set(expected)
        assert sizes == list(accumulate(len(model.encode(m)) for m in expected))
        assert (builder.count, builder.size) == (len(messages), len(builder.messages()))


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_wrapped_set_is_read_again_with_its_offsets(magic: int, codec: Codec) -> None:
    builder = MessageSetBuilder(magic, compressed=True)
    expected = [(at * at + 7, 100 - at if magic else -1, b"k", b"v" * at) for at in range(50)]
    for row in expected:
        builder.append(*row)
    outer = builder.wrap(codec, deflate(codec, builder.messages()))
    (message,) = message_set.messages(outer)
    assert (message.codec, message.magic, message.offset) == (codec, magic, 49 * 49 + 7)
    assert message.timestamp == (100 if magic else -1)
    inner = inflate(codec, outer[message.value_position :][: message.value_size], 1 << 20)
    assert read_rows(inner, message) == expected
    first = message_set.check(inner).offset
    assert first == (0 if magic else 7)


def test_what_a_builder_refuses() -> None:
    builder = MessageSetBuilder(1, limit=70)
    assert builder.append(0, 0, None, b"12") == 36
    assert outcome(lambda: builder.append(1, 0, None, b"1")) == "BATCH_TOO_LARGE"
    assert builder.append(1, 0, None, b"") == 70
    assert (builder.count, builder.last_offset) == (2, 1)
    with pytest.raises(ValueError, match="compressed"):
        builder.wrap(1, b"")
    assert outcome(lambda: MessageSetBuilder(1, compressed=True).wrap(1, b"")) == "BATCH_EMPTY"
    assert outcome(lambda: message_set.wrap(b"", Codec.ZSTD, 1, 0)) == "BATCH_OLD_ZSTD"
    assert outcome(lambda: message_set.wrap(b"", 0, 1, 0)) == "BATCH_BAD_CODEC"
    for make in (lambda: MessageSetBuilder(2), lambda: message_set.wrap(b"", 1, 2, 0)):
        with pytest.raises(ValueError, match="magic"):
            make()


# --- against kafka-python -----------------------------------------------------------------------------


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_kafka_python_reads_what_is_written_and_writes_what_is_read(magic: int, codec: Codec) -> None:
    expected = [(at, 1000 + at if magic else -1, b"k" if at % 2 else None, b"v" * at) for at in range(20)]
    builder = MessageSetBuilder(magic, compressed=codec != Codec.NONE)
    theirs = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, timestamp, key, value in expected:
        builder.append(offset, timestamp, key, value)
        theirs.append(offset, timestamp=timestamp if magic else None, key=key, value=value)
    ours = builder.messages()
    built = bytes(theirs.build())
    if codec == Codec.NONE:
        assert built == ours
        pieces = [ours[m.position : m.position + m.size] for m in message_set.messages(ours)]
    else:
        wrapper = message_set.check(built)
        inner = inflate(codec, built[wrapper.value_position :][: wrapper.value_size], 1 << 20)
        assert read_rows(inner, wrapper) == expected
        pieces = [builder.wrap(codec, deflate(codec, ours))]
    read = []
    for piece in pieces:
        batch = LegacyRecordBatch(piece, magic)
        assert batch.validate_crc()
        read += [(r.offset, r.timestamp if magic else -1, r.key, r.value) for r in batch]
    assert read == expected
