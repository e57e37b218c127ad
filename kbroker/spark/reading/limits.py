"""How many of the waiting records a micro-batch takes, by the rules of Spark's own Kafka connector. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kbroker.model import TopicPartition
from kbroker.spark.options.offsets import Offsets


def waiting(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> Offsets:
    """Return how many records may lie between `start` and `latest`, for each partition in which there are any."""
    sizes = {place: end - start[place] for place, end in latest.items() if place in start}
    return {place: size for place, size in sizes.items() if size > 0}


def limited(start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], most: int) -> Offsets:
    """Return the offsets at which a batch of about `most` records ends.

    A partition's share is proportional to the number of records that wait in it. A share below one record counts as
    one, so that no partition starves: with many partitions the batch is larger.
    """
    sizes = waiting(start, latest)
    total = sum(sizes.values())
    found = dict(latest)
    for place, size in sizes.items():
        share = most * (size / total)
        found[place] = min(latest[place], start[place] + (math.ceil(share) if share < 1 else math.floor(share)))
    return found


class Delay:
    """Lets a batch wait until there are `least` records, but `longest_s` at most. The first batch does not wait."""

    def __init__(self, least: int, longest_s: float):
        self._least = least
        self._longest_s = longest_s
        self._last_s = -math.inf

    def holds(self, count: int, now_s: float) -> bool:
        """Return whether `count` records have to wait for more. If not, a batch is taken to begin at `now_s`."""
        if count < self._least and now_s - self._last_s < self._longest_s:
            return True
        self._last_s = now_s
        return False
