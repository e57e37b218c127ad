"""Decoding a JSON text into a value of an Arrow type by the rules of Spark's from_json: slow and obvious."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa


class NotOfType(Exception):
    """A value that its column cannot have."""


def decoded(text: str, kind: pa.DataType) -> tuple[Any, bool]:
    """Return the value, and whether a part of it was not of its type. ValueError if the text is malformed."""
    if not text.strip():
        return None, False
    wrong: list[bool] = []
    # Duplicate names stay, and integers are told from floats.
    found = json.loads(text, object_pairs_hook=Pairs)
    try:
        _expect(found is not None)
        return _value(found, kind, wrong), bool(wrong)
    except NotOfType:
        return dict.fromkeys(field.name for field in kind), True


class Pairs(list[tuple[str, Any]]):
    """An object."""


def _value(found: Any, kind: pa.DataType, wrong: list[bool]) -> Any:
    if found is None:
        return None
    if pa.types.is_struct(kind):
        _expect(isinstance(found, Pairs))
        types = {field.name: field.type for field in kind}
        made: dict[str, Any] = dict.fromkeys(types)
        for name, value in found:
            if name in types:
                try:
                    made[name] = _value(value, types[name], wrong)
                except NotOfType:
                    wrong.append(True)
                    made[name] = None
        return made
    if pa.types.is_map(kind):
        _expect(isinstance(found, Pairs))
        return [(name, _value(value, kind.item_type, wrong)) for name, value in found]
    if pa.types.is_list(kind):
        _expect(isinstance(found, list) and not isinstance(found, Pairs))
        return [_value(each, kind.value_type, wrong) for each in found]
    if pa.types.is_boolean(kind):
        _expect(isinstance(found, bool))
        return found
    if pa.types.is_integer(kind):
        _expect(isinstance(found, int) and not isinstance(found, bool))
        _expect(-(1 << kind.bit_width - 1) <= found < 1 << kind.bit_width - 1)
        return found
    if pa.types.is_floating(kind):
        if found in ("NaN", "Infinity", "-Infinity", "+Infinity", "+INF", "-INF") and isinstance(found, str):
            return float(found)
        _expect(isinstance(found, (int, float)) and not isinstance(found, bool))
        try:
            return float(found)
        except OverflowError:
            return math.copysign(math.inf, found)
    assert pa.types.is_string(kind)
    _expect(isinstance(found, str))  # what other values are as text is tested by examples
    return found


def _expect(that: bool) -> None:
    if not that:
        raise NotOfType
