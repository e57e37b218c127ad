"""Avro's binary encoding as typed columns."""

from __future__ import annotations

import datetime
import io
import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType, _parse_datatype_json_value

from kbroker.spark.decoding.avro_schemas import parsed, spark_type
from kbroker.spark.decoding.decoders import AvroDecoder, Decoded

UTC = datetime.UTC
NEW_YEAR = datetime.datetime(2024, 1, 1, tzinfo=UTC)
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


def arrow_type(schema: Any) -> pa.DataType:
    found = spark_type(parsed(json.dumps(schema)))
    kind = StructType.fromJson(found) if isinstance(found, dict) and found["type"] == "struct" else None
    return to_arrow_type(kind or _parse_datatype_json_value(found), timezone="UTC")


def encode(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def decode(schema: Any, *values: bytes | None, written_with: Callable[[int], Any] | None = None) -> Decoded:
    """Values without a header unless it is said what they were written with."""
    lookup = None if written_with is None else (lambda n: (w := written_with(n)) and parsed(json.dumps(w)))
    found = AvroDecoder(arrow_type(schema), parsed(json.dumps(schema)), lookup).decode(pa.array(values, pa.binary()))
    found.values.validate(full=True)
    assert len(found.values) == len(values)
    return found


def record(*fields: tuple[str, Any] | tuple[str, Any, Any], name: str = "R") -> dict[str, Any]:
    made = [{"name": each[0], "type": each[1], **({"default": each[2]} if len(each) == 3 else {})} for each in fields]
    return {"type": "record", "name": name, "fields": made}


def reread(writer: Any, reader: Any, value: Any) -> Any:
    """A field's value as another schema has it."""
    (found,) = decode(
        record(("v", reader)),
        b"\0\0\0\0\1" + encode(record(("v", writer)), {"v": value}),
        written_with=lambda _: record(("v", writer)),
    ).values.to_pylist()
    return found["v"]


def of_long(logical: str) -> dict[str, str]:
    return {"type": "long", "logicalType": logical}


def of_decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ("long", -(1 << 63), -(1 << 63)),
        ("int", -1, -1),
        ("float", 1.5, 1.5),
        ("string", "ä", "ä"),
        ("bytes", b"\0\xff", b"\0\xff"),
        ("null", None, None),
        (["null", "string"], None, None),
        (["string", "null"], "x", "x"),
        (["int", "long"], 1 << 40, 1 << 40),
        (["null", "float", "double"], 0.1, 0.1),
        (["int", "string"], "x", {"member0": None, "member1": "x"}),
        (["null", "int", "string"], None, None),
        ({"type": "int", "logicalType": "date"}, datetime.date(2024, 2, 29), datetime.date(2024, 2, 29)),
        (of_long("timestamp-millis"), NEW_YEAR, NEW_YEAR),
        (
            of_long("timestamp-micros"),
            datetime.datetime(1950, 1, 1, 0, 0, 0, 7, UTC),
            datetime.datetime(1950, 1, 1, 0, 0, 0, 7, UTC),
        ),
        (of_long("local-timestamp-millis"), datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}, Decimal("-1.25"), Decimal("-1.25")),
        (
            {"type": "fixed", "name": "F", "size": 20, "logicalType": "decimal", "precision": 9, "scale": 0},
            Decimal(-7),
            Decimal(-7),
        ),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "array", "items": ["null", "int"]}, [1, None], [1, None]),
        ({"type": "array", "items": "null"}, [None] * 100, [None] * 100),
        (
            {"type": "map", "values": {"type": "array", "items": "string"}},
            {"a": ["x"], "b": []},
            [("a", ["x"]), ("b", [])],
        ),
    ],
)
def test_values_become_what_spark_has_for_their_type(schema: Any, value: Any, expected: Any) -> None:
    around = record(("before", "int"), ("v", schema), ("after", "string"))
    found = decode(around, encode(around, {"before": 3, "v": value, "after": "x"}))
    assert found.values.to_pylist() == [{"before": 3, "v": expected, "after": "x"}]
    assert len(found.bad_rows) == 0


