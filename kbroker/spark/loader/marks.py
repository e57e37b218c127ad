"""Which hours are complete. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.spark.loader.hours import HOUR_MS
from kbroker.spark.loader.settings import ARRIVAL
from kbroker.spark.offsets import Offsets

Hours = dict[str, tuple[int, ...]]


def sorted_hours(
    open_before: Mapping[str, Iterable[int]],
    loaded: Iterable[tuple[str, int]],
    newest_ms: Offsets,
    next_offsets: Offsets,
    *,
    time: str,
    loaded_at_ms: int,
    lateness_ms: int,
) -> tuple[Hours, Hours]:
    """Hours that have rows and may get more, and those that are complete from now on.

    By event time an hour is complete when every partition that ever had a record has one that is later than its end by
    `lateness_ms`; by arrival time when it is over. What comes for it later nevertheless is added to it, and it stays
    complete.
    """
    hours: dict[str, set[int]] = {topic: set(of) for topic, of in open_before.items()}
    for topic, hour in loaded:
        hours.setdefault(topic, set()).add(hour)
    still_open: Hours = {}
    complete: Hours = {}
    for topic, of in sorted(hours.items()):
        if time == ARRIVAL:
            done_before = loaded_at_ms // HOUR_MS
        else:
            active = [place for place, offset in next_offsets.items() if place.topic == topic and offset > 0]
            least = min((newest_ms.get(place, -1) for place in active), default=-1)
            done_before = (least - lateness_ms) // HOUR_MS
        if left := tuple(sorted(hour for hour in of if hour >= done_before)):
            still_open[topic] = left
        if done := tuple(sorted(hour for hour in of if hour < done_before)):
            complete[topic] = done
    return still_open, complete
