"""Turns Arrow types into specs for the compiled decoders, and what these have made into Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from kbroker._core.rows.typed_columns import KINDS

Spec = tuple[int, int, int, bytes, tuple[Any, ...]]
"""A type: its place in KINDS, precision and scale (0 unless it is a decimal), name in UTF-8, and children."""

_OF_TYPE: dict[Callable[[pa.DataType], bool], str] = {
    pa.types.is_null: "null",
    pa.types.is_boolean: "bool",
    pa.types.is_int8: "int8",
    pa.types.is_int16: "int16",
    pa.types.is_int32: "int32",
    pa.types.is_int64: "int64",
    pa.types.is_float32: "float",
    pa.types.is_float64: "double",
    pa.types.is_date32: "date",
    pa.types.is_string: "string",
    pa.types.is_binary: "binary",
}


def spec_of(kind: pa.DataType, name: str = "") -> Spec:
    """Return the spec of an Arrow type, for the compiled decoders. Raises ValueError when they cannot make the type."""
    return _spec(kind, name, name)


def _spec(kind: pa.DataType, name: str, path: str) -> Spec:
    precision = scale = 0
    children: tuple[Spec, ...] = ()
    if pa.types.is_struct(kind):
        word = "struct"
        children = tuple(_spec(field.type, field.name, f"{path}.{field.name}") for field in kind)
    elif pa.types.is_map(kind):
        word = "map"
        pair = pa.struct([kind.key_field, kind.item_field])
        children = (_spec(pair, "entries", path),)
    elif pa.types.is_list(kind):
        word = "list"
        children = (_spec(kind.value_type, "element", path),)
    elif pa.types.is_decimal128(kind):
        word, precision, scale = "decimal", kind.precision, kind.scale
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        word = "timestamp" if kind.tz else "timestamp_ntz"
    else:
        found = [word for is_it, word in _OF_TYPE.items() if is_it(kind)]
        if not found:
            raise ValueError(f"{path.lstrip('.') or 'it'} is of type {kind}, which nothing is decoded to")
        word = found[0]
    return KINDS.index(word), precision, scale, name.encode(), children


def paths_of(spec: Spec) -> list[str]:
    """Return the path by which users name each column, in the order of the compiled decoders."""
    found: list[str] = []

    def walk(each: Spec, path: str) -> None:
        found.append(path)
        inside = KINDS[each[0]] == "struct"
        for child in each[4]:
            name = child[3].decode()
            walk(child, f"{path}.{name}".lstrip(".") if inside and name != "entries" else path)

    walk(spec, "")
    return found


def array_of(kind: pa.DataType, taken: tuple[Any, ...]) -> pa.Array:
    """Return an Arrow array of what a decoder has made, over the same memory."""
    rows, nulls, validity, offsets, data, children = taken
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    buffers = [pa.py_buffer(each) for each in (validity, offsets, data) if each is not None]
    if validity is None:
        buffers.insert(0, None)
    return pa.Array.from_buffers(kind, rows, buffers, nulls, children=_children(kind, children))


def _children(kind: pa.DataType, taken: tuple[Any, ...]) -> list[pa.Array] | None:
    if pa.types.is_struct(kind):
        return [array_of(field.type, child) for field, child in zip(kind, taken, strict=True)]
    if pa.types.is_map(kind):
        return [array_of(pa.struct([kind.key_field, kind.item_field]), taken[0])]
    if pa.types.is_list(kind):
        return [array_of(kind.value_type, taken[0])]
    return None