def test_a_schema_need_be_no_record() -> None:
    assert decode("string", encode("string", "x"), None).values.to_pylist() == ["x", None]


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", "double", 3, 3.0),
        ("long", "float", 3, 3.0),
        ("int", "long", -3, -3),
        ("float", "double", 1.5, 1.5),
        ("string", "bytes", "ä", "ä".encode()),
        ("bytes", "string", b"x", "x"),
        ("int", ["null", "int"], 3, 3),
        ("int", ["null", "string", "long"], 3, {"member0": None, "member1": 3}),
        (["null", "int"], "int", 3, 3),
        (["string", "int"], ["int", "null"], 3, 3),
        (of_long("timestamp-millis"), of_long("timestamp-millis"), NEW_YEAR, NEW_YEAR),
        (of_long("timestamp-millis"), of_long("timestamp-micros"), NEW_YEAR, NEW_YEAR),
        (of_long("timestamp-micros"), ["null", of_long("timestamp-millis")], NEW_YEAR, NEW_YEAR),
        ("long", of_long("timestamp-millis"), 1_704_067_200_000, NEW_YEAR),
        (of_long("timestamp-millis"), "long", NEW_YEAR, 1_704_067_200_000),
        (of_decimal(10, 2), of_decimal(20, 2), Decimal("12.34"), Decimal("12.34")),
        ("bytes", of_decimal(10, 2), b"\x04\xd2", Decimal("12.34")),
        (
            record(("a", "int"), ("b", "string"), name="I"),
            record(("b", "string"), ("c", "int", 7), name="I"),
            {"a": 1, "b": "x"},
            {"b": "x", "c": 7},
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            "B",
            "A",
        ),
        ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "double"]}, [1], [1.0]),
    ],
)
def test_a_schema_is_read_as_a_later_one(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert reread(writer, reader, value) == expected


def test_what_is_not_wanted_is_skipped_whatever_it_is() -> None:
    everything = record(
        ("u", ["null", "string"]),
        ("a", {"type": "array", "items": "long"}),
        ("m", {"type": "map", "values": "bytes"}),
        ("f", {"type": "fixed", "name": "F", "size": 3}),
        ("e", {"type": "enum", "name": "E", "symbols": ["A"]}),
        ("r", record(("x", "double"), ("y", "boolean"), ("z", "float"), name="I")),
        ("last", "int"),
    )
    value = {
        "u": "x",
        "a": [1, 2],
        "m": {"k": b"v"},
        "f": b"abc",
        "e": "A",
        "r": {"x": 1.0, "y": True, "z": 2.0},
        "last": 7,
    }
    found = decode(
        record(("last", "int")), b"\0\0\0\0\1" + encode(everything, value), written_with=lambda _: everything
    )
    assert found.values.to_pylist() == [{"last": 7}]


NODE = record(
    ("next", ["null", "Node"]),
    ("all", {"type": "array", "items": "Node"}),
    ("by", {"type": "map", "values": ["null", {"type": "array", "items": "Node"}]}),
    ("n", "int"),
    name="Node",
)


def node(**parts: Any) -> dict[str, Any]:
    return {"next": None, "all": [], "by": {}, "n": 1, **parts}


def chain(length: int) -> dict[str, Any]:
    found = node()
    for _ in range(length - 1):
        found = node(next=found)
    return found


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        (
            record(("node", NODE), ("last", "int")),
            record(("last", "int")),
            {"node": node(next=node(all=[node(), node()]), by={"a": [node(next=node())], "b": None}), "last": 7},
            {"last": 7},
        ),
        (NODE, record(("n", "int"), name="Node"), node(next=node(n=2), all=[node(n=3)], n=4), {"n": 4}),
        (
            NODE,
            record(("next", ["null", record(("n", "int"), name="Next")]), ("n", "int"), name="Node"),
            node(next=node(n=2, next=node(n=3)), n=4),
            {"next": {"n": 2}, "n": 4},
        ),
    ],
    ids=["beside it", "around it", "some of it"],
)
def test_what_contains_itself_is_skipped(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    found = decode(reader, b"\0\0\0\0\1" + encode(writer, value), written_with=lambda _: writer)
    assert found.values.to_pylist() == [expected]


def test_what_contains_itself_without_end_is_bad() -> None:
    reader, endless = record(("n", "int"), name="Node"), record(("me", "Node"), ("n", "int"), name="Node")
    values = [b"\0\0\0\0\1" + encode(NODE, node(next=chain(length), n=5)) for length in (1, 1000, 1002, 2)]
    found = decode(reader, *values, b"\0\0\0\0\2\2", written_with={1: NODE, 2: endless}.get)
    assert found.reasons.to_pylist() == [None, None, "it is nested too deeply", None, "it is nested too deeply"]
    assert found.values.to_pylist() == [{"n": 5}, {"n": 5}, {"n": None}, {"n": 5}, {"n": None}]


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("boolean", True, True),
        ("bytes", "\u00ff\u0000", b"\xff\0"),
        ("double", 3, 3.0),
        (["null", "string"], None, None),
        (["string", "null"], "x", "x"),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        ({"type": "array", "items": "string"}, [], []),
        (record(("x", "int"), ("y", "string", "q"), name="D"), {"x": 1}, {"x": 1, "y": "q"}),
        (of_long("timestamp-millis"), 1000, datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ],
)
def test_what_was_not_written_has_its_default(kind: Any, default: Any, expected: Any) -> None:
    writer = record(("a", "int"))
    found = decode(
        record(("v", kind, default)), b"\0\0\0\0\1" + encode(writer, {"a": 1}), written_with=lambda _: writer
    )
    assert found.values.to_pylist() == [{"v": expected}]


