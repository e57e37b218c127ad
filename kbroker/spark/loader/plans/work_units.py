"""Divides work among tasks: ranges of offsets are cut to about equal sizes, and small ones packed together. No I/O."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.spark.reading.ranges import OffsetRange

LEAST_TASK_BYTES = 16 << 20
TASKS_PER_SLOT = 2


class SizedRange(NamedTuple):
    """A range of offsets, and about how many bytes it has on its broker."""

    range: OffsetRange
    size: int


class WorkUnit(NamedTuple):
    """What one task reads: ranges one after the other, so that the rows of a topic and an hour become one file."""

    number: int
    ranges: tuple[OffsetRange, ...]
    size: int


def target_size(total: int, slots: int, most: int) -> int:
    """Return how many bytes a task is to read: all slots get work, and no task is tiny or above `most` bytes."""
    return min(most, max(LEAST_TASK_BYTES, math.ceil(total / (slots * TASKS_PER_SLOT))))


def limited(ranges: Iterable[SizedRange], most: int) -> list[SizedRange]:
    """Return the first part of each range, as much as its share of `most` bytes is, one record at least."""
    found = list(ranges)
    total = sum(each.size for each in found)
    if total <= most:
        return found
    return [_first(each, max(1, each.range.size * most // total)) for each in found]


def _first(each: SizedRange, count: int) -> SizedRange:
    count = min(count, each.range.size)
    part = each.range._replace(until=each.range.start + count)
    return SizedRange(part, each.size * count // each.range.size)


def divided(ranges: Iterable[SizedRange], target: int) -> list[WorkUnit]:
    """Return units of work, the largest first, which have every offset once.

    A unit above `target` bytes has one range of one record.
    """
    parts = [part for each in ranges if each.range.size > 0 for part in _parts(each, target)]
    topics: dict[str, list[SizedRange]] = {}
    for part in parts:
        topics.setdefault(part.range.topic, []).append(part)
    bins = [found for _, of_topic in sorted(topics.items()) for found in _packed([[each] for each in of_topic], target)]
    units = sorted(_packed(bins, target), key=_size, reverse=True)
    return [
        WorkUnit(number, tuple(sorted(each.range for each in unit)), sum(each.size for each in unit))
        for number, unit in enumerate(units)
    ]


def _parts(each: SizedRange, target: int) -> list[SizedRange]:
    """Cut a range into parts of `target` bytes or less, as equal as can be."""
    count = min(max(1, math.ceil(each.size / target)), each.range.size)
    whole = each.range
    bounds = [whole.start + whole.size * i // count for i in range(count + 1)]
    return [
        SizedRange(whole._replace(start=start, until=until), each.size * (until - start) // whole.size)
        for start, until in itertools.pairwise(bounds)
    ]


def _packed(groups: list[list[SizedRange]], target: int) -> list[list[SizedRange]]:
    """Pack groups into bins of `target` bytes: first fit, the largest group first."""
    bins: list[tuple[int, list[SizedRange]]] = []
    open_from = 0  # the bins before this one are full
    for group in sorted(groups, key=_size, reverse=True):
        size = _size(group)
        for place in range(open_from, len(bins)):
            held, found = bins[place]
            if held + size <= target:
                bins[place] = (held + size, found + group)
                break
        else:
            bins.append((size, list(group)))
        while open_from < len(bins) and bins[open_from][0] + LEAST_SIZE > target:
            open_from += 1
    return [found for _, found in bins]


def _size(group: Iterable[SizedRange]) -> int:
    return sum(max(each.size, LEAST_SIZE) for each in group)


LEAST_SIZE = 64 << 10
"""The bytes that a range counts for at least, however small it is: it has to be asked for."""
