"""Records of a poll against a log that knows what became of every batch."""

import gc
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.client.consumer.batches import Chunk, read_chunk
from kbroker._core.client.consumer.record import ConsumerRecord, UnreadableRecords
from kbroker._core.client.consumer.records import Records
from kbroker._core.wire.message_set import MessageSetBuilder, wrap
from kbroker.errors import ClientError, ErrorCode
from kbroker.model import TopicPartition
from kbroker.protocol.compression import BadCompression, Codec, deflate, inflate
from kbroker.protocol.records import ControlType, Record, encode_batch
from tests.kit.models.consumer import Log, logs
from tests.kit.wire import parser_cases
from tests.kit.wire.batches import changed, encode_control_batch

LIMIT = 1 << 20


def inflated(codec: int, data: memoryview, magic: int) -> bytes:
    return inflate(codec, data, LIMIT, magic=magic)


def chunk_of(data: bytes, position: int = 0, topic: str = "t", partition: int = 3, **options: Any) -> Chunk:
    return read_chunk(topic, partition, data, inflated, position=position, **options)


def plain(record: ConsumerRecord) -> Record:
    assert isinstance(record, ConsumerRecord)
    return Record(record.offset, record.timestamp, record.key, record.value, record.headers)


def plains(records: Iterable[ConsumerRecord]) -> list[Record]:
    return [plain(record) for record in records]


@given(logs(), st.integers(0, 60), st.booleans())
def test_a_chunk_holds_what_is_visible_from_the_position(log: Log, position: int, committed: bool) -> None:
    chunk = chunk_of(log.encode(), position, aborted=log.aborted if committed else None)
    expected = log.visible(position, committed=committed)
    assert len(chunk) == len(expected)
    assert plains(Records([chunk])) == expected
    assert chunk.next_offset == max(position, log.end_offset)
    assert chunk.error is None


@given(logs(), st.data())
def test_every_way_to_read_records_gives_the_same(log: Log, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, log.end_offset))
    whole = log.encode()
    parts = [chunk_of(whole, position), chunk_of(whole, 0, "u", 0), chunk_of(b""), chunk_of(whole)]
    expected = log.visible(position, committed=False) + log.visible(0, committed=False) * 2
    limit = data.draw(st.integers(0, len(expected) + 2))
    records = Records(parts, limit)
    expected = expected[:limit]
    assert len(records) == len(expected)
    assert [plain(records[row]) for row in range(len(expected))] == expected
    assert [plain(records[row - len(expected)]) for row in range(len(expected))] == expected
    cut = slice(data.draw(st.integers(-9, 40)), data.draw(st.none() | st.integers(-9, 40)))
    assert plains(records[cut]) == expected[cut]
    assert plains(records[cut][1:]) == expected[cut][1:]
    assert plains(list(reversed(records))) == expected[::-1]
    with pytest.raises(ValueError, match="steps"):
        records[::2]
    named = {partition: plains(records.of_partition(*partition)) for partition in records.partitions()}
    assert all(named.values())
    assert sum(map(len, named.values())) == len(expected)
    for row in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            records[row]


@given(logs(), st.integers(0, 60), st.data())
def test_going_on_behind_some_records_loses_none_and_repeats_none(log: Log, position: int, data: st.DataObject) -> None:
    whole, seen = log.encode(), []
    expected = log.visible(position, committed=True)
    while True:
        chunk = chunk_of(whole, position, aborted=log.aborted)
        records = Records([chunk], data.draw(st.integers(1, 5)))
        seen += plains(records)
        (position,) = records.next_offsets().values()
        if len(records) == len(chunk):
            break
    assert seen == expected
    assert position == max(position, log.end_offset)


@given(logs(max_batches=5, magics=(2,)), st.data())
def test_a_log_cut_anywhere_is_read_as_far_as_whole_batches_go(log: Log, data: st.DataObject) -> None:
    whole = log.encode()
    cut = data.draw(st.integers(0, len(whole)))
    chunk = chunk_of(whole[:cut], aborted=log.aborted)
    sizes, end, at = [len(batch.encode()) for batch in log.batches], 0, 0
    for batch, size in zip(log.batches, sizes, strict=True):
        at += size
        if at <= cut:
            end = batch.last_offset + 1
    assert plains(Records([chunk])) == log.visible(0, committed=True, end=end)
    assert chunk.next_offset == end
    assert (chunk.error is None) == (end > 0 or cut == 0)