@pytest.mark.parametrize(
    ("writer", "reader", "says"),
    [
        ("string", "int", "v was written as string and is wanted as int"),
        ("int", ["null", "string"], "v was written as int, which the union that is wanted has not"),
        ("null", "int", "v was written as null"),
        (of_decimal(10, 2), of_decimal(10, 4), "v was written with scale 2 and is wanted with scale 4"),
        (of_decimal(10, 2), ["null", of_decimal(10, 0)], "v was written with scale 2 and is wanted with scale 0"),
        (
            record(("x", "int"), name="I"),
            record(("x", "int"), ("y", "int"), name="I"),
            "v.y was not written, and has no default",
        ),
        (
            record(("x", "int"), name="I"),
            record(("y", "int", "no"), name="I"),
            "v.y has a default that is not of its type",
        ),
    ],
)
def test_what_cannot_be_read_as_another_is_bad_and_named_once(
    writer: Any, reader: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    writers = {1: record(("v", writer)), 2: record(("v", reader), name="Other")}
    found = decode(record(("v", reader)), *[b"\0\0\0\0\1"] * 3, written_with=writers.get)
    assert found.reasons.to_pylist() == ["its schema cannot be read as the one that is wanted"] * 3
    (logged,) = caplog.messages
    assert f"schema 1 cannot be read as the one that is wanted: {says}" in logged


def test_more_unknown_schemas_than_are_remembered() -> None:
    asked = []
    values = [b"\0" + number.to_bytes(4, "big") + b"\2" for number in [*range(200), 7, 199, 199]]

    def written_with(number: int) -> Any:
        asked.append(number)
        return "int" if number == 7 else None

    found = decode("int", *values, written_with=written_with)
    assert [row for row, value in enumerate(found.values.to_pylist()) if value == 1] == [7, 200]
    assert asked == list(range(200))
    assert len(found.bad_rows) == 201


def test_a_branch_that_cannot_be_read_is_bad_only_where_it_is_met() -> None:
    writer, reader = record(("v", ["int", "string"])), record(("v", "int"))
    values = [b"\0\0\0\0\1" + encode(writer, {"v": value}) for value in (1, "x", 2)]
    found = decode(reader, *values, written_with=lambda _: writer)
    assert [row["v"] for row in found.values.to_pylist()] == [1, None, 2]
    assert found.bad.to_pylist() == [False, True, False]


def test_each_schema_is_asked_for_once_and_names_decide() -> None:
    schemas = {
        7: record(("a", "int"), ("b", "string")),
        8: record(("b", "string"), ("a", "long")),
    }
    asked = []

    def written_with(schema_id: int) -> Any:
        asked.append(schema_id)
        return schemas.get(schema_id)

    def framed(schema_id: int) -> bytes:
        return b"\0" + schema_id.to_bytes(4, "big") + encode(schemas[schema_id], {"a": 1, "b": "x"})

    values = [framed(7), framed(8), b"\0\0\0\0\x09", None, framed(7), b"\1" + framed(7)[1:], b"\0\0\0", b""]
    found = decode(record(("a", "long"), ("b", "string")), *values, *values, written_with=written_with)
    good = {"a": 1, "b": "x"}
    bad = {"a": None, "b": None}
    assert found.values.to_pylist() == [good, good, bad, None, good, bad, bad, bad] * 2
    no_id = "it does not begin with a schema's id"
    assert found.reasons.to_pylist() == [None, None, "its schema is not known", None, None, no_id, no_id, no_id] * 2
    assert asked == [7, 8, 9]


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("long", b"", "it ends too early"),
        ("long", b"\x80" * 11, "it ends too early"),
        ("int", b"\xff\xff\xff\xff\x7f", "it ends too early"),
        ("double", b"\0" * 7, "it ends too early"),
        ("string", b"\x04a", "it ends too early"),
        ("string", b"\x01", "it has an impossible length"),
        ("string", b"\x02\xff", "it is not UTF-8"),
        ("boolean", b"\x02", "it is not of the column's type"),
        (["null", "int"], b"\x04", "a union has no such branch"),
        (["null", "int"], b"\x01", "a union has no such branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "an enum has no such symbol"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "it has an impossible length"),
        (
            {"type": "array", "items": "null"},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "it has an impossible length",
        ),
        (
            {"type": "array", "items": "null"},
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "it has an impossible length",
        ),
        ({"type": "array", "items": "int"}, b"\x02\x02", "it ends too early"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            b"\x02\x64",
            "it is not of the column's type",
        ),
        ("int", b"\x02\x02", "there are bytes behind its end"),
    ],
)
def test_a_bad_value_is_said_to_be_so_between_good_ones(schema: Any, value: bytes, reason: str) -> None:
    around = record(("first", "string"), ("v", schema))
    kind = schema["type"] if isinstance(schema, dict) else str(schema)
    good = {"long": 5, "int": 5, "double": 5.0, "string": "s", "boolean": True, "enum": "A", "array": []}.get(kind)
    good = Decimal(5) if kind == "bytes" else good
    fine = encode(around, {"first": "x", "v": good})
    found = decode(around, fine, b"\x02x" + value, fine)
    assert found.reasons.to_pylist() == [None, reason, None]
    rows = found.values.to_pylist()
    assert rows[0] == rows[2] and rows[0]["first"] == "x"
    assert rows[1] == {"first": None, "v": None}


