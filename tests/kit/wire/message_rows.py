"""The messages of a set of magic 0 or 1 as rows, as the compiled core reads them."""

from __future__ import annotations

from kbroker._core.wire import message_set
from kbroker._core.wire.message_set import Message

Row = tuple[int, int, bytes | None, bytes | None]
"""Offset, timestamp, key and value."""


def read_rows(data: bytes, wrapper: Message | None = None) -> list[Row]:
    """Return the messages of `data`: of a set, or with `wrapper`, its decompressed inner ones. Raises InvalidBatch."""
    info = message_set.walk(data, wrapper=wrapper)
    messages = message_set.messages(data)
    base = info.first_offset - messages[0].offset if messages else 0
    stamp = wrapper.timestamp if wrapper is not None and wrapper.is_log_append_time else None
    rows = []
    for message in messages:
        key, value = (
            None if size < 0 else data[position : position + size]
            for position, size in (
                (message.key_position, message.key_size),
                (message.value_position, message.value_size),
            )
        )
        rows.append((base + message.offset, message.timestamp if stamp is None else stamp, key, value))
    return rows
