"""send_many with headers and partitions of each record's own."""

from __future__ import annotations

import array
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker._core.client.producer.accumulator import Accumulator
from tests.unit.core.client.producer.test_record_sender import Row, made, rows

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LARGE = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))

pairs = st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.none() | st.binary(max_size=200))
headers = st.lists(st.none() | st.lists(pairs, max_size=4), max_size=40)


def sorted_rows(accumulator: Accumulator) -> list[Row]:
    """By partition, in the order of each."""
    return sorted(rows(accumulator), key=lambda row: row[0])


def column(given: list[Any], kind: Any = HEADERS) -> pa.Array:
    return pa.array([row and [{"key": k, "value": v} for k, v in row] for row in given], kind)


def forms(given: list[Any]) -> list[Any]:
    """Return the headers in every form in which Arrow may hold them."""
    third = len(given) // 3
    around = [[("before", b"x")], *given, [("behind", None)]]
    return [
        column(given),
        column(given, LARGE),
        column(around)[1:-1],
        pa.chunked_array([column(given[:third]), column(given[third:])], HEADERS),
    ]


@given(headers, st.data())
def test_each_record_has_its_own_headers_and_its_own_partition_or_a_chosen_one(given: list[Any], data: Any) -> None:
    count = len(given)
    partitions = data.draw(st.lists(st.none() | st.integers(0, 2), min_size=count, max_size=count))
    values = pa.array([b"%d" % i for i in range(count)], pa.binary())
    keys = pa.array([b"k%d" % (i % 3) for i in range(count)], pa.binary())
    accumulator, sender = made(3)
    for row, partition, value, key in zip(given, partitions, values.to_pylist(), keys.to_pylist(), strict=True):
        sender.send_nowait("t", value, key, row, partition, 5)
    expected = sorted_rows(accumulator)
    chunked = [pa.chunked_array([pa.array(partitions[:7], pa.int32()), pa.array(partitions[7:], pa.int32())])]
    for of_headers in forms(given):
        for of_partitions in [partitions, pa.array(partitions, pa.int32()), *chunked]:
            accumulator, sender = made(3)
            assert len(sender.send_many("t", values, keys, of_headers, of_partitions, 5)) == count
            assert sorted_rows(accumulator) == expected


def test_a_partitioner_is_asked_where_no_partition_is_given() -> None:
    asked: list[Any] = []

    def partitioner(topic: str, key: Any, count: int) -> int:
        asked.append((topic, key, count))
        return 2

    accumulator, sender = made(3, partitioner=partitioner)
    sender.send_many("t", [b"a", b"b", b"c"], ["x", "y", "z"], partitions=pa.array([0, None, 1], pa.int32()))
    assert [(row[0], row[3]) for row in sorted_rows(accumulator)] == [(0, b"a"), (1, b"c"), (2, b"b")]
    assert asked == [("t", "y", 3)]


def test_all_partitions_null_are_none_given() -> None:
    accumulator, sender = made(1)
    sender.send_many("t", [b"a", b"b"], partitions=pa.array([None, None], pa.int32()))
    assert [row[3] for row in rows(accumulator)] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"headers": pa.array([[1], [2]])}, TypeError, "lists of structs of a name and a value"),
        ({"headers": pa.array([b"a", b"b"])}, TypeError, "an Arrow array of binary"),
        ({"headers": column([[], [], []])}, ValueError, "headers has 3 items for 2 values"),
        ({"headers": column([[(None, b"v")], []])}, ValueError, "the name of a header is null"),
        ({"headers": pa.array([[None], []], HEADERS)}, ValueError, "the name of a header is null"),
        ({"partitions": [0, -1]}, ValueError, "-1 at 1 is negative"),
        ({"partitions": pa.array([None, -1], pa.int32())}, ValueError, "-1 at 1 is negative"),
        ({"partitions": [None, 9]}, ValueError, "partitions 0 to 0, not 9"),
        ({"timestamps": [None, 9]}, TypeError, "must be integers"),
    ],
)
def test_wrong_headers_and_partitions_are_refused(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    accumulator, sender = made()
    with pytest.raises(error, match=says):
        sender.send_many("t", [b"a", b"b"], **arguments)
    assert rows(accumulator) == []


def test_a_null_name_that_no_record_has_is_no_error() -> None:
    accumulator, sender = made()
    sender.send_many("t", [b"a"], headers=column([[(None, b"x")], [("k", b"v")], [(None, b"x")]])[1:2])
    assert [row[4] for row in rows(accumulator)] == [(("k", b"v"),)]


def test_offsets_of_headers_that_leave_their_data_are_refused() -> None:
    lying = pa.Array.from_buffers(
        HEADERS, 2, [None, pa.py_buffer(array.array("i", [0, 9, 1]))], children=[column([[("a", b"")]]).values]
    )
    _, sender = made()
    with pytest.raises(ValueError, match="the offsets do not fit the data"):
        sender.send_many("t", [b"a", b"b"], headers=lying)