def batch(values: list[bytes], base_offset: int = 0, **options: Any) -> bytes:
    return encode_batch([(5, None, value) for value in values], base_offset=base_offset, **options)


def test_a_record_tells_where_it_comes_from() -> None:
    data = batch([b"a"], 10, leader_epoch=4) + batch([b"b"], 11, log_append_time=77)
    first, second = Records([chunk_of(data)])
    assert (first.topic, first.partition, first.offset, first.leader_epoch) == ("t", 3, 10, 4)
    assert (first.timestamp, first.timestamp_type) == (5, 0)
    assert (second.timestamp, second.timestamp_type, second.leader_epoch) == (77, 1, None)
    assert repr(first) == (
        "ConsumerRecord(topic='t', partition=3, offset=10, timestamp=5, key=None, value=b'a', headers=())"
    )
    assert repr(Records([chunk_of(data)])) == "<Records: 2 of t-3>"
    assert Records([chunk_of(data)]).partitions() == [TopicPartition("t", 3)]


@pytest.mark.parametrize("codec", list(Codec))
def test_a_record_keeps_its_bytes_when_everything_else_is_gone(codec: Codec) -> None:
    records = Records([chunk_of(batch([b"x" * 500, b"y" * 500], codec=codec))])
    record, view = records[1], next(iter(records)).value_view
    del records
    gc.collect()
    [bytearray(500) for _ in range(100)]
    assert record.value == b"y" * 500
    assert view is not None
    assert view.readonly
    assert view.tobytes() == b"x" * 500


def test_an_inflated_batch_goes_with_the_last_record_of_it() -> None:
    made: list[bytes] = []

    def kept(codec: int, data: memoryview, _magic: int) -> bytes:
        made.append(inflate(codec, data, LIMIT))
        return made[-1]

    data = b"".join(batch([b"v%d" % number] * 3, number * 3, codec=Codec.LZ4) for number in range(4))
    chunk = read_chunk("t", 0, data, kept)
    assert (len(Records([chunk])), made) == (12, [])
    taken = [record for record in Records([chunk]) if record.offset == 4]
    assert [sys.getrefcount(content) > 3 for content in made] == [False, True, False, False]
    assert taken.pop().value == b"v1"
    assert [sys.getrefcount(content) > 3 for content in made] == [False] * 4


def test_values_without_and_with_bytes() -> None:
    record = Records([chunk_of(encode_batch([(5, b"", None)]))])[0]
    assert (record.key, record.value, record.value_view) == (b"", None, None)


def test_a_wrong_checksum_costs_what_is_behind_it_and_nothing_else() -> None:
    good, bad = batch([b"a", b"b"]), bytearray(batch([b"c"], 2))
    bad[-1] ^= 1
    chunk = chunk_of(good + bytes(bad) + batch([b"d"], 3))
    assert [record.value for record in Records([chunk])] == [b"a", b"b"]
    error = chunk.error
    assert isinstance(error, UnreadableRecords) and isinstance(error, ClientError)
    assert (error.topic, error.partition, error.offset, error.code) == ("t", 3, 2, ErrorCode.CORRUPT_MESSAGE)
    assert "t-3: the records at offset 2 cannot be read: CRC does not match" in str(error)
    assert (chunk.next_offset, error.retriable) == (2, False)
    trusting = chunk_of(good + bytes(bad) + batch([b"d"], 3), check_crcs=False)
    assert len(trusting) == 4
    assert trusting.error is None


def test_a_damaged_record_is_an_error_where_it_is_read_and_the_next_batch_can_still_be() -> None:
    damaged = changed(batch([b"abc"]), 61, b"\x7f")
    chunk = chunk_of(damaged + batch([b"d"], 1))
    records = Records([chunk])
    reading = iter(records)
    with pytest.raises(UnreadableRecords, match="offset 0"):
        next(reading)
    assert next(reading).value == b"d"
    with pytest.raises(UnreadableRecords, match="offset 0"):
        records[0]
    assert records[1].value == b"d"


def test_a_bomb_is_refused_when_it_is_read() -> None:
    data = batch([bytes(LIMIT)], codec=Codec.ZSTD) + batch([b"behind"], 1)
    reading = iter(Records([chunk_of(data)]))
    with pytest.raises(UnreadableRecords, match="inflates to more"):
        next(reading)
    assert next(reading).value == b"behind"


