"""How `consume` prints messages: columns, JSON, or a template.

A template is text with fields in braces: `{topic}`, `{partition}`, `{offset}`, `{timestamp}` (milliseconds), `{time}`,
`{key}`, `{value}` and `{headers}`. `{{` and `}}` are braces, `\\n` is a line feed, `\\t` a tab.
"""

from __future__ import annotations

import argparse
import string
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from kbroker._core.client.consumer.record import ConsumerRecord
from kbroker.cli.message_lines import encode_line

Write = Callable[[ConsumerRecord], bytes]
"""Returns the bytes to print for a record, line end included. For a single field, without a line end."""

TEXT, JSON = "text", "json"


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


def _time(record: ConsumerRecord) -> bytes:
    if record.timestamp < 0:
        return b""
    return datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(timespec="milliseconds").encode()


FIELDS: dict[str, Write] = {
    "topic": lambda record: record.topic.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp,
    "time": _time,
    "key": lambda record: record.key or b"",
    "value": lambda record: record.value or b"",
    "headers": _headers,
}
COLUMNS = tuple(name for name in FIELDS if name != "value")


def columns(text: str) -> tuple[str, ...]:
    """Parse a list of columns such as `timestamp,key`, for argparse. Raises ArgumentTypeError."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in COLUMNS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(COLUMNS)}")
    return names


def of_name(text: str) -> str:
    """Check that `text` is a format, and return it: `text`, `json` or a valid template.

    For argparse. Raises ArgumentTypeError.
    """
    if text not in (TEXT, JSON):
        template(text)
    return text


def text_of(shown: Sequence[str], separator: str) -> Write:
    """Return a function that prints the fields in `shown`, then the value, with `separator` between them."""
    if not shown:
        return lambda record: (record.value or b"") + b"\n"
    fields, between = [FIELDS[name] for name in (*shown, "value")], separator.encode()
    return lambda record: between.join([field(record) for field in fields]) + b"\n"


def json_of(record: ConsumerRecord) -> bytes:
    """Return a record as one line of JSON."""
    line = encode_line(
        record.key,
        record.value,
        record.headers,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
    )
    return line.encode() + b"\n"


def template(text: str) -> Write:
    """Return a function that prints a record by a template. Raises ArgumentTypeError if `text` is not a template."""
    parts: list[Write] = []
    try:
        for literal, name, spec, conversion in string.Formatter().parse(text):
            if literal:
                parts.append(_constant(literal.replace("\\n", "\n").replace("\\t", "\t").encode()))
            if name is not None:
                if spec or conversion or name not in FIELDS:
                    raise ValueError(f"{{{name}}} is none of {', '.join(f'{{{field}}}' for field in FIELDS)}")
                parts.append(FIELDS[name])
        if not parts:
            raise ValueError("it is empty")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither {TEXT}, {JSON} nor a template: {error}") from None
    return lambda record: b"".join([part(record) for part in parts]) + b"\n"


def _constant(data: bytes) -> Write:
    return lambda record: data
