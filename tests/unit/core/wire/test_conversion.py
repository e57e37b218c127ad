"""Conversions between magic 0, 1 and 2 against the models of both formats."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.wire import message_set, record_batch
from kbroker._core.wire.conversion import batch_of_messages, message_sets_of_batch, older_messages
from kbroker._core.wire.message_set import MessageSetBuilder
from kbroker._core.wire.record_batch import BatchInfo, InvalidBatch
from kbroker._core.wire.records import RecordsBuilder
from kbroker.errors import ErrorCode
from kbroker.protocol.compression import Codec, deflate, inflate
from kbroker.protocol.records import ControlType, Record, encode_batch, read_records
from tests.kit.models import message_set as model
from tests.kit.models.message_set import Message
from tests.kit.wire import parser_cases
from tests.kit.wire.batches import encode_control_batch

MAGICS = [0, 1]
OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
HEADER_SIZE = 61
optional_bytes = st.none() | st.binary(max_size=300)
timestamps = st.sampled_from([-1, 0, 2**63 - 1, -(2**63)]) | st.integers(0, 2**45)
contents = st.lists(st.tuples(timestamps, optional_bytes, optional_bytes), min_size=1, max_size=150)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)


def outcome(function: Callable[[], object]) -> object:
    try:
        return function()
    except InvalidBatch as refused:
        return refused.name


# --- to magic 2 ---------------------------------------------------------------------------------------


@given(st.sampled_from(MAGICS), contents)
def test_messages_become_one_batch_with_new_offsets(
    magic: int, rows: list[tuple[int, bytes | None, bytes | None]]
) -> None:
    messages = [Message(at * 3 + 9, time if magic else -1, *rest, magic) for at, (time, *rest) in enumerate(rows)]
    builder = batch_of_messages(model.encode_set(messages))
    expected = [Record(at, m.timestamp, m.key, m.value) for at, m in enumerate(messages)]
    data = builder.build(leader_epoch=5)
    info = record_batch.check(data)
    record_batch.walk(data[HEADER_SIZE:], info)
    assert list(read_records(data)) == expected
    assert (info.leader_epoch, info.producer_id, info.producer_epoch, info.base_sequence) == (5, -1, -1, -1)
    assert info.max_timestamp == max(-1, *(r.timestamp for r in expected))
    assert info.base_timestamp == expected[0].timestamp


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", OLD_CODECS)
@pytest.mark.parametrize("log_append_time", [False, True])
def test_a_compressed_message_becomes_a_compressed_batch(magic: int, codec: Codec, log_append_time: bool) -> None:
    old = MessageSetBuilder(magic, compressed=True, log_append_time=log_append_time)
    for at in range(200):
        old.append(at, 1000 + at, b"k", b"v" * at)
    data = old.wrap(codec, deflate(codec, old.messages()))
    wrapper = message_set.check(data)
    inner = inflate(wrapper.codec, data[wrapper.value_position :][: wrapper.value_size], 1 << 20)
    builder = batch_of_messages(inner, wrapper=wrapper)
    made = builder.build(deflate(codec, builder.records()), attributes=codec)
    stamped = log_append_time and magic == 1
    assert list(read_records(made)) == [
        Record(at, -1 if magic == 0 else 1199 if stamped else 1000 + at, b"k", b"v" * at) for at in range(200)
    ]
    assert record_batch.check(made).codec == codec


def test_what_is_not_converted_to_magic_2() -> None:
    good = model.encode(Message(0, 1, None, b"v"))
    wrapped = model.encode(Message(0, 1, None, b"v", 1, 2))
    for data, finding in (
        (b"", "BATCH_EMPTY"),
        (wrapped, "BATCH_NESTED"),
        (good + model.encode(Message(0, 1, None, b"v", 0)), "BATCH_MIXED_MAGIC"),
        (good[:-1], "BATCH_TOO_SHORT"),
    ):
        assert outcome(lambda data=data: batch_of_messages(data)) == finding


def test_conversions_stop_at_the_limit() -> None:
    messages = [Message(at, 1, None, b"v" * 100) for at in range(10)]
    data = model.encode_set(messages)
    builder = batch_of_messages(data)
    assert batch_of_messages(data, limit=builder.size).records() == builder.records()
    with pytest.raises(InvalidBatch) as refused:
        batch_of_messages(data, limit=builder.size - 1)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_set_that_is_full_is_followed_by_the_next(codec: Codec) -> None:
    values = [b"v" * 100] * 3 + [b"large" * 1000] + [b"v" * 100] * 3
    batch = gapped([Record(5 + at, 1, None, value, []) for at, value in enumerate(values)], codec)
    info, records = split(batch)
    whole = b"".join(built.messages() for built in message_sets_of_batch(info, records, 1, start_offset=6, limit=300))
    sets = [made.messages() for made in message_sets_of_batch(info, records, 1, limit=300)]
    assert [len(model.decode_set(one)) for one in sets] == [2, 1, 1, 2, 1]
    if codec:
        # Each set counts from its own first message, and its wrapper has the offset of its last one.
        assert [m.offset for one in sets for m in model.decode_set(one)] == [0, 1, 0, 0, 0, 1, 0]
        assert [built.last_offset for built in message_sets_of_batch(info, records, 1, limit=300)] == [6, 7, 8, 10, 11]
    else:
        assert [m.offset for m in model.decode_set(whole)] == list(range(6, 12))


# --- from magic 2 -------------------------------------------------------------------------------------


@st.composite
def batches_with_gaps(draw: st.DrawFn) -> list[Record]:
    """Records as compaction leaves them: some are missing, the offsets of the others stay."""
    base = draw(st.integers(0, 2**40))
    kept = sorted(draw(st.sets(st.integers(0, 1000), min_size=1, max_size=12)))
    return [
        Record(base + at, draw(timestamps), draw(optional_bytes), draw(optional_bytes), draw(headers)) for at in kept
    ]


def split(batch: bytes) -> tuple[BatchInfo, bytes]:
    info = record_batch.verify(batch)
    return info, inflate(info.codec, batch[HEADER_SIZE:], 1 << 20)


@given(batches_with_gaps(), st.sampled_from(MAGICS), st.integers(-1, 12), st.booleans())
def test_records_become_messages_with_their_own_offsets(
    records: list[Record], magic: int, skip: int, stamp: bool
) -> None:
    batch = bytearray(gapped(records))
    if stamp:
        record_batch.stamp_timestamp(batch, True, 99)
    start = records[min(skip, len(records) - 1)].offset if skip >= 0 else 0
    (made,) = message_sets_of_batch(*split(bytes(batch)), magic, start_offset=start)
    stamped = stamp and magic == 1
    expected = [
        Message(r.offset, -1 if not magic else 99 if stamp else r.timestamp, r.key, r.value, magic, 8 if stamped else 0)
        for r in records
        if r.offset >= start
    ]
    assert made.messages() == model.encode_set(expected)
    assert (made.count, made.first_offset, made.last_offset) == (len(expected), expected[0].offset, records[-1].offset)


def gapped(records: list[Record], codec: Codec = Codec.NONE) -> bytes:
    builder = RecordsBuilder()
    base = records[0].offset
    for r in records:
        builder.append(r.timestamp, r.key, r.value, r.headers, offset_delta=r.offset - base)
    payload = deflate(codec, builder.records()) if codec else None
    return builder.build(payload, attributes=codec, base_offset=base)


@given(batches_with_gaps(), st.sampled_from(MAGICS), st.sampled_from(OLD_CODECS))
def test_a_compressed_batch_becomes_one_compressed_message(records: list[Record], magic: int, codec: Codec) -> None:
    # Kafka drops no record of a compressed batch, wherever the fetch starts.
    (made,) = message_sets_of_batch(*split(gapped(records, codec)), magic, start_offset=records[-1].offset + 1)
    first = records[0].offset if magic else 0
    inner = [Message(r.offset - first, r.timestamp if magic else -1, r.key, r.value, magic) for r in records]
    assert made.messages() == model.encode_set(inner)
    outer = made.wrap(codec, deflate(codec, made.messages()))
    (message,) = model.decode_set(outer)
    newest = max(-1, *(r.timestamp for r in records)) if magic else -1
    assert (message.offset, message.attributes, message.timestamp) == (records[-1].offset, codec, newest)
    assert message.value is not None
    again = model.decode_set(inflate(codec, message.value, 1 << 20), message)
    # An outer offset of 0 says nothing; there is one message then, at 0.
    assert [m.offset for m in again] == [r.offset for r in records]


@pytest.mark.parametrize("magic", MAGICS)
def test_nothing_is_left_of_control_batches_and_of_empty_ones(magic: int) -> None:
    control = encode_control_batch(ControlType.COMMIT, 7, producer_id=1, producer_epoch=0, coordinator_epoch=0)
    assert not list(message_sets_of_batch(*split(control), magic))
    empty = bytearray(encode_batch([(1, None, b"v")])[:HEADER_SIZE])
    empty[8:12] = (HEADER_SIZE - 12).to_bytes(4)
    empty[57:61] = bytes(4)
    assert not list(message_sets_of_batch(record_batch.header(empty), b"", magic))


@pytest.mark.parametrize("magic", MAGICS)
def test_only_our_errors_come_out_of_hostile_records(magic: int) -> None:
    info, payload = split(encode_batch([(5, b"key", b"value", [("h", b"x")]), (6, None, b"")]))
    assert parser_cases.feed(lambda data: list(message_sets_of_batch(info, data, magic)), payload) > len(payload)


@pytest.mark.parametrize("magic", MAGICS)
def test_only_our_errors_come_out_of_hostile_messages(magic: int) -> None:
    data = model.encode_set([Message(3, 9, b"key", b"value", magic), Message(4, -1, None, b"", magic)])
    assert parser_cases.feed(batch_of_messages, data) > len(data)
    wrapper = message_set.check(model.encode(Message(4, 9, None, b"", magic, 1)))
    assert parser_cases.feed(lambda inner: batch_of_messages(inner, wrapper=wrapper), data) > len(data)


@given(contents)
def test_there_and_back_is_the_same(rows: list[tuple[int, bytes | None, bytes | None]]) -> None:
    messages = [Message(at, *row) for at, row in enumerate(rows)]
    data = model.encode_set(messages)
    builder = batch_of_messages(data)
    (made,) = message_sets_of_batch(*split(builder.build()), 1)
    assert made.messages() == data
    without = model.encode_set([replace(m, magic=0, timestamp=-1) for m in messages])
    (made,) = message_sets_of_batch(*split(builder.build()), 0)
    assert made.messages() == without


# --- magic 1 to 0 -------------------------------------------------------------------------------------


def wrapper_of_magic_1(offset: int) -> message_set.Message:
    return message_set.check(message_set.wrap(b"", Codec.GZIP, 1, offset, 77))


@given(contents)
def test_what_a_message_of_magic_1_holds_becomes_messages_of_magic_0(
    rows: list[tuple[int, bytes | None, bytes | None]],
) -> None:
    relative = [Message(at, time, *rest, 1) for at, (time, *rest) in enumerate(rows)]
    made = older_messages(model.encode_set(relative), wrapper_of_magic_1(1000))
    expected = [replace(m, offset=1000 - len(rows) + 1 + m.offset, timestamp=-1, magic=0) for m in relative]
    assert (made.magic, made.compressed) == (0, True)
    assert model.decode_set(made.messages()) == expected


def test_what_is_no_flat_set_of_messages_is_refused() -> None:
    good = model.encode(Message(0, 1, b"k", b"v", 1))
    nested = message_set.wrap(deflate(Codec.GZIP, good), Codec.GZIP, 1, 0, 1)
    for data, name in (
        (good[:-1], "BATCH_TOO_SHORT"),
        (good[:-1] + b"x", "BATCH_BAD_CRC"),
        (good + nested, "BATCH_NESTED"),
        (good + model.encode(Message(1, -1, b"k", b"v", 0)), "BATCH_MIXED_MAGIC"),
    ):
        assert outcome(lambda data=data: older_messages(data, wrapper_of_magic_1(9))) == name  # type: ignore[misc]
