"""Avro schemas (specification 1.12): their types in Spark, and how values written with one are read with another.

Types are those of Spark's from_avro. A union of null and one other type is that type. A union of int and long is a
long, one of float and double is a double. Any other union is a struct of member0, member1, ..., one of which is not
null.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from kbroker._core.rows.avro import STEPS
from kbroker._core.rows.typed_columns import KINDS
from kbroker.errors import KbrokerError
from kbroker.spark.decoding.column_types import Spec

Schema = dict[str, Any]
"""A parsed schema. Its `type` is a word of the specification, or "union", with `branches`. Names are resolved."""

PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTED = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
MOST_NESTED = 60
MOST_PARTS = 10_000
"""The most parts of a schema in which names are written out: a short schema can use the same name again and again."""

Step = tuple[int, int, int, Any, tuple[Any, ...]]


class Incompatible(KbrokerError):
    """Values written with one schema cannot be read with another."""


class NotAvro(KbrokerError):
    """A schema is of another kind than Avro, or the text is not a schema."""


class TooLarge(ValueError):
    """A schema has more than MOST_PARTS parts."""


class _Parts:
    """Counts the parts of a schema. Raises TooLarge when there are more than MOST_PARTS."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        self._count += 1
        if self._count > MOST_PARTS:
            raise TooLarge(f"an Avro schema of at most {MOST_PARTS} parts, written out")


# --- schemas ----------------------------------------------------------------------------------------------


def parsed(text: str, references: Iterable[str] = ()) -> Schema:
    """Return the schema in `text`. Raises ValueError when `text` is not an Avro schema.

    `references`: schemas whose names it uses, each behind those whose names it uses itself.
    """
    names: dict[str, Schema] = {}
    for each in references:
        _parsed(_json(each), "", names, 0)
    return _parsed(_json(text), "", names, 0)


def _json(text: str) -> Any:
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # fails for half of a surrogate pair, which no name can have
        return found
    except (ValueError, RecursionError):
        stripped = text.strip()
        if stripped in PRIMITIVE:
            return stripped
        raise ValueError("an Avro schema, which is JSON") from None


def _parsed(found: Any, namespace: str, names: dict[str, Schema], depth: int) -> Schema:
    if depth > MOST_NESTED:
        raise ValueError(f"an Avro schema that is nested at most {MOST_NESTED} times")
    if isinstance(found, list):
        return {"type": "union", "branches": [_parsed(each, namespace, names, depth + 1) for each in found]}
    if isinstance(found, str):
        if found in PRIMITIVE:
            return {"type": found}
        full = found if "." in found or not namespace else f"{namespace}.{found}"
        if full in names or found in names:
            return names.get(full) or names[found]
        raise ValueError(f"an Avro schema: nothing is named {found!r} in it")
    if not isinstance(found, dict) or "type" not in found:
        raise ValueError(f"an Avro schema: {str(found)[:50]!r} is none")
    kind = found["type"]
    if not isinstance(kind, str) or kind not in (*PRIMITIVE, "record", "error", "enum", "fixed", "array", "map"):
        return _parsed(kind, namespace, names, depth + 1)
    if kind in PRIMITIVE:
        return {"type": kind, **_logical(found)}
    try:
        return _composed(kind, found, namespace, names, depth)
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"an Avro schema: its {kind} lacks something") from None


def _composed(kind: str, found: dict[str, Any], namespace: str, names: dict[str, Schema], depth: int) -> Schema:
    if kind == "array":
        return {"type": kind, "items": _parsed(found["items"], namespace, names, depth + 1)}
    if kind == "map":
        return {"type": kind, "values": _parsed(found["values"], namespace, names, depth + 1)}
    name = str(found["name"])
    namespace = str(found.get("namespace") or (name.rpartition(".")[0] if "." in name else namespace))
    full = name if "." in name or not namespace else f"{namespace}.{name}"
    made: Schema = {"type": "record" if kind == "error" else kind, "name": full, **_logical(found)}
    names[full] = made
    if kind == "enum":
        made |= {"symbols": [str(each) for each in found["symbols"]], "default": found.get("default")}
    elif kind == "fixed":
        made["size"] = found["size"]
        if type(made["size"]) is not int or not 0 <= made["size"] < 1 << 31:
            raise ValueError(f"an Avro schema: {full} has an impossible size")
    else:
        made["fields"] = []
        for field in found["fields"]:
            of = {"name": str(field["name"]), "type": _parsed(field["type"], namespace, names, depth + 1)}
            of["aliases"] = [str(each) for each in field.get("aliases", ())]
            if "default" in field:
                of["default"] = field["default"]
            made["fields"].append(of)
        if len({each["name"] for each in made["fields"]}) < len(made["fields"]):
            raise ValueError(f"an Avro schema: {full} has two fields of the same name")
    return made


