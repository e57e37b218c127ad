"""Record batches: check, walk and stamp against the model, and with every byte of a batch changed."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.wire import record_batch
from kbroker._core.wire.record_batch import BATCH_ERROR_CODES, FINDINGS, InvalidBatch
from kbroker.errors import ErrorCode
from tests.kit.models import record_batch as model
from tests.kit.models.record_batch import Batch, Record
from tests.kit.wire import parser_cases

optional_bytes = st.none() | st.binary(max_size=200)
int64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def record_lists(draw: st.DrawFn) -> tuple[Record, ...]:
    count = draw(st.integers(1, 6))
    deltas = st.integers(-(2**20), 2**40) | st.integers(0, 200)
    headers = st.lists(st.tuples(st.binary(max_size=80), optional_bytes), max_size=3).map(tuple)
    return tuple(
        Record(
            delta,
            draw(deltas),
            draw(optional_bytes),
            draw(optional_bytes),
            draw(headers),
            draw(st.sampled_from([0, 0, -1])),
        )
        for delta in range(count)
    )


batches = st.builds(
    Batch,
    records=record_lists(),
    leader_epoch=st.integers(-1, 2**31 - 1),
    attributes=st.sampled_from([0, 0, 8, 16]),
    base_timestamp=st.integers(0, 2**42) | st.just(-1),
    producer_id=st.just(-1) | st.integers(0, 2**40),
    base_sequence=st.integers(0, 2**31 - 1),
)


def outcome(function: Callable[[], object]) -> str:
    try:
        function()
    except InvalidBatch as refused:
        assert FINDINGS[refused.finding][0] == refused.name
        assert refused.code == BATCH_ERROR_CODES[refused.finding]
        return str(refused.name)
    except model.Refused as refused:
        return str(refused.args[0])
    return "BATCH_OK"


def check_and_walk(data: bytes, key_required: bool = False) -> int:
    info = record_batch.check(data)
    return record_batch.walk(memoryview(data)[61 : info.size], info, key_required)


def model_check_and_walk(data: bytes, key_required: bool = False) -> int:
    batch = model.check(data)
    assert batch.payload is not None
    return model.walk(batch, batch.payload, key_required)[1]


@given(batches)
def test_a_batch_as_producers_send_it_passes_and_tells_its_header(batch: Batch) -> None:
    data = model.encode_batch(batch)
    info = record_batch.check(data)
    expected = model.check(data)
    assert info.size == len(data)
    for name in (
        "base_offset",
        "leader_epoch",
        "attributes",
        "last_offset_delta",
        "base_timestamp",
        "max_timestamp",
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "record_count",
    ):
        assert getattr(info, name) == getattr(expected, name), name
    assert check_and_walk(data) == model_check_and_walk(data)


@given(
    batch=batches,
    base_offset=st.sampled_from([0, 0, 0, 1, -1]),
    magic=st.sampled_from([2, 2, 2, 0, 1, 3, -1]),
    attributes=st.sampled_from([0, 1, 4, 5, 7, 8, 0x20, 0x28, 0x40]),
    count_change=st.sampled_from([0, 0, 0, 1, -1, 2**31 - 10]),
    delta_change=st.sampled_from([0, 0, 0, 1, -1]),
    base_sequence=st.sampled_from([0, -1]),
    key_required=st.booleans(),
)
def test_what_is_refused_and_why_is_what_the_model_says(
    batch: Batch,
    base_offset: int,
    magic: int,
    attributes: int,
    count_change: int,
    delta_change: int,
    base_sequence: int,
    key_required: bool,
) -> None:
    count = len(batch.records) + count_change
    wrong = replace(
        batch,
        base_offset=base_offset,
        magic=magic,
        attributes=attributes,
        record_count=count,
        last_offset_delta=count - 1 + delta_change,
        base_sequence=base_sequence,
    )
    data = model.encode_batch(wrong)
    expected = outcome(lambda: model_check_and_walk(data, key_required))
    assert outcome(lambda: check_and_walk(data, key_required)) == expected


@given(record_lists(), st.data())
def test_records_with_any_bytes_changed_get_the_models_verdict(
    records: tuple[Record, ...], data: st.DataObject
) -> None:
    payload = bytearray(model.encode_records(records))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        change = data.draw(st.sampled_from(["flip", "insert", "delete"]))
        byte = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        if change == "flip":
            payload[at] = byte
        elif change == "insert":
            payload.insert(at, byte)
        elif len(payload) > 1:
            del payload[at]
    whole = model.encode_batch(Batch(records, payload=bytes(payload)))
    info = record_batch.check(whole)
    expected = outcome(lambda: model.walk(model.check(whole), bytes(payload)))
    assert outcome(lambda: record_batch.walk(bytes(payload), info)) == expected


@pytest.mark.parametrize("attributes", [0, 8])
def test_every_mangled_batch_is_refused_with_an_error_of_ours(attributes: int) -> None:
    records = (Record(0, 0, b"key", b"value" * 30, ((b"h", b"x"), (b"n", None))), Record(1, 300, None, None))
    data = model.encode_batch(Batch(records, attributes=attributes, base_timestamp=5))
    bytes_outside_the_crc = 4  # the leader epoch
    refused = parser_cases.feed(check_and_walk, data, every_bit=True)
    assert refused == len(data) + 8 * (len(data) - bytes_outside_the_crc)


def test_every_mangled_record_section_is_walked_without_harm() -> None:
    records = tuple(Record(i, i * 70, b"key" * i, b"v" * 50 * i, ((b"name", b"value"),) * i) for i in range(4))
    info = record_batch.header(model.encode_batch(Batch(records)))
    refused = parser_cases.feed(
        lambda data: record_batch.walk(data, info), model.encode_records(records), every_bit=True
    )
    assert refused > 100


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (b"\x01\x00" * 3, "BATCH_BAD_RECORD"),  # sizes below one
        (model.zigzag(2**30) + bytes(20), "BATCH_BAD_RECORD"),  # a record of a gigabyte
        (model.zigzag(-5) + bytes(20), "BATCH_BAD_RECORD"),
        (b"\xff" * 12, "BATCH_BAD_RECORD"),  # a varint that never ends
        (b"\x80\x80\x80\x80\x10" + bytes(20), "BATCH_BAD_RECORD"),  # more than 32 bits
        (
            model.encode_record(Record(0, 0, None, None))[:-1] + b"\x02",
            "BATCH_BAD_RECORD",
        ),  # a header that is not there
        (model.encode_record(Record(0, 0, None, None))[:-1] + b"\x01", "BATCH_BAD_RECORD"),  # -1 headers
        (model.encode_record(Record(3, 0, None, None)), "BATCH_BAD_COUNT"),
        (model.encode_record(Record(0, 0, None, None)) * 2, "BATCH_BAD_RECORD"),  # one more than counted
        (b"", "BATCH_BAD_RECORD"),  # one less
    ],
)
def test_lying_records_are_refused(change: bytes, finding: str) -> None:
    data = model.encode_batch(Batch((Record(0, 0, None, None),), payload=change))
    assert outcome(lambda: check_and_walk(data)) == finding


def test_a_null_header_key_is_refused() -> None:
    record = struct.pack(">b", 0) + model.zigzag(0) * 2 + model.zigzag(-1) * 2 + model.zigzag(1) + model.zigzag(-1) * 2
    data = model.encode_batch(Batch((Record(0, 0, None, None),), payload=model.zigzag(len(record)) + record))
    assert outcome(lambda: check_and_walk(data)) == "BATCH_BAD_RECORD"


@given(batches, int64, st.integers(-(2**31), 2**31 - 1))
def test_stamping_offsets_leaves_the_crc_right(batch: Batch, base_offset: int, leader_epoch: int) -> None:
    data = bytearray(model.encode_batch(batch))
    record_batch.stamp(data, base_offset, leader_epoch)
    assert data == model.encode_batch(replace(batch, base_offset=base_offset, leader_epoch=leader_epoch))


@given(batches, st.booleans(), st.integers(-1, 2**63 - 1))
def test_stamping_timestamps_renews_the_crc(batch: Batch, log_append_time: bool, max_timestamp: int) -> None:
    data = bytearray(model.encode_batch(batch))
    record_batch.stamp_timestamp(data, log_append_time, max_timestamp)
    attributes = batch.attributes & ~8 | (8 if log_append_time else 0)
    assert data == model.encode_batch(replace(batch, attributes=attributes, max_timestamp=max_timestamp))


def test_stamping_does_not_touch_what_is_no_batch() -> None:
    data = bytearray(b"x" * 70)
    with pytest.raises(InvalidBatch):
        record_batch.stamp(data, 1, 1)
    assert data == b"x" * 70
    with pytest.raises(BufferError):
        record_batch.stamp(bytes(data), 1, 1)


NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("timestamps", "attributes", "log_append_time", "accepted"),
    [
        ([NOW], 0, False, True),
        ([NOW - 1000, NOW + 50], 0, False, True),
        ([NOW - 1001], 0, False, False),
        ([NOW, NOW + 51], 0, False, False),
        ([NOW - 1001], 0, True, True),  # the broker's own time replaces it
        ([-1], 0, False, True),  # no timestamp at all
        ([-1, NOW - 1001], 0, False, False),
        ([NOW], 8, True, False),  # a client does not say LogAppendTime
        ([NOW], 8, False, True),  # Kafka lets this one pass
        ([-1], 8, False, False),
        ([2**63 - 1], 0, False, False),
    ],
)
def test_timestamps_are_held_to_the_topics_bounds(
    timestamps: list[int], attributes: int, log_append_time: bool, accepted: bool
) -> None:
    records = tuple(Record(i, timestamp - timestamps[0], None, b"") for i, timestamp in enumerate(timestamps))
    data = model.encode_batch(Batch(records, attributes=attributes, base_timestamp=timestamps[0]))
    info = record_batch.check(data)
    record_batch.walk(data[61:], info)
    verdict = outcome(lambda: record_batch.check_timestamps(info, log_append_time, NOW, 1000, 50))
    assert verdict == ("BATCH_OK" if accepted else "BATCH_BAD_TIMESTAMP")


def test_no_bounds_means_every_timestamp() -> None:
    data = model.encode_batch(Batch((Record(0, 0, None, b""),), base_timestamp=-(2**63)))
    info = record_batch.check(data)
    record_batch.walk(data[61:], info)
    record_batch.check_timestamps(info, False, 2**62, 2**63 - 1, 2**63 - 1)


def test_batches_of_a_buffer_end_where_one_is_cut_short() -> None:
    one = model.encode_batch(Batch((Record(0, 0, None, b"a"),)))
    two = model.encode_batch(Batch((Record(0, 0, None, b"bb"), Record(1, 0, None, b"")), base_offset=1))
    found = record_batch.batches(one + two + one[:30])
    assert [(info.position, info.base_offset, info.last_offset, info.size) for info in found] == [
        (0, 0, 0, len(one)),
        (len(one), 1, 2, len(two)),
    ]
    assert [info.position for info in record_batch.batches(one + two, len(one))] == [len(one)]
    with pytest.raises(InvalidBatch) as refused:
        record_batch.batches(one + b"\0" * 40)
    assert refused.value.position == len(one)


def test_a_large_batch_is_verified_without_the_gil() -> None:
    data = bytearray(model.encode_batch(Batch((Record(0, 0, None, b"x" * 9000),))))
    assert record_batch.verify(data).record_count == 1
    data[5000] ^= 1
    assert outcome(lambda: record_batch.verify(data)) == "BATCH_BAD_CRC"


def test_every_finding_has_a_code_and_no_name_twice() -> None:
    assert len({name for name, _, _ in FINDINGS}) == len(FINDINGS)
    assert {code for _, code, _ in FINDINGS[1:]} == {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    }


@pytest.mark.parametrize("position", [-1, 10**9])
def test_a_position_outside_of_the_buffer_is_a_bug_of_the_caller(position: int) -> None:
    with pytest.raises(IndexError):
        record_batch.header(b"x" * 80, position)
