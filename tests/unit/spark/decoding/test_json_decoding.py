"""JSON texts as typed columns."""

from __future__ import annotations

import datetime
import json
import math
import time
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.spark.decoding.decoders import Decoded, JsonDecoder
from tests.kit.models import json as json_model

UTC = datetime.UTC
TIME = pa.timestamp("us", "UTC")
WIDE = pa.struct(
    [
        ("i", pa.int32()),
        ("text", pa.string()),
        ("list", pa.list_(pa.int64())),
        ("inner", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.struct([("z", pa.bool_())])))])),
        ("map", pa.map_(pa.string(), pa.int16())),
    ]
)


def decode(kind: pa.DataType, *values: bytes | None) -> Decoded:
    found = JsonDecoder(kind).decode(pa.array(values, pa.binary()))
    found.values.validate(full=True)
    assert found.bad.to_pylist() == [reason is not None for reason in found.reasons.to_pylist()]
    assert len(found.values) == len(values)
    return found


def decode_field(kind: pa.DataType, text: str) -> Any:
    """Return what a field v is decoded to."""
    (found,) = decode(pa.struct([("v", kind)]), f'{{"v": {text}}}'.encode()).values.to_pylist()
    return found["v"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.int8(), "-128", -128),
        (pa.int8(), "128", None),
        (pa.int64(), "-9223372036854775808", -(1 << 63)),
        (pa.int64(), "9223372036854775808", None),
        (pa.int32(), "1.0", None),
        (pa.int32(), "1e3", None),
        (pa.int32(), '"1"', None),
        (pa.float64(), "1e400", math.inf),
        (pa.float64(), "0.1", 0.1),
        (pa.float64(), "-Infinity", -math.inf),
        (pa.float64(), '"+INF"', math.inf),
        (pa.float64(), '"1.5"', None),
        (pa.float32(), "16777217", 16777216.0),
        (pa.bool_(), "true", True),
        (pa.bool_(), "1", None),
        (pa.string(), "1.50", "1.50"),
        (pa.string(), '{"a": [ 1,2 ]}', '{"a": [ 1,2 ]}'),
        (pa.string(), "null", None),
        (pa.string(), '"\\u20ac\\uD83D\\uDE00\\ud83d\\"\\/\\b\\f\\n\\r\\t"', '€😀?"/\b\f\n\r\t'),
        (pa.string(), "'it\\'s'", "it's"),
        (pa.binary(), '"aGVsbG8="', b"hello"),
        (pa.binary(), '"aGVsbA=="', b"hell"),
        (pa.binary(), '"aGVsbG8"', None),
        (pa.binary(), '"===="', None),
        (pa.binary(), '""', b""),
        (pa.decimal128(5, 2), "123.455", Decimal("123.46")),
        (pa.decimal128(5, 2), "-0.005", Decimal("-0.01")),
        (pa.decimal128(5, 2), "999.995", None),
        (pa.decimal128(5, 2), '"1e2"', Decimal("100.00")),
        (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
        (pa.decimal128(38, 0), "1" + "0" * 38, None),
        (pa.decimal128(38, 10), "1e-999999999999", Decimal(0)),
        (pa.date32(), '"2024-02-29"', datetime.date(2024, 2, 29)),
        (pa.date32(), '"2023-02-29"', None),
        (pa.date32(), '"1969-12-31T23:00"', datetime.date(1969, 12, 31)),
        (pa.date32(), "1", None),
        (TIME, '"2024-01-02T03:04:05.123456789Z"', datetime.datetime(2024, 1, 2, 3, 4, 5, 123456, UTC)),
        (TIME, '"2024-1-2 3:4:5+01:30"', datetime.datetime(2024, 1, 2, 1, 34, 5, 0, UTC)),
        (TIME, '"2024-01-02"', datetime.datetime(2024, 1, 2, tzinfo=UTC)),
        (TIME, "1700000000", datetime.datetime(2023, 11, 14, 22, 13, 20, 0, UTC)),
        (TIME, "1.5", None),
        (TIME, '"2024-01-02T25:00"', None),
        (pa.timestamp("us"), '"2024-01-02T03:04"', datetime.datetime(2024, 1, 2, 3, 4)),
        (pa.timestamp("us"), '"2024-01-02T03:04Z"', None),
        (pa.list_(pa.int32()), "[1, null, 3]", [1, None, 3]),
        (pa.list_(pa.int32()), "[]", []),
        (pa.list_(pa.int32()), '[1, "x"]', None),
        (pa.map_(pa.string(), pa.int32()), '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        (pa.map_(pa.string(), pa.int32()), '{"a": "x"}', None),
        (pa.null(), '{"any": [1]}', None),
    ],
)
def test_values_become_what_their_type_says(kind: pa.DataType, text: str, expected: Any) -> None:
    assert decode_field(kind, text) == expected


