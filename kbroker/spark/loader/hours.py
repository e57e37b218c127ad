"""Finds the hours of rows. An hour is a number, counted from 1970."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

HOUR_MS = 3_600_000
LAST_MS = 253_402_300_799_999
"""The end of the year 9999: dates of later hours have no name."""

UNDATED = -1
"""Stands for the hour of a record whose timestamp is no date."""


def hour_of(timestamp_ms: int) -> int:
    """Return the hour of a timestamp, or UNDATED if the timestamp is not a date."""
    return timestamp_ms // HOUR_MS if 0 <= timestamp_ms <= LAST_MS else UNDATED


def is_dated(stamps: pyarrow.Array) -> pyarrow.BooleanArray:
    """Return, for each timestamp (ms), whether it is a date from 1970 to LAST_MS."""
    import pyarrow.compute as compute

    return compute.and_(compute.greater_equal(stamps, 0), compute.less_equal(stamps, LAST_MS))


def hour_name(hour: int) -> str:
    """Return the name of an hour, like `2026-01-31T05`."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)).strftime("%Y-%m-%dT%H")


def hour_folder(topic: str, hour: int) -> str:
    """Return the folder of an hour's files. Its name is in the form from which tools read columns (key=value)."""
    date, _, of_day = hour_name(hour).partition("T")
    return f"topic={topic}/date={date}/hour={of_day}"


def by_hour(batch: pyarrow.RecordBatch, arrival_ms: int) -> Iterator[tuple[int, pyarrow.RecordBatch]]:
    """Yield each hour with its rows, in their order. The column `timestamp` says the hour.

    Rows without a date belong to the hour of `arrival_ms`. A part that is much smaller than the batch is a copy: it may
    be kept for long, and should not keep the batch.
    """
    import pyarrow as arrow
    import pyarrow.compute as compute

    stamps = batch.column("timestamp").cast(arrow.int64())
    ends = compute.min_max(stamps)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    if least < 0 or most > LAST_MS:
        stamps = compute.if_else(is_dated(stamps), stamps, arrow.scalar(arrival_ms, arrow.int64()))
        ends = compute.min_max(stamps)
        least, most = ends["min"].as_py(), ends["max"].as_py()
    if least // HOUR_MS == most // HOUR_MS:
        yield least // HOUR_MS, batch
        return
    hours = compute.divide(stamps, HOUR_MS)
    order = compute.sort_indices(hours)
    hours = hours.take(order)
    changes = compute.indices_nonzero(compute.not_equal(hours[1:], hours[:-1])).to_pylist()
    starts = [0, *(place + 1 for place in changes)]
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        rows = order[start:end]
        first, count = rows[0].as_py(), end - start
        if count * 2 > len(batch) and rows[-1].as_py() - first + 1 == count:
            yield hours[start].as_py(), batch.slice(first, count)
        else:
            yield hours[start].as_py(), batch.take(rows)