def test_empty_items_do_not_fill_the_memory() -> None:
    """Each inner array takes four bytes, and says that it has as many items as all of a value's may have."""
    schema = record(("v", {"type": "array", "items": {"type": "array", "items": "null"}}))
    most = b"\x80\x80\x08" + b"\0"  # 65536 of nothing
    none = b"\0"
    found = decode(schema, b"\x04" + most + none + b"\0", b"\x04" + most + most + b"\0", b"\x02" + most + b"\0")
    assert found.reasons.to_pylist() == [None, "it has an impossible length", None]
    assert [len(row["v"] or ()) for row in found.values.to_pylist()] == [2, 0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "17",
        '{"type": "record"}',
        '"Unknown"',
        '{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
        '{"type": "enum", "name": "E"}',
        "[" * 200 + "]" * 200,
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": {"type": 1}}',
        '{"type": "fixed", "name": "F", "size": 1e400}',
        '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
        '{"type": "record", "name": "R", "fields": [{"name": "\\ud800", "type": "int"}]}',
    ],
)
def test_what_is_no_schema_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match="an Avro schema"):
        parsed(text)


def test_a_schema_that_contains_itself_has_no_type() -> None:
    with pytest.raises(ValueError, match="does not contain itself"):
        spark_type(parsed(json.dumps(record(("next", ["null", "R"])))))


def doubling(levels: int) -> dict[str, Any]:
    """A schema of `levels` names that is 2**levels of them written out."""
    found = record(("x", "int", 0), name="R0")
    for level in range(1, levels + 1):
        found = record(("a", found, {}), ("b", f"R{level - 1}", {}), name=f"R{level}")
    return found


def test_a_short_schema_that_means_very_much_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="an Avro schema of at most 10000 parts"):
        arrow_type(doubling(50))
    decode(record(("x", "int", 0)), b"\0\0\0\0\1", written_with=lambda _: doubling(50))
    assert "it has more than 10000 parts" in caplog.text