def _logical(found: dict[str, Any]) -> dict[str, Any]:
    if "logicalType" not in found:
        return {}
    return {"logical": found["logicalType"], "precision": found.get("precision"), "scale": found.get("scale", 0)}


# --- in Spark ---------------------------------------------------------------------------------------------


def spark_type(schema: Schema) -> Any:
    """Return a schema's type as JSON for pyspark.sql.types. Raises ValueError when Spark has no such type."""
    return _spark_type(schema, 0, _Parts())


def _spark_type(schema: Schema, depth: int, parts: _Parts) -> Any:
    parts.add()
    if depth > MOST_NESTED:
        raise ValueError("an Avro schema that does not contain itself")
    kind = schema["type"]
    if kind == "record":
        return _struct([(each["name"], _spark_type(each["type"], depth + 1, parts)) for each in schema["fields"]])
    if kind == "array":
        element = _spark_type(schema["items"], depth + 1, parts)
        return {"type": "array", "elementType": element, "containsNull": True}
    if kind == "map":
        value = _spark_type(schema["values"], depth + 1, parts)
        return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}
    if kind == "union":
        branches = _branches(schema)
        if (one := _collapsed(branches)) is not None:
            return _spark_type(one, depth + 1, parts)
        return _struct([(f"member{i}", _spark_type(each, depth + 1, parts)) for i, each in enumerate(branches)])
    if (precision := _decimal(schema)) is not None:
        return f"decimal({precision},{schema['scale']})"
    plain = {"null": "void", "int": "integer", "bytes": "binary", "fixed": "binary", "enum": "string"}
    return _of_time(schema) or plain.get(kind, kind)


def _struct(fields: list[tuple[str, Any]]) -> Any:
    made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    return {"type": "struct", "fields": made}


def _of_time(schema: Schema) -> str | None:
    logical = schema.get("logical")
    if schema["type"] == "int":
        return "date" if logical == "date" else None
    if schema["type"] != "long":
        return None
    return {
        "timestamp-millis": "timestamp",
        "timestamp-micros": "timestamp",
        "local-timestamp-millis": "timestamp_ntz",
        "local-timestamp-micros": "timestamp_ntz",
    }.get(str(logical))


def _is_decimal(schema: Schema) -> bool:
    return schema["type"] in ("bytes", "fixed") and schema.get("logical") == "decimal"


def _decimal(schema: Schema) -> int | None:
    """Return the precision of a decimal; None for another type. Raises ValueError when Spark has no such decimal."""
    precision, scale = schema.get("precision"), schema.get("scale")
    if not _is_decimal(schema):
        return None
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision <= 38 or not precision:
        raise ValueError("an Avro schema whose decimals have 1 to 38 digits")
    return precision


def _branches(union: Schema) -> list[Schema]:
    return [each for each in union["branches"] if each["type"] != "null"]


def _collapsed(branches: list[Schema]) -> Schema | None:
    """Return the one type that the branches of a union are together; None if they become a struct."""
    kinds = {each["type"] for each in branches}
    if not branches:
        return {"type": "null"}
    if len(branches) == 1:
        return branches[0]
    if kinds == {"int", "long"}:
        return {"type": "long"}
    return {"type": "double"} if kinds == {"float", "double"} else None


# --- how values of one schema are read with another -----------------------------------------------------------


class _Column:
    """A column of a spec with its number. Parents are numbered before their children."""

    def __init__(self, spec: Spec, count: list[int]):
        self.kind = KINDS[spec[0]]
        self.number = count[0]
        count[0] += 1
        self.children = [_Column(each, count) for each in spec[4]]


def plan_of(writer: Schema, reader: Schema, spec: Spec) -> Step:
    """Return the plan by which AvroRows reads values of `writer` as values of `reader`.

    Raises Incompatible, which names the field, when one cannot be read.
    """
    try:
        return _plan(writer, reader, _Column(spec, [0]), _At("", 0, _Parts()))
    except TooLarge:
        raise Incompatible(f"it has more than {MOST_PARTS} parts, written out") from None


