"""Targets of decoders: values of records as JSON texts and as Avro, and the schemas that a registry hands out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_value

from kbroker.spark.decoding.avro_schemas import Schema, parsed, spark_type
from kbroker.spark.decoding.decoders import AvroDecoder, Decoded, Decoder, JsonDecoder
from tests.fuzz.target import Target

SEPARATOR = b"\x1e"
"""Between JSON texts: it is in none."""
EVERYTHING = [
    ("i", pa.int32()), ("b", pa.int8()), ("l", pa.int64()), ("d", pa.float64()), ("f", pa.float32()),
    ("yes", pa.bool_()), ("dec", pa.decimal128(9, 2)), ("large", pa.decimal128(38, 10)), ("day", pa.date32()),
    ("t", pa.timestamp("us", "UTC")), ("tn", pa.timestamp("us")), ("bin", pa.binary()), ("s", pa.string()),
    ("none", pa.null()), ("list", pa.list_(pa.int16())), ("m", pa.map_(pa.string(), pa.float64())),
]  # fmt: skip
KINDS = [
    pa.struct([*EVERYTHING, ("in", pa.struct([*EVERYTHING, ("all", pa.list_(pa.struct(EVERYTHING)))]))]),
    pa.list_(pa.list_(pa.map_(pa.string(), pa.struct([("s", pa.string()), ("", pa.decimal128(38, 38))])))),
    pa.map_(pa.string(), pa.list_(pa.binary())),
    pa.struct([(f"field {i}", pa.int32()) for i in range(200)]),
    pa.decimal128(20, 5),
    pa.string(),
]


def shown(values: pa.Array) -> str:
    """What is equal where NaN is equal to itself; Python has no dates after the year 9999."""
    return str(values.to_string(window=1024, container_window=1024, element_size_limit=1 << 20))


def decoded(decoder: Decoder, values: list[bytes]) -> Decoded:
    """Well-formed as Arrow has it, and each value the same as alone: nothing of a bad one is left to the next."""
    together = decoder.decode(pa.array(values, pa.binary()))
    together.values.validate(full=True)
    assert len(together.values) == len(values)
    for row, value in enumerate(values[:4]):
        alone = decoder.decode(pa.array([value], pa.binary()))
        assert shown(alone.values) == shown(together.values[row : row + 1])
        assert alone.reasons[0] == together.reasons[row], (alone.reasons, together.reasons)
    return together


# --- JSON -------------------------------------------------------------------------------------------------


@cache
def json_decoder(which: int) -> JsonDecoder:
    return JsonDecoder(KINDS[which])


def feed_json(data: bytes) -> None:
    """A byte that picks the type, then texts: each is a value or bad, whatever it is between."""
    if data:
        decoded(json_decoder(data[0] % len(KINDS)), data[1:].split(SEPARATOR))


def json_seeds() -> Iterator[bytes]:
    texts = [
        b'{"i": -1, "b": 128, "l": 9223372036854775807, "d": 1.5e-7, "f": -0.0, "yes": true, "none": [{}]}',
        b'{"dec": "12.345", "large": 1e-9, "day": "2024-02-29", "t": "2024-01-02T03:04:05.678+01:30", "bin": "aGk="}',
        b'{"tn": "2024-01-02 03:04", "s": "\\u20ac\\ud83d\\ude00\\n", "list": [1, null], "m": {"a": NaN, "b": "-INF"}}',
        b'{"in": {"all": [{"s": {"raw": [1]}}, {"t": 1700000000}, null]}, "s": \'single\', "s": "twice"}',
    ]
    yield b"\0" + SEPARATOR.join(texts)
    yield b"\1" + SEPARATOR.join([b'[[{"a": {"s": "x", "": 0.5}}], []]', b"[[{}", b" ", b"null"])
    yield b"\2" + SEPARATOR.join([b'{"a": ["YWI=", "YQ=="], "b": null}', b'{"a": [1]}'])
    yield b'\3{"field 3": 1, "field 199": 2, "field 0": 3}'
    yield b"\4" + SEPARATOR.join([b"1.5", b'"1e3"', b"x"])
    yield b"\5" + SEPARATOR.join([b'"x"', b"[1, 2]", b"-1e5"])


# --- Avro -------------------------------------------------------------------------------------------------


def record(name: str, *fields: tuple[str, Any] | tuple[str, Any, Any]) -> dict[str, Any]:
    made = [{"name": each[0], "type": each[1], **({"default": each[2]} if len(each) == 3 else {})} for each in fields]
    return {"type": "record", "name": name, "fields": made}


INNER = record("Inner", ("x", ["null", "double"]), ("y", {"type": "array", "items": "string"}))
WRITERS: list[Any] = [
    record(
        "R", ("l", "long"), ("u", ["null", "string", "int"]), ("a", {"type": "array", "items": INNER}),
        ("m", {"type": "map", "values": ["null", "long"]}), ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("f", {"type": "fixed", "name": "F", "size": 3}), ("yes", "boolean"), ("half", "float"),
        ("dec", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
        ("t", {"type": "long", "logicalType": "timestamp-millis"}), ("day", {"type": "int", "logicalType": "date"}),
    ),
    record(
        "R", ("a", {"type": "array", "items": {"type": "array", "items": "null"}}),
        ("m", {"type": "map", "values": "null"}),
    ),
    record(
        "R", ("a", {"type": "array", "items": record("Empty")}), ("l", "int"),
        ("u", ["string", {"type": "array", "items": "int"}]),
    ),
    "bytes",
    {"type": "array", "items": {"type": "map", "values": {"type": "array", "items": ["null", "string"]}}},
]  # fmt: skip
READER = record(
    "R", ("l", "double", 7), ("u", ["null", "string", "long", {"type": "array", "items": "long"}], None),
    ("a", {"type": "array", "items": record("Inner", ("x", ["null", "double"], None), ("z", "string", "zzz"))}, []),
    ("new", {"type": "map", "values": INNER}, {"k": {"x": 1.5, "y": ["q"]}}),
    ("e", {"type": "enum", "name": "E", "symbols": ["B"], "default": "B"}, "B"),
)  # fmt: skip


def arrow_type(schema: Schema) -> pa.DataType:
    found = spark_type(schema)
    is_struct = isinstance(found, dict) and found["type"] == "struct"
    kind: DataType = StructType.fromJson(found) if is_struct else _parse_datatype_json_value(found)
    return to_arrow_type(kind, timezone="UTC")


@cache
def avro_decoder(which: int) -> AvroDecoder:
    """Make a decoder: of values that writer `which` has written, or the last one of values with an id.

    The last one reads with READER; the id is a place in WRITERS or unknown.
    """
    if which < len(WRITERS):
        schema = parsed(json.dumps(WRITERS[which]))
        return AvroDecoder(arrow_type(schema), schema, None)
    schemas: list[Schema | None] = [parsed(json.dumps(each)) for each in WRITERS[:3]]
    schema = parsed(json.dumps(READER))
    return AvroDecoder(arrow_type(schema), schema, lambda n: schemas[n] if 0 <= n < 3 else None)


def feed_avro(data: bytes) -> None:
    """A byte that picks the schema, then values, each behind a byte that is its size."""
    if not data:
        return
    at, values = 1, []
    while at < len(data):
        values.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    decoded(avro_decoder(data[0] % (len(WRITERS) + 1)), values)


def avro_seeds() -> Iterator[bytes]:
    def sized(*values: bytes) -> bytes:
        return b"".join(bytes([len(each)]) + each for each in values)

    whole = b"\x0e\x02\x04xy\x02\x02" + b"\0" * 6 + b"\xf8?\x02\x02q\0\0\x02\x02k\x02\x08\0\x02abc\x01"
    whole += b"\0\0\x80?\x04\x04\xd2\x02\x02"
    yield b"\0" + sized(whole, whole[:-1], b"")
    yield b"\1" + sized(b"\x04\x04\0\x80\x80\x08\0\0\x02\x02k\0", b"\x01\x08\x02\0\0\0")
    yield b"\2" + sized(b"\x06\0\x05\0\x02x", b"\0\x05\x02\x04\x02\x04\0")
    yield b"\3" + sized(b"\x06abc", b"\x07", b"\xff" * 10)
    yield b"\4" + sized(b"\x02\x02\x02k\x04\0\x02\x02x\0\0\0")
    yield b"\5" + sized(b"\0\0\0\0\0" + whole, b"\0\0\0\0\2\x06\0\x05\0\x02x", b"\0\0\0\0\7\0", b"\1", b"\0\0")


def feed_avro_schema(data: bytes) -> None:
    """Schema, writer's schema and value, with zero bytes between: no schemas, or such as read the value or do not."""
    texts, _, value = data.rpartition(b"\0")
    reader, _, writer = texts.decode("utf-8", "replace").partition("\0")
    try:
        schema = parsed(reader)
        written = parsed(writer) if writer else schema
        plain = AvroDecoder(arrow_type(schema), schema, None)
    except ValueError:
        return
    decoded(plain, [value, b"", value[1:]])
    decoded(AvroDecoder(arrow_type(schema), schema, lambda _: written), [b"\0\0\0\0\0" + value])


def avro_schema_seeds() -> Iterator[bytes]:
    texts = [json.dumps(each, separators=(",", ":")).encode() for each in (READER, *WRITERS, "int")]
    yield from (each + b"\0\x02\x02" for each in texts)
    yield texts[0] + b"\0" + texts[1] + b"\0\x02\x02"
    for kind in ("string", {"type": "array", "items": "int"}, {"type": "map", "values": 5}):
        yield json.dumps(record("R", ("x", kind, 7))).encode() + b"\0" + json.dumps(record("R")).encode() + b"\0"
    me = json.dumps(record("Me", ("next", ["null", "Me"]), ("all", {"type": "array", "items": "Me"}), ("n", "int")))
    yield me.encode() + b"\0\0"
    yield json.dumps(record("Me", ("n", "int"))).encode() + b"\0" + me.encode() + b"\0\2\0\0\2\2\0\0\4\0\6"


TARGETS = [
    Target("json-values", feed_json, json_seeds, 1024, share=3),
    Target("avro-values", feed_avro, avro_seeds, 512, share=3),
    Target("avro-schema", feed_avro_schema, avro_schema_seeds, 2048),
]