def test_a_short_default_that_means_very_much_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    schema = record(("v", {"type": "array", "items": doubling(9)}, [{}] * 200))
    decode(schema, b"\0\0\0\0\1", written_with=lambda _: record(("a", "int")))
    assert "it has more than 10000 parts" in caplog.text


@pytest.mark.parametrize(
    "kind", [{"type": "array", "items": "int"}, ["null", record(("x", "int"), name="X")]], ids=["defaults", "nulls"]
)
def test_a_short_value_of_very_many_nulls_is_bad(kind: Any) -> None:
    """What a reader has more than the writer is made for each item."""
    fields = [(f"f{number}", "long", 7) for number in range(1000)]
    if isinstance(kind, list):
        writer = record(("a", {"type": "array", "items": ["null", record(*fields, name="I")]}))
        reader, item = writer, None
    else:
        writer = record(("a", {"type": "array", "items": record(("x", "int"), name="I")}))
        reader, item = record(("a", {"type": "array", "items": record(*fields, name="I")})), {"x": 1}
    few, many = (b"\0\0\0\0\1" + encode(writer, {"a": [item] * count}) for count in (1, 1000))
    found = decode(reader, few, many, few, written_with=lambda _: writer)
    assert found.reasons.to_pylist() == [None, "its lists and maps are of structs that lack too much", None]
    assert found.values[0] == found.values[2] and len(found.values[0]["a"]) == 1


# --- any schema, any value --------------------------------------------------------------------------------


@st.composite
def schemas_and_values(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """A schema, a value as fastavro takes it, and as Spark has it."""
    names = iter(range(1000))

    def schema_at(depth: int) -> tuple[Any, st.SearchStrategy[tuple[Any, Any]]]:
        nested = ["array", "map", "record", "optional", "union"] if depth < 3 else []
        kind = draw(st.sampled_from([*LEAVES, *nested]))
        if kind == "array":
            inner, values = schema_at(depth + 1)
            return {"type": "array", "items": inner}, st.lists(values, max_size=3).map(
                lambda found: ([a for a, _ in found], [b for _, b in found])
            )
        if kind == "map":
            inner, values = schema_at(depth + 1)
            return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=3), values, max_size=3).map(
                lambda found: ({k: a for k, (a, _) in found.items()}, [(k, b) for k, (_, b) in found.items()])
            )
        if kind == "record":
            fields = [(f"f{i}", schema_at(depth + 1)) for i in range(draw(st.integers(0, 3)))]
            return record(
                *((name, inner) for name, (inner, _) in fields), name=f"R{next(names)}"
            ), st.fixed_dictionaries({name: values for name, (_, values) in fields}).map(
                lambda found: ({k: a for k, (a, _) in found.items()}, {k: b for k, (_, b) in found.items()})
            )
        if kind == "optional":
            inner, values = draw(st.sampled_from([(x, LEAVES[x]) for x in LEAVES]))
            return ["null", inner], st.none().map(lambda _: (None, None)) | values.map(lambda v: (v, v))
        if kind == "union":
            return ["int", "string", "null"], (
                st.integers(-(1 << 31), (1 << 31) - 1).map(lambda v: (v, {"member0": v, "member1": None}))
                | st.text(max_size=3).map(lambda v: (v, {"member0": None, "member1": v}))
                | st.none().map(lambda _: (None, None))
            )
        return kind, LEAVES[kind].map(lambda v: (v, v))

    inner, values = schema_at(0)
    value, expected = draw(values)
    return record(("v", inner)), {"v": value}, {"v": expected}


LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
    "boolean": st.booleans(),
}


@settings(max_examples=200, deadline=None)
@given(schemas_and_values(), st.data())
def test_whatever_is_encoded_is_decoded_and_no_damage_does_harm(
    found: tuple[Any, Any, Any], data: st.DataObject
) -> None:
    schema, value, expected = found
    good = encode(schema, value)
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cuts = [good[:size] for size in range(len(good))][:50]
    got = decode(schema, good, bytes(damaged), *cuts, data.draw(st.binary(max_size=20)), good)
    rows = got.values.to_pylist()
    assert rows[0] == rows[-1] == expected
    assert not got.bad[0].as_py() and not got.bad[-1].as_py()
    assert all(got.bad[2 : 2 + len(cuts)].to_pylist())


# --- any schema as another ----------------------------------------------------------------------------------

