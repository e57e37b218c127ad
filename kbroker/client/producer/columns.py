"""Turns the columns of `send_many` into single records, for handlers and encoders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any

from kbroker.client.handlers import QueuedRecord


def objects_of(column: Any, what: str = "values") -> list[Any]:
    """Return the items of a list, a NumPy or an Arrow array; each row of a two-dimensional array of bytes is one item.

    Raises TypeError for None, str and bytes. `what` names the argument in messages.
    """
    if isinstance(column, str | bytes | bytearray) or column is None:
        raise TypeError(f"{what} must be a list, a NumPy or an Arrow array, not {type(column).__name__}")
    if getattr(column, "ndim", 1) == 2 and getattr(column, "itemsize", 0) == 1:
        return [row.tobytes() for row in column]
    for method in ("to_pylist", "tolist"):
        if hasattr(column, method):
            return getattr(column, method)()  # type: ignore[no-any-return]
    return list(column)


def queued_records(
    topic: str, values: Any, keys: Any, headers: Any, partitions: Any, timestamps: Any
) -> Iterator[QueuedRecord]:
    """Yield a QueuedRecord for each value, each with its own list of headers.

    Raises TypeError for a column of a wrong type, and ValueError for one of another length than `values`.
    """
    given = objects_of(values)
    count = len(given)
    columns = zip(
        given,
        repeat(None, count) if keys is None else _as_many(objects_of(keys, "keys"), "keys", count),
        _headers(headers, count),
        _integers(partitions, "partitions", count),
        _integers(timestamps, "timestamps", count),
        strict=True,
    )
    for value, key, pairs, partition, timestamp in columns:
        yield QueuedRecord(topic, value, key, pairs and list(pairs), partition, timestamp)


def is_column(given: Any) -> bool:
    """Return whether the argument is an Arrow array, chunked or not."""
    return hasattr(given, "null_count")


def _headers(given: Any, count: int) -> Iterable[list[tuple[Any, Any]] | None]:
    if given is None:
        return repeat(None, count)
    if not is_column(given):
        return repeat(list(given.items() if isinstance(given, Mapping) else given), count)
    rows = _as_many(given.to_pylist(), "headers", count)
    return [row and [tuple(pair.values()) for pair in row] for row in rows]


def _integers(column: Any, what: str, count: int) -> Iterable[int | None]:
    if column is None or isinstance(column, int):
        return repeat(column, count)
    if str(getattr(column, "type", "")).startswith("timestamp[ms"):
        column = column.cast("int64")
    return _as_many(objects_of(column, what), what, count)


def _as_many(items: list[Any], what: str, count: int) -> list[Any]:
    if len(items) != count:
        raise ValueError(f"{what} has {len(items)} items for {count} values")
    return items