def test_only_a_number_with_a_point_can_be_minus_zero() -> None:
    assert str(decode_field(pa.list_(pa.float64()), "[-0, -0.0, -0e0, 0]")) == "[0.0, -0.0, -0.0, 0.0]"
    assert str(decode_field(pa.list_(pa.float32()), "[-0, -0.0]")) == "[0.0, -0.0]"


def test_names_decide_and_not_their_order() -> None:
    found = decode(
        WIDE, b'{"text": "a", "other": [{"i": 5}], "i": 1}', b'{"i": 2, "\\u0074ext": "b"}', b'{"i": 3, "i": 4}', b"{}"
    )
    assert [(row["i"], row["text"]) for row in found.values.to_pylist()] == [
        (1, "a"),
        (2, "b"),
        (4, None),
        (None, None),
    ]
    assert not any(found.bad.to_pylist())


def test_null_and_blank_values_are_null_and_not_bad() -> None:
    found = decode(WIDE, None, b"", b" \n")
    assert found.values.to_pylist() == [None] * 3 and len(found.bad_rows) == 0


def test_a_slice_of_a_column_is_decoded_as_such() -> None:
    values = pa.array([b"{", None, b'{"i": 1}', b'{"i": 2}', b"["], pa.binary()).slice(1, 3)
    found = JsonDecoder(WIDE).decode(values)
    assert [row and row["i"] for row in found.values.to_pylist()] == [None, 1, 2]
    assert len(found.bad_rows) == 0


def test_a_decoder_begins_anew_with_each_column() -> None:
    decoder = JsonDecoder(WIDE)
    for _ in range(3):
        found = decoder.decode(pa.array([b"{", b'{"list": [1]}', b'{"i": "x"}'], pa.binary()))
        assert [row["list"] for row in found.values.to_pylist()] == [None, [1], None]
        assert found.reasons.to_pylist() == ["it is malformed", None, "field i: it is not of the column's type"]


def test_nothing_of_a_bad_value_shows_in_the_next_one() -> None:
    kind = pa.struct([("yes", pa.bool_()), ("list", pa.list_(pa.bool_())), ("text", pa.string()), ("i", pa.int8())])
    bad, good = (
        b'{"yes": true, "list": [true, true], "text": "x", "i": 1',
        b'{"yes": false, "list": [false], "text": ""}',
    )
    rows = decode(kind, *[bad, good] * 10).values.to_pylist()
    assert rows[1::2] == [{"yes": False, "list": [False], "text": "", "i": None}] * 10
    assert rows[::2] == [dict.fromkeys(("yes", "list", "text", "i"))] * 10


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "it is malformed"),
        (b'{"i": 1', "it is malformed"),
        (b'{"i": 1,}', "it is malformed"),
        (b'{"i": 01}', "it is malformed"),
        (b'{"i": tru}', "it is malformed"),
        (b'{"i" 1}', "it is malformed"),
        (b"{i: 1}", "it is malformed"),
        (b'{"list": [1,]}', "it is malformed"),
        (b'{"other": [1}}', "it is malformed"),
        (b'{"text": "a\nb"}', "it is malformed"),
        (b'{"text": "\\x"}', "it is malformed"),
        (b'{"text": "\\u12"}', "it is malformed"),
        (b'{"i": 1} {"i": 2}', "there are bytes behind its end"),
        (b"[1]", "it is not of the column's type"),
        (b"17", "it is not of the column's type"),
        (b"null", "it is not of the column's type"),
        (b'{"text": "\xff"}', "it is not UTF-8"),
        (b'{"other": "\xc3"}', "it is not UTF-8"),
        (b'{"other": ' + b"[" * 2000 + b"]" * 2000 + b"}", "it is nested too deeply"),
    ],
)
def test_a_bad_value_is_fields_of_null_between_good_ones(value: bytes, reason: str) -> None:
    good = b'{"i": 7, "text": "good", "list": [1, 2], "inner": {"y": [{"z": true}]}, "map": {"a": 1}}'
    found = decode(WIDE, good, value, good)
    first, second, third = found.values.to_pylist()
    assert first == third and first["list"] == [1, 2]
    assert second == dict.fromkeys(field.name for field in WIDE)
    assert found.reasons.to_pylist() == [None, reason, None]
    assert found.bad_rows.to_pylist() == [1]


