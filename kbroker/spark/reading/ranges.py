"""Divides ranges of offsets among tasks. No I/O.

The rules are those of Spark's documentation of `minPartitions` and `maxRecordsPerPartition`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbroker.model import TopicPartition


class OffsetRange(NamedTuple):
    """Offsets of one partition, from `start` to `until`, exclusive."""

    topic: str
    partition: int
    start: int
    until: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The most records that the range can have. It has fewer where compaction or transactions have left gaps."""
        return self.until - self.start


def divided(
    ranges: Iterable[OffsetRange], *, least_count: int | None = None, most_records: int | None = None
) -> list[OffsetRange]:
    """Return ranges for one task each. None is empty or larger than `most_records`; about `least_count` or more."""
    found = [each for each in ranges if each.size > 0]
    if most_records is not None:
        found = [part for each in found for part in _parts(each, math.ceil(each.size / most_records))]
    if least_count is None or len(found) >= least_count:
        return found
    total = sum(each.size for each in found)
    large = [each for each in found if _share(each, total, least_count) > 1]
    # A range that stays whole counts as one; the others share what is left of `least_count`.
    total = sum(each.size for each in large)
    count = least_count - (len(found) - len(large))
    return [part for each in found for part in _parts(each, _share(each, total, count) if each in large else 1)]


def _share(each: OffsetRange, total: int, count: int) -> int:
    """Return into how many of `count` parts this range is cut, when there are `total` records in all."""
    return max(math.floor(each.size / total * count + 0.5), 1)


def _parts(each: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """Yield `count` parts of a range, as equal as can be; fewer if there are not so many records."""
    start = each.start
    for left in range(count, 0, -1):
        end = start + (each.until - start) // left
        if end > start:
            yield each._replace(start=start, until=end)
        start = end
