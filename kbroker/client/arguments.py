"""Checks of arguments of public calls, made before a broker is asked or a record is taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.model import TopicPartition

LONGEST_WAIT_S = 1e9


def partition_of(given: Iterable[Any]) -> TopicPartition:
    """Return the TopicPartition given as such or as (topic, number). Raises TypeError for anything else."""
    if isinstance(given, tuple | list) and len(given) == 2:
        topic, number = given
        if isinstance(topic, str) and hasattr(number, "__index__"):
            return TopicPartition(topic, number)
    raise TypeError(f"a partition is a TopicPartition or (topic, number), not {given!r}")


def partitions_of(given: Iterable[Iterable[Any]]) -> list[TopicPartition]:
    """Return the partitions of a list. Raises TypeError for a single one, and for what is not a partition."""
    if isinstance(given, str | TopicPartition):
        raise TypeError(f"a list of partitions, [(topic, number), ...], not {given!r}")
    return [partition_of(each) for each in given]


def offset_of(given: int, partition: TopicPartition) -> int:
    """Return the offset. Raises ValueError when it is negative."""
    if given < 0:
        raise ValueError(f"{partition}: offset {given} is negative")
    return given


def times_of(given: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the times, in milliseconds since 1970, by TopicPartition. Raises ValueError for a negative time."""
    times = {partition_of(partition): time_ms for partition, time_ms in given.items()}
    for partition, time_ms in times.items():
        if time_ms < 0:
            raise ValueError(f"{partition}: time {time_ms} is negative")
    return times


def names_of(given: Iterable[str], what: str) -> list[str]:
    """Return a list of names. Raises TypeError for a string: each of its letters would count as a name."""
    if isinstance(given, str):
        raise TypeError(f"a list of {what}, not the string {given!r}")
    return list(given)


def seconds(timeout: float) -> float:
    """Return a timeout in seconds, infinity cut to LONGEST_WAIT_S. Raises TypeError when it is not a number."""
    if not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout must be seconds, as a number, not {timeout!r}")
    return min(timeout, LONGEST_WAIT_S)