def test_what_is_of_another_type_is_null_and_the_rest_is_kept() -> None:
    inner = b'{"x": true, "y": [{"z": 1}, {"z": true}]}'
    found = decode(WIDE, b'{"i": "x", "text": "kept", "list": [1, {}], "inner": %b, "map": {"a": 1}}' % inner)
    expected = {"x": None, "y": [{"z": None}, {"z": True}]}
    assert found.values.to_pylist() == [{"i": None, "text": "kept", "list": None, "inner": expected, "map": [("a", 1)]}]
    assert found.reasons.to_pylist() == ["field i: it is not of the column's type"]


def test_keys_of_maps_must_be_strings() -> None:
    with pytest.raises(ValueError, match="the keys of a map are strings"):
        JsonDecoder(pa.struct([("m", pa.map_(pa.int32(), pa.int32()))]))
    with pytest.raises(ValueError, match=r"a\.b is of type duration\[us\], which nothing is decoded to"):
        JsonDecoder(pa.struct([("a", pa.struct([("b", pa.duration("us"))]))]))


def wide(count: int) -> pa.DataType:
    return pa.struct([(f"field {number}", pa.int32()) for number in range(count)])


@pytest.mark.parametrize("count", [1, 2, 3, 7, 200, 2000])
def test_each_field_is_found_in_any_order(count: int) -> None:
    names = [field.name for field in wide(count)]
    numbers = list(range(count))
    Random(count).shuffle(numbers)
    texts = [{names[number]: number for number in each} for each in (numbers, sorted(numbers), numbers[::-2])]
    others = {"field": 1, "": 1, f"field {count}": 1, "x" * 10_000: 1, "field 00": 1}
    found = decode(wide(count), *(json.dumps({**others, **each}).encode() for each in texts))
    assert found.values.to_pylist() == [{name: each.get(name) for name in names} for each in texts]


def test_fields_of_a_wide_struct_cost_little_in_any_order() -> None:
    """In order each is found at once, else in a few looks: in all a few times as long. In 9,000 looks: 30 times."""
    ordered = list(range(9_000))
    shuffled = Random(1).sample(ordered, len(ordered))
    decoder = JsonDecoder(wide(9_000))

    def cpu_s(numbers: list[int]) -> float:
        values = pa.array([json.dumps({f"field {number}": 1 for number in numbers}).encode()] * 20, pa.binary())
        started = time.process_time()
        assert len(decoder.decode(values).bad_rows) == 0
        return time.process_time() - started

    assert min(cpu_s(shuffled) for _ in range(3)) < 12 * min(cpu_s(ordered) for _ in range(3))


