"""Messages as JSON objects, as Apache Kafka's converters write them: fields of one version, named as in its schemas.

For tools that show records of internal topics. Bytes are base64, UUIDs URL-safe base64. A tagged field with its default
is left out, except a nullable struct.
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from functools import cache
from pathlib import Path
from typing import Any

from kbroker.protocol.messages import Message, Struct

_Field = list[Any]


@cache
def _schemas() -> dict[str, list[Any]]:
    loaded: dict[str, list[Any]] = json.loads(Path(__file__).with_name("schemas.json").read_bytes())
    return loaded


def to_json(message: Message, version: int) -> dict[str, Any]:
    """Return the fields of `message` that `version` has, by their names in Kafka's schemas."""
    schema = _schemas()[type(message).__name__]
    return _struct(message, schema[4], schema[5], version)


def _struct(
    value: Message | Struct, fields: list[_Field], structs: dict[str, list[_Field]], version: int
) -> dict[str, Any]:
    made = {}
    for name, kind, versions, *rest in fields:
        options = rest[0] if rest else {}
        if not _has(versions, version):
            continue
        content = getattr(value, name)
        may_be_left_out = "tag" in options and not (kind in structs and "null" in options)
        if may_be_left_out and _is_default(content, options):
            continue
        made[camel_case(name)] = _value(content, kind, structs, version)
    return made


def _is_default(content: Any, options: dict[str, Any]) -> bool:
    """Return whether a field has its default: the one in the schema, else 0, false, empty, or the zero UUID."""
    return bool(content == options["default"]) if "default" in options else not content or content == bytes(16)


def _value(value: Any, kind: str, structs: dict[str, list[_Field]], version: int) -> Any:
    if value is None:
        return None
    if kind.startswith("[]"):
        return [_value(item, kind[2:], structs, version) for item in value]
    if kind in structs:
        return _struct(value, structs[kind], structs, version)
    if kind == "uuid":
        return urlsafe_b64encode(value).decode().rstrip("=")
    return b64encode(bytes(value)).decode() if isinstance(value, (bytes, bytearray, memoryview)) else value


def _has(versions: str, version: int) -> bool:
    """Return whether `versions`, such as `2`, `1-3` or `2+`, includes `version`."""
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    low, _, high = versions.partition("-")
    return int(low) <= version <= int(high or low)


def camel_case(name: str) -> str:
    """Return a field's name as in Kafka's schemas: `topicName` for `topic_name`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