class _At:
    """A place in a schema, with its path and depth."""

    def __init__(self, path: str, depth: int, parts: _Parts):
        self.path = path
        self.parts = parts
        self._depth = depth

    def inside(self, name: str = "") -> _At:
        """Return the place of a part of the schema here.

        Raises Incompatible when the part is too deep, and TooLarge when there are too many parts.
        """
        self.parts.add()
        if self._depth >= MOST_NESTED:
            raise Incompatible(f"{self.path} contains itself")
        return _At(f"{self.path}.{name}".strip("."), self._depth + 1, self.parts)

    def __str__(self) -> str:
        return self.path or "it"


def _step(name: str, column: _Column | None, number: int = 0, data: Any = b"", parts: Iterable[Step] = ()) -> Step:
    return STEPS.index(name), -1 if column is None else column.number, number, data, tuple(parts)


def _plan(writer: Schema, reader: Schema, column: _Column, at: _At) -> Step:
    if writer["type"] == "union":
        return _step("union", None, parts=[_branch(each, reader, column, at) for each in writer["branches"]])
    if reader["type"] == "union":
        return _into_union(writer, reader, column, at)
    kind = writer["type"]
    if not _may_be(writer, reader):
        raise Incompatible(f"{at} was written as {kind} and is wanted as {reader['type']}")
    if _is_decimal(writer) and _is_decimal(reader) and writer["scale"] != reader["scale"]:
        raise Incompatible(f"{at} was written with scale {writer['scale']} and is wanted with scale {reader['scale']}")
    if kind == "record":
        return _record(writer, reader, column, at)
    if kind == "array":
        item = _plan(writer["items"], reader["items"], column.children[0], at.inside())
        return _step("array", column, parts=[item])
    if kind == "map":
        value = _plan(writer["values"], reader["values"], column.children[0].children[1], at.inside())
        return _step("map", column, parts=[value])
    if kind == "enum":
        return _step("enum", column, data=[_symbol(each, reader) for each in writer["symbols"]])
    if kind == "fixed":
        return _step("fixed", column, writer["size"])
    return _step(kind, column, _factor(writer, reader))


def _factor(writer: Schema, reader: Schema) -> int:
    """Return the factor by which a written time becomes microseconds; 1 if the value is not read as a time.

    The unit is the writer's if the value was written as a time, else the reader's.
    """
    if not _of_time(reader):
        return 1
    unit = writer if str(_of_time(writer)).startswith("timestamp") else reader
    return 1000 if str(unit["logical"]).endswith("-millis") else 1


def _branch(writer: Schema, reader: Schema, column: _Column, at: _At) -> Step:
    """Return the step that reads one branch of a written union. Only values of a branch that cannot be read are bad."""
    try:
        return _plan(writer, reader, column, at.inside())
    except Incompatible:
        return _step("fail", None)


def _may_be(writer: Schema, reader: Schema) -> bool:
    if writer["type"] == "fixed" and reader["type"] == "fixed":
        return bool(writer["size"] == reader["size"])
    return reader["type"] in PROMOTED.get(writer["type"], (writer["type"],))


def _into_union(writer: Schema, reader: Schema, column: _Column, at: _At) -> Step:
    if writer["type"] == "null":
        if any(each["type"] == "null" for each in reader["branches"]):
            return _step("null", column)
        raise Incompatible(f"{at} was written as null and is wanted as something else")
    branches = _branches(reader)
    fitting = [each for each in branches if _same(writer, each)] or [each for each in branches if _may_be(writer, each)]
    if not fitting:
        raise Incompatible(f"{at} was written as {writer['type']}, which the union that is wanted has not")
    if _collapsed(branches) is not None:
        return _plan(writer, fitting[0], column, at.inside())
    place = next(i for i, each in enumerate(branches) if each is fitting[0])
    return _step("member", column, place, parts=[_plan(writer, fitting[0], column.children[place], at.inside())])


def _same(writer: Schema, reader: Schema) -> bool:
    return bool(writer["type"] == reader["type"] and writer.get("name") == reader.get("name"))


def _symbol(symbol: str, reader: Schema) -> bytes | None:
    known = symbol if symbol in reader["symbols"] else reader["default"]
    return None if known is None else str(known).encode()