def test_more_records_than_the_inflated_bytes_can_hold_are_refused() -> None:
    data = changed(batch([b"a"] * 3, codec=Codec.GZIP), 57, (2**31 - 1).to_bytes(4))
    data = changed(data, 23, (2**31 - 2).to_bytes(4))
    records = Records([chunk_of(data)])
    with pytest.raises(UnreadableRecords, match="record count"):
        next(iter(records))
    with pytest.raises(UnreadableRecords, match="record count"):
        records[5]


@pytest.mark.parametrize(
    ("at", "value", "what"),
    [
        (57, (4).to_bytes(4), "record count"),
        (57, (-1).to_bytes(4, signed=True), "record count"),
        (0, (-1).to_bytes(8, signed=True), "base offset"),
        (0, (2**63 - 2).to_bytes(8), "base offset"),
        (23, (-1).to_bytes(4, signed=True), "base offset"),
        (21, (5).to_bytes(2), "codec"),
        (16, b"\x03", "magic"),
        (16, b"\x01", "CRC"),
        (8, (2**31 - 1).to_bytes(4), "length|fewer bytes"),
        (8, (2**20).to_bytes(4), "fewer bytes"),
        (8, (-5).to_bytes(4, signed=True), "length"),
    ],
)
def test_a_lying_header_is_an_error_of_its_partition(at: int, value: bytes, what: str) -> None:
    chunk = chunk_of(changed(batch([b"a", b"b", b"c"]), at, value))
    assert len(chunk) == 0
    assert chunk.error is not None
    assert chunk.next_offset == 0
    with pytest.raises(UnreadableRecords, match=what):
        raise chunk.error


def test_offsets_that_go_back_are_not_delivered_again() -> None:
    chunk = chunk_of(batch([b"a", b"b"], 4) + batch([b"c", b"d"], 0) + batch([b"e", b"f"], 5), 4)
    assert [(record.offset, record.value) for record in Records([chunk])] == [(4, b"a"), (5, b"b"), (6, b"f")]
    assert chunk.next_offset == 7