@pytest.mark.parametrize("item", ["{}", "null", '{"field 7": []}', '{"field 7": 1, "field 7": 1}'])
def test_a_short_value_of_very_many_nulls_is_bad(item: str) -> None:
    kind = pa.struct([("a", pa.list_(pa.struct([("w", wide(2000))]))), ("b", pa.int8())])
    few, many = (f'{{"b": 1, "a": [{", ".join([f"""{{"w": {item}}}"""] * count)}]}}'.encode() for count in (1, 500))
    found = decode(kind, few, many, few)
    reasons = found.reasons.to_pylist()
    assert reasons[1] == "its lists and maps are of structs that lack too much"
    assert found.values[0] == found.values[2] and found.values[0]["b"].as_py() == 1
    assert found.values[1].as_py() == {"a": None, "b": None}
    assert reasons[0] == reasons[2] != reasons[1]


def test_lists_of_structs_of_which_each_has_a_little_are_fine() -> None:
    items = [{f"field {number % 200}": number} for number in range(20_000)]
    (found,) = decode(pa.list_(wide(200)), json.dumps(items).encode()).values.to_pylist()
    assert [{name: number for name, number in each.items() if number is not None} for each in found] == items


# --- any schema, any value --------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "ä", "a b", ""])
LEAVES = st.sampled_from([pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float64()])


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.dictionaries(NAMES, inner, min_size=1, max_size=4).map(lambda found: pa.struct(list(found.items())))


TYPES = structs(
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            structs(inner), inner.map(pa.list_), inner.map(lambda kind: pa.map_(pa.string(), kind))
        ),
        max_leaves=6,
    )
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 66), 1 << 66)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["NaN", "-Infinity", "x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
INDENT = st.sampled_from([None, 1])


@settings(max_examples=300, deadline=None)
@given(kind=TYPES, found=st.lists(st.dictionaries(NAMES, JSON, max_size=4) | JSON, max_size=6), indent=INDENT)
def test_any_text_is_what_the_model_says(kind: pa.DataType, found: list[Any], indent: int | None) -> None:
    texts = [json.dumps(each, indent=indent, ensure_ascii=indent is None) for each in found]
    expected = [json_model.decoded(text, kind) for text in texts]
    got = decode(kind, *(text.encode() for text in texts))
    assert repr(got.values.to_pylist()) == repr([value for value, _ in expected])  # NaN is not equal to itself
    assert got.bad.to_pylist() == [wrong for _, wrong in expected]


WORDS = rb"""{ } [ ] : , " ' \ "i": "list":[ "inner":{ "map":{ "x": 1 - 1e nul null NaN \u \ud83d 0 . "text":" """
PIECES = st.sampled_from([*WORDS.split(), b"\xff", b" ", b"\n", b"\0"])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=20).map(b"".join) | st.binary(max_size=30) | st.none(), max_size=8))
def test_hostile_bytes_are_bad_rows_and_nothing_else(values: list[bytes | None]) -> None:
    good = b'{"i": 1, "list": [1], "inner": {"x": 1}}'
    found = decode(WIDE, good, *values, good)
    assert found.values[0] == found.values[len(values) + 1]
    assert found.values[0].as_py()["list"] == [1]
    for value, got, bad in zip(values, found.values[1:-1].to_pylist(), found.bad.to_pylist()[1:-1], strict=True):
        if value is None:
            assert got is None and not bad
            continue
        try:
            text = value.decode()
            json.loads(text)
        except ValueError:
            continue  # we take more than Python does: quotes of the other kind, for one
        expected, wrong = json_model.decoded(text, WIDE) if '"text":"' not in text else (got, bad)
        assert (got, bad) == (expected, wrong)


def test_a_good_text_that_is_cut_anywhere_is_bad() -> None:
    good = (
        b'{"i": -1, "text": "\\u00e9\xc3\xa9", "list": [1], "inner": {"x": 1.5e3, "y": [{"z": true}]}, "map": {"a": 1}}'
    )
    found = decode(WIDE, *(good[:size] for size in range(1, len(good))))
    assert all(found.bad.to_pylist())
    assert decode(WIDE, good).bad_rows.to_pylist() == []