def _record(writer: Schema, reader: Schema, column: _Column, at: _At) -> Step:
    wanted = {name: i for i, each in enumerate(reader["fields"]) for name in (*each["aliases"], each["name"])}
    wanted |= {each["name"]: i for i, each in enumerate(reader["fields"])}
    steps, there = [], set()
    for field in writer["fields"]:
        inner = at.inside(field["name"])
        place = wanted.get(field["name"])
        if place is None or place in there:
            steps.append(_skipped(field["type"], inner))
        else:
            there.add(place)
            into = reader["fields"][place]["type"]
            steps.append(_plan(field["type"], into, column.children[place], inner))
    for place, field in enumerate(reader["fields"]):
        if place not in there:
            steps.append(_defaulted(field, column.children[place], at.inside(field["name"])))
    return _step("record", column, parts=steps)


def _defaulted(field: dict[str, Any], column: _Column, at: _At) -> Step:
    if "default" not in field:
        raise Incompatible(f"{at} was not written, and has no default")
    kind, value = field["type"], field["default"]
    try:
        data = encoded(kind, value, at.parts)
    except TooLarge:
        raise
    except WRONG_DEFAULT:
        raise Incompatible(f"{at} has a default that is not of its type") from None
    return _step("default", None, data=data, parts=[_plan(kind, kind, column, at)])


def _skipped(writer: Schema, at: _At, around: tuple[Schema, ...] = ()) -> Step:
    """Return the step that skips a written value.

    `around`: the schemas, also skipped, that contain this one, the innermost first. A schema may contain itself.
    """
    for number, each in enumerate(around, 1):
        if each is writer:
            return _step("again", None, number)
    kind = writer["type"]
    if kind in ("union", "record", "array", "map"):
        around = (writer, *around)
        return _step(kind, None, parts=[_skipped(each, at.inside(), around) for each in _inside(writer)])
    if kind == "enum":
        return _step("enum", None, data=[each.encode() for each in writer["symbols"]])
    return _step(kind, None, writer.get("size", 1))


def _inside(schema: Schema) -> list[Schema]:
    """Return the schemas that a union, record, array or map consists of."""
    kind = schema["type"]
    if kind == "union":
        return list(schema["branches"])
    if kind == "record":
        return [each["type"] for each in schema["fields"]]
    return [schema["items" if kind == "array" else "values"]]


# --- defaults -----------------------------------------------------------------------------------------------


WRONG_DEFAULT = (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError, RecursionError)


def encoded(schema: Schema, value: Any, parts: _Parts) -> bytes:
    """Return a field's default, given as JSON, in the binary encoding.

    Raises one of WRONG_DEFAULT when it is not of the schema's type.
    """
    parts.add()
    kind = schema["type"]
    if kind == "union":
        return _encoded_union(schema, value, parts)
    if kind == "null":
        if value is not None:
            raise ValueError(value)
        return b""
    if kind == "boolean":
        if not isinstance(value, bool):
            raise ValueError(value)
        return bytes([value])
    if kind in ("int", "long"):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(value)
        return _varint(value)
    if kind in ("float", "double"):
        if isinstance(value, bool):
            raise ValueError(value)
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind in ("string", "bytes", "fixed"):
        data: bytes = value.encode() if kind == "string" else value.encode("latin-1")
        if kind == "fixed" and len(data) != schema["size"]:
            raise ValueError(value)
        return data if kind == "fixed" else _varint(len(data)) + data
    if kind == "enum":
        return _varint(schema["symbols"].index(value))
    if kind == "record":
        return b"".join(
            encoded(each["type"], value[each["name"]] if each["name"] in value else each["default"], parts)
            for each in schema["fields"]
        )
    items = (
        [encoded(schema["items"], each, parts) for each in value]
        if kind == "array"
        else [
            encoded({"type": "string"}, name, parts) + encoded(schema["values"], each, parts)
            for name, each in value.items()
        ]
    )
    return (_varint(len(items)) + b"".join(items) if items else b"") + b"\0"


def _encoded_union(schema: Schema, value: Any, parts: _Parts) -> bytes:
    for place, branch in enumerate(schema["branches"]):
        try:
            return _varint(place) + encoded(branch, value, parts)
        except TooLarge:
            raise
        except WRONG_DEFAULT:
            continue
    raise ValueError(value)


def _varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    found = bytearray()
    while raw > 0x7F:
        found.append(raw & 0x7F | 0x80)
        raw >>= 7
    found.append(raw)
    return bytes(found)
