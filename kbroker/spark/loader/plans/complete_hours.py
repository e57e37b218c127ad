"""Finds out which hours are complete. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kbroker.model import TopicPartition
from kbroker.spark.loader.hours import HOUR_MS
from kbroker.spark.loader.settings import ARRIVAL
from kbroker.spark.options.offsets import Offsets

Hours = dict[str, tuple[int, ...]]


def read_up_to_ms(
    partitions: Collection[TopicPartition], newest_ms: Offsets, next_offsets: Offsets, ends: Offsets, asked_at_ms: int
) -> Offsets:
    """Return the time up to which each partition has been read, as far as anybody can know.

    That is the timestamp of its newest record, but `asked_at_ms` at most. For a partition that was read to where it
    ended at `asked_at_ms`, when the brokers were asked, it is that moment, so that a partition to which nothing comes
    holds nobody up. `ends`: the ends of partitions without open transactions.
    """
    found = {place: min(newest_ms.get(place, -1), asked_at_ms) for place in partitions}
    at_end = [place for place in partitions if place in ends and next_offsets[place] >= ends[place]]
    return found | dict.fromkeys(at_end, asked_at_ms)


def sorted_hours(
    open_before: Mapping[str, Iterable[int]],
    loaded: Iterable[tuple[str, int]],
    read_to_ms: Offsets,
    *,
    time: str,
    loaded_at_ms: int,
    lateness_ms: int,
) -> tuple[Hours, Hours]:
    """Return, by topic, the hours that have rows and may get more, and those that are complete from now on.

    By event time an hour is complete when every partition of its topic was read up to `lateness_ms` after the hour's
    end; by arrival time it is complete when it is over. Rows that come later nevertheless are added to it, and it stays
    complete.
    """
    hours: dict[str, set[int]] = {topic: set(of) for topic, of in open_before.items()}
    for topic, hour in loaded:
        hours.setdefault(topic, set()).add(hour)
    still_open: Hours = {}
    complete: Hours = {}
    for topic, of in sorted(hours.items()):
        least = min((at for place, at in read_to_ms.items() if place.topic == topic), default=-1)
        done_before = (loaded_at_ms if time == ARRIVAL else least - lateness_ms) // HOUR_MS
        if left := tuple(sorted(hour for hour in of if hour >= done_before)):
            still_open[topic] = left
        if done := tuple(sorted(hour for hour in of if hour < done_before)):
            complete[topic] = done
    return still_open, complete