def test_an_abort_marker_of_another_producer_ends_nothing() -> None:
    data = batch([b"a"], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    data += encode_control_batch(
        ControlType.ABORT, 5, producer_id=2, producer_epoch=0, coordinator_epoch=0, base_offset=1
    )
    data += batch([b"b"], 2, producer_id=1, producer_epoch=0, base_sequence=1, is_transactional=True)
    data += encode_control_batch(
        ControlType.ABORT, 5, producer_id=1, producer_epoch=0, coordinator_epoch=0, base_offset=3
    )
    data += batch([b"c"], 4, producer_id=1, producer_epoch=0, base_sequence=2, is_transactional=True)
    assert [record.value for record in Records([chunk_of(data, aborted=[(1, 0)])])] == [b"c"]
    assert [record.value for record in Records([chunk_of(data, aborted=[(1, 2)])])] == [b"a", b"c"]


def test_many_aborted_transactions_are_looked_up_in_no_time() -> None:
    aborted = [(producer, 0) for producer in range(100_000, 0, -1)]
    data = b"".join(
        batch([b"v"], offset, producer_id=offset, producer_epoch=0, base_sequence=0, is_transactional=True)
        for offset in range(2000)
    )
    assert [record.offset for record in Records([chunk_of(data, aborted=aborted)])] == [0]


def messages(
    values: list[bytes], offset: int = 0, magic: int = 1, *, codec: int = Codec.NONE, stamped: int = -1
) -> bytes:
    """A set; in one compressed message with a codec; with LogAppendTime where `stamped` says when."""
    builder = MessageSetBuilder(magic, compressed=codec != Codec.NONE, log_append_time=stamped >= 0)
    for value in values:
        builder.append(offset, stamped if stamped >= 0 and not codec else 5, None, value)
        offset += 1
    inner = builder.messages()
    if not codec:
        return inner
    small = deflate(codec, inner, magic=magic)
    return wrap(small, codec, magic, offset - 1, max(stamped, 5), stamped >= 0) if magic else builder.wrap(codec, small)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_messages_of_before_batches_keep_their_offsets_and_times(codec: Codec) -> None:
    data = messages([b"a", b"b"], 10, 0, codec=codec) + messages([b"c", b"d"], 20, codec=codec)
    data += messages([b"e", b"f"], 30, codec=codec, stamped=77) + messages([b"g"], 32, codec=codec, stamped=78)
    data += batch([b"h"], 40)
    found = [(r.offset, r.timestamp, r.timestamp_type, r.value, r.leader_epoch) for r in Records([chunk_of(data, 11)])]
    assert found == [
        (11, -1, 0, b"b", None), (20, 5, 0, b"c", None), (21, 5, 0, b"d", None), (30, 77, 1, b"e", None),
        (31, 77, 1, b"f", None), (32, 78, 1, b"g", None), (40, 5, 0, b"h", None),
    ]  # fmt: skip


def test_messages_without_a_codec_are_one_batch_of_what_is_alike() -> None:
    chunk = chunk_of(b"".join(messages([b"v"], offset) for offset in range(0, 3000, 3)) + messages([b"w"], 3000, 0), 30)
    records = Records([chunk])
    assert [record.offset for record in records] == [*range(30, 3001, 3)]
    assert [record.offset for record in records[-3:]] == [2994, 2997, 3000]


def test_damaged_messages_cost_what_is_behind_them_and_nothing_else() -> None:
    good, bad = messages([b"a", b"b"]), bytearray(messages([b"c"], 2, codec=Codec.GZIP))
    bad[-1] ^= 1
    chunk = chunk_of(good + bytes(bad) + messages([b"d"], 3))
    assert [record.value for record in Records([chunk])] == [b"a", b"b"]
    assert "t-3: the records at offset 2 cannot be read: CRC does not match" in str(chunk.error)


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (wrap(b"rubbish", Codec.GZIP, 1, 2), "offset 2 cannot be read: gzip"),
        (wrap(deflate(Codec.GZIP, bytes(LIMIT + 1)), Codec.GZIP, 1, 2), "inflates to more"),
        (wrap(deflate(Codec.GZIP, messages([b"x"], codec=Codec.GZIP)), Codec.GZIP, 1, 2), "inside a compressed one"),
        (wrap(deflate(Codec.GZIP, messages([b"x"])[:-1]), Codec.GZIP, 1, 2), "fewer bytes"),
        (wrap(deflate(Codec.GZIP, b""), Codec.GZIP, 1, 2), "without messages"),
        (wrap(deflate(Codec.GZIP, messages([b"x"], magic=0)), Codec.GZIP, 1, 2), "two formats"),
    ],
)
def test_a_compressed_message_that_lies_is_raised_behind_what_is_good(bad: bytes, what: str) -> None:
    chunk = chunk_of(messages([b"a"], 0, codec=Codec.GZIP) + messages([b"b"], 1) + bad + messages([b"c"], 3))
    assert [record.value for record in Records([chunk])] == [b"a", b"b"]
    assert chunk.next_offset == 2
    with pytest.raises(UnreadableRecords, match=what):
        raise chunk.error or AssertionError


def test_part_of_a_message_says_what_to_do() -> None:
    error = chunk_of(messages([bytes(500)])[:300]).error
    assert error is not None
    assert "max.partition.fetch.bytes" in error.hint


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_rubbish_messages_give_only_errors_of_ours(magic: int, codec: Codec) -> None:
    def read(mangled: bytes) -> None:
        chunk = chunk_of(mangled, 1, check_crcs=False)
        plains(Records([chunk]))
        if chunk.error is not None:
            raise chunk.error

    assert parser_cases.feed(read, messages([b"a", b"b"], 0, magic, codec=codec), every_bit=True) > 20


def test_rubbish_gives_only_errors_of_ours() -> None:
    data = encode_batch(
        [Record(0, 5, b"key", b"value", [("name", b"content"), ("none", None)]), Record(1, 9, None, b"")]
    )
    data += batch([b"v"], 2, codec=Codec.GZIP)

    def read(mangled: bytes) -> None:
        chunk = chunk_of(mangled, 1, check_crcs=False)
        rows = list(Records([chunk]))
        plains(rows)
        if chunk.error is not None:
            raise chunk.error

    assert parser_cases.feed(read, data, every_bit=True) > 100


def test_a_failing_inflater_is_named_with_its_batch() -> None:
    def fails(codec: int, data: memoryview, _magic: int) -> bytes:
        raise BadCompression("broken")

    chunk = read_chunk("orders", 1, batch([b"a"], 7, codec=Codec.LZ4), fails)
    with pytest.raises(UnreadableRecords, match="orders-1: the records at offset 7 cannot be read: broken"):
        list(Records([chunk]))
