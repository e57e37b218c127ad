"""Messages as lines of JSON: `consume --json` prints them, `produce --json` reads them.

    {"topic": "t", "partition": 0, "offset": 17, "timestamp": 1700000000000, "key": "k", "value": "v",
     "headers": [["name", "value"]]}

`produce` ignores the topic and the offset, and refuses unknown fields. Bytes that are not UTF-8 are base64 under
`key_base64` and `value_base64`, and ["name", {"base64": ...}] in headers.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

from kbroker.errors import KbrokerError
from kbroker.rules.nearest import nearest

FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition", "topic", "offset")


class Message(NamedTuple):
    """One message to produce. `timestamp` -1: now. `partition_id` -1: by key."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int = -1
    partition_id: int = -1


def encode_line(
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    **others: Any,
) -> str:
    """Return a message as one line of JSON, without a line end."""
    fields: dict[str, Any] = dict(others)
    for name, data in (("key", key), ("value", value)):
        text = _text(data)
        if isinstance(text, bytes):
            fields[f"{name}_base64"] = b64encode(text).decode()
        else:
            fields[name] = text
    fields["headers"] = [
        [name, {"base64": b64encode(text).decode()} if isinstance(text := _text(data), bytes) else text]
        for name, data in headers
    ]
    return json.dumps(fields, ensure_ascii=False, separators=(", ", ": "))


def decode_line(line: bytes, number: int) -> Message:
    """Return the message of one line of JSON. Raises KbrokerError with the line's number if it is not a message."""
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        for name in fields:
            if name not in FIELDS:
                like = nearest(name, FIELDS)
                raise ValueError(f"{name!r} is none of its fields{f'; did you mean {like}?' if like else ''}")
        headers = fields.get("headers") or []
        pairs = headers.items() if isinstance(headers, dict) else headers
        return Message(
            _bytes(fields, "key"),
            _bytes(fields, "value"),
            [(str(name), _header(value)) for name, value in pairs],
            int(fields.get("timestamp", -1)),
            int(fields.get("partition", -1)),
        )
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise KbrokerError(f"line {number} of the input is not a message in JSON: {error}") from None


def _text(data: bytes | None) -> str | bytes | None:
    """Return `data` as text, or `data` itself if it is not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _bytes(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        return b64decode(fields[f"{name}_base64"], validate=True)
    value = fields.get(name)
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def _header(value: Any) -> bytes | None:
    if isinstance(value, dict):
        if list(value) != ["base64"]:
            raise ValueError(f'a header\'s value is text, null or {{"base64": ...}}, not {json.dumps(value)}')
        return b64decode(value["base64"], validate=True)
    return None if value is None else str(value).encode()