ANY_TYPE = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string", "bytes"]),
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda values: {"type": "map", "values": values}),
        inner.filter(lambda each: each != "null" and not isinstance(each, list)).map(lambda each: ["null", each]),
    ),
    max_leaves=3,
)
NARROWER = {"long": ["int"], "float": ["int", "long"], "double": ["int", "long", "float"], "bytes": ["string"]}
DEFAULTS = {"null": None, "boolean": True, "int": -7, "long": 1 << 40, "float": 1.5, "double": -0.25, "string": "ä"}


def default_of(kind: Any) -> Any:
    if isinstance(kind, list):
        return None
    if isinstance(kind, dict):
        return [default_of(kind["items"])] if kind["type"] == "array" else {"k": default_of(kind["values"])}
    return DEFAULTS.get(kind, "\u00e9")


def before(draw: st.DrawFn, kind: Any) -> Any:
    """A type that can be read as this one, and now and then one that cannot."""
    if draw(st.integers(0, 15)) == 0:
        return draw(ANY_TYPE)
    if isinstance(kind, list):
        return draw(st.sampled_from([kind, kind[::-1], before(draw, kind[1]), "null"]))
    if isinstance(kind, dict):
        inner = "items" if kind["type"] == "array" else "values"
        return {"type": kind["type"], inner: before(draw, kind[inner])}
    return draw(st.sampled_from([kind, *NARROWER.get(kind, [])]))


def any_value(draw: st.DrawFn, kind: Any) -> Any:
    """Something is in each list and map: what an item cannot be read as, fastavro finds only where there is one."""
    if isinstance(kind, list):
        return any_value(draw, draw(st.sampled_from(kind)))
    if isinstance(kind, dict):
        if kind["type"] == "array":
            return [any_value(draw, kind["items"]) for _ in range(draw(st.integers(1, 2)))]
        names = draw(st.lists(st.text(max_size=2), min_size=1, max_size=2))
        return {name: any_value(draw, kind["values"]) for name in names}
    if kind == "null":
        return None
    return draw(st.floats(width=32, allow_nan=False)) if kind == "float" else draw(LEAVES[kind])


@st.composite
def schemas_of_two_times(draw: st.DrawFn) -> tuple[Any, Any, Any]:
    """What a value was written with, what it is read as, and the value."""
    fields = {f"f{number}": draw(ANY_TYPE) for number in range(draw(st.integers(1, 4)))}
    reader = [(name, kind, default_of(kind)) for name, kind in fields.items()]
    written = {name: before(draw, kind) for name, kind in fields.items() if draw(st.integers(0, 3))}
    written |= {f"g{number}": draw(ANY_TYPE) for number in range(draw(st.integers(0, 2)))}
    names = draw(st.permutations(list(written)))
    value = {name: any_value(draw, written[name]) for name in names}
    return record(*((name, written[name]) for name in names)), record(*reader), value


def in_spark(kind: Any, value: Any) -> Any:
    """A value of fastavro's as Arrow has it."""
    if isinstance(kind, list):
        return None if value is None else in_spark(next(each for each in kind if each != "null"), value)
    if isinstance(kind, dict) and kind["type"] == "record":
        return {each["name"]: in_spark(each["type"], value[each["name"]]) for each in kind["fields"]}
    if isinstance(kind, dict) and kind["type"] == "array":
        return [in_spark(kind["items"], each) for each in value]
    if isinstance(kind, dict):
        return [(name, in_spark(kind["values"], each)) for name, each in value.items()]
    if kind == "bytes" and isinstance(value, str):  # a default, as it stands in the schema
        return value.encode("latin-1")
    if kind == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    return float(value) if kind == "double" else value


@settings(max_examples=300, deadline=None)
@given(schemas_of_two_times())
def test_what_was_written_with_another_schema_is_read_as_fastavro_reads_it(found: tuple[Any, Any, Any]) -> None:
    writer, reader, value = found
    data = encode(writer, value)
    try:
        model = fastavro.schemaless_reader(
            io.BytesIO(data), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
        )
    except (fastavro.read.SchemaResolutionError, ValueError):
        model = None
    got = decode(reader, b"\0\0\0\0\1" + data, written_with=lambda _: writer)
    assert got.bad.to_pylist() == [model is None], (writer, reader, model)
    if model is not None:
        assert repr(got.values.to_pylist()) == repr([in_spark(reader, model)])
