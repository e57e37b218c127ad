"""Encoders, by name: functions that turn a key or a value into bytes before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Encoder = Callable[[Any], bytes | str | None]


def encode_bytes(given: Any) -> bytes | None:
    """Return bytes as they are. Raises TypeError for anything but bytes, bytearray, memoryview and None."""
    if given is None:
        return None
    if not isinstance(given, bytes | bytearray | memoryview):
        raise TypeError(f"the encoder is 'bytes', and {type(given).__name__} was given")
    return bytes(given)


def encode_string(given: Any) -> str | None:
    """Return a str, which is sent as UTF-8. Raises TypeError for anything but str and None."""
    if given is not None and not isinstance(given, str):
        raise TypeError(f"the encoder is 'string', and {type(given).__name__} was given")
    return given


def encode_json(given: Any) -> bytes | None:
    """Return JSON in UTF-8, without spaces. None stays null, which compaction takes for a deletion."""
    if given is None:
        return None
    import json

    return json.dumps(given, separators=(",", ":"), ensure_ascii=False).encode()


ENCODERS: dict[str, Encoder] = {
    "bytes": encode_bytes,
    "string": encode_string,
    "str": encode_string,
    "json": encode_json,
    "kafka.serializer.DefaultEncoder": encode_bytes,
    "kafka.serializer.StringEncoder": encode_string,
}
"""The last two names are class names in configurations of Kafka 0.7 and 0.8."""


def encoder(given: Any) -> Encoder | None:
    """Parse an encoder option: a name of ENCODERS, or a callable. Raises ValueError for anything else."""
    if given is None:
        return None
    if callable(given):
        made: Encoder = given
        return made
    found = ENCODERS.get(given) if isinstance(given, str) else None
    if found is None:
        raise ValueError("a callable or one of bytes, string, json")
    return found
