"""Timestamps of records in Spark, which counts microseconds where Kafka counts milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

MOST_MS = ((1 << 63) - 1) // 1000


def sparks_timestamps(found: pyarrow.Array) -> pyarrow.Array:
    """Return the timestamps of records, in ms, with -1 ("no timestamp") for those that Spark cannot hold.

    Spark's int64 of microseconds holds MOST_MS milliseconds at most, before or after 1970.
    """
    import pyarrow as arrow
    import pyarrow.compute as compute

    numbers = found.cast(arrow.int64())
    ends = compute.min_max(numbers)
    if not len(found) or (ends["min"].as_py() >= -MOST_MS and ends["max"].as_py() <= MOST_MS):
        return found
    there = compute.and_(compute.greater_equal(numbers, -MOST_MS), compute.less_equal(numbers, MOST_MS))
    return compute.if_else(there, numbers, arrow.scalar(-1, arrow.int64())).cast(found.type)
