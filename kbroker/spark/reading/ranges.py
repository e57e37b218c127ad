"""Which task reads which offsets: pure, of what is to be read and what the user wants.

After Spark's documentation of `minPartitions` and `maxRecordsPerPartition`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kbroker.model import TopicPartition


class OffsetRange(NamedTuple):
    """Offsets of one partition, from `start` up to `until`, which is left out."""

    topic: str
    partition: int
    start: int
    until: int

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many records there may be: fewer where compaction or transactions have left gaps."""
        return self.until - self.start


def divided(
    ranges: Iterable[OffsetRange], *, least_count: int | None = None, most_records: int | None = None
) -> list[OffsetRange]:
    """For one task each: none is empty or larger than `most_records`, and there are about `least_count` or more."""
    found = [each for each in ranges if each.size > 0]
    if most_records is not None:
        found = [part for each in found for part in _parts(each, math.ceil(each.size / most_records))]
    if least_count is None or len(found) >= least_count:
        return found
    total = sum(each.size for each in found)
    large = [each for each in found if _share(each, total, least_count) > 1]
    # Those that stay whole count for one each; the others share what is left of `least_count`.
    total = sum(each.size for each in large)
    count = least_count - (len(found) - len(large))
    return [part for each in found for part in _parts(each, _share(each, total, count) if each in large else 1)]


def _share(each: OffsetRange, total: int, count: int) -> int:
    """How many of `count` parts are its."""
    return max(math.floor(each.size / total * count + 0.5), 1)


def _parts(each: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """As equal as can be; fewer than `count` where there are not so many records."""
    start = each.start
    for left in range(count, 0, -1):
        end = start + (each.until - start) // left
        if end > start:
            yield each._replace(start=start, until=end)
        start = end
