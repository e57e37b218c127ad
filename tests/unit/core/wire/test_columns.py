"""Columnar decoding against decoding one record at a time."""

import gc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.wire import record_batch
from kbroker._core.wire.columns import Columns, RecordColumns
from kbroker._core.wire.record_batch import InvalidBatch
from kbroker.protocol.records import (
    ControlType,
    Record,
    encode_batch,
    read_batches,
    read_records,
)
from tests.kit.models import record_batch as model
from tests.kit.wire import parser_cases
from tests.kit.wire.batches import encode_control_batch

optional_bytes = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=5), optional_bytes), max_size=3)
record_lists = st.lists(
    st.builds(Record, st.just(0), st.integers(0, 2**45), optional_bytes, optional_bytes, headers),
    min_size=1,
    max_size=20,
)


def encode_log(pieces: Sequence[Sequence[Record]]) -> bytes:
    log, offset = b"", 0
    for piece in pieces:
        log += encode_batch(piece, base_offset=offset)
        offset += len(piece)
    return log


def columns_of(log: bytes, start: int = 0, end: int = 2**63 - 1) -> Columns:
    collector = RecordColumns(start, end)
    before = 0
    for batch in read_batches(log):
        before += collector.add(batch.info, batch.payload)
        assert collector.count == before
    return collector.finish()


def rows(columns: Columns) -> list[Record]:
    offsets, timestamps = memoryview(columns.offsets), memoryview(columns.timestamps)
    starts = memoryview(columns.header_offsets)
    assert (offsets.format, timestamps.format, starts.format) == ("q", "q", "i")
    assert len(starts) == len(columns) + 1
    found = []
    for row in range(len(columns)):
        pairs = []
        for header in range(starts[row], starts[row + 1]):
            name = columns.header_names[header]
            assert name is not None
            pairs.append((name.decode(), columns.header_values[header]))
        found.append(Record(offsets[row], timestamps[row], columns.keys[row], columns.values[row], pairs))
    return found


@given(st.lists(record_lists, max_size=4), st.integers(0, 60), st.integers(0, 60))
def test_columns_hold_what_the_records_hold(pieces: list[list[Record]], start: int, end: int) -> None:
    log = encode_log(pieces)
    columns = columns_of(log, start, end)
    expected = [record for record in read_records(log) if start <= record.offset < end]
    assert rows(columns) == expected
    assert columns.count == len(expected)
    for column, values in (
        (columns.keys, [record.key for record in expected]),
        (columns.values, [record.value for record in expected]),
        (columns.header_values, [value for record in expected for _, value in record.headers]),
    ):
        assert column.null_count == values.count(None)
        bits = [memoryview(column.validity)[row >> 3] >> (row & 7) & 1 for row in range(len(column))]
        assert bits == [value is not None for value in values]
        assert len(memoryview(column.validity)) == (len(values) + 7) // 8
        assert bytes(memoryview(column.data)) == b"".join(value or b"" for value in values)


def test_nothing_at_all_is_empty_columns() -> None:
    columns = RecordColumns().finish()
    assert len(columns) == len(columns.keys) == len(columns.header_names) == 0
    assert list(memoryview(columns.keys.offsets)) == list(memoryview(columns.header_offsets)) == [0]
    assert bytes(memoryview(columns.offsets)) == bytes(memoryview(columns.values.data)) == b""


def test_a_log_append_time_batch_gives_its_time_and_a_control_batch_nothing() -> None:
    log = encode_batch([(1, None, b"a"), (2, None, b"b")], log_append_time=77)
    log += encode_control_batch(
        ControlType.ABORT, 5, producer_id=1, producer_epoch=0, coordinator_epoch=0, base_offset=2
    )
    assert list(memoryview(columns_of(log).timestamps)) == [77, 77]


def test_a_broken_batch_leaves_what_was_there_before() -> None:
    pieces = [[Record(0, 5, b"k" * i, None if i % 2 else b"v", [("h", b"x")] * i) for i in range(11)]]
    (good,) = read_batches(encode_log(pieces))
    collector = RecordColumns()
    collector.add(good.info, good.payload)
    size = collector.size
    payload = bytes(good.payload)
    for cut in range(len(payload)):
        with pytest.raises(InvalidBatch):
            collector.add(good.info, payload[:cut])
        assert (collector.count, collector.size) == (11, size)
    assert collector.add(good.info, payload) == 11
    assert rows(collector.finish()) == good.records() * 2


def test_rubbish_raises_only_errors_of_ours() -> None:
    data = encode_log(
        [[Record(0, 5, b"key", b"value", [("name", b"content"), ("none", None)]), Record(1, 70_000, None, b"")]]
    )
    (batch,) = read_batches(data)
    refused = parser_cases.feed(
        lambda payload: RecordColumns().add(batch.info, payload), bytes(batch.payload), every_bit=True
    )
    assert refused > len(batch.payload)


def test_a_count_that_the_bytes_cannot_hold_takes_no_memory() -> None:
    data = model.encode_batch(model.Batch((model.Record(0, 0, None, b""),), record_count=2**31 - 1))
    with pytest.raises(InvalidBatch) as refused:
        RecordColumns().add(record_batch.header(data), data[61:])
    assert refused.value.name == "BATCH_BAD_COUNT"


def test_columns_own_their_memory_and_are_read_only() -> None:
    columns = columns_of(encode_batch([(5, b"key", b"value")]))
    view = memoryview(columns.values.data)
    del columns
    gc.collect()
    assert bytes(view) == b"value"
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_row_that_is_not_there_is_an_error() -> None:
    keys = columns_of(encode_batch([(5, b"key", b"value")])).keys
    for row in (-1, 1):
        with pytest.raises(IndexError):
            keys[row]
