"""Arguments of calls, as people give them: what cannot be right is said before anything is asked or taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.model import TopicPartition

LONGEST_WAIT_S = 1e9


def partition_of(given: Iterable[Any]) -> TopicPartition:
    """Of a TopicPartition, or of a topic and a number."""
    if isinstance(given, tuple | list) and len(given) == 2:
        topic, number = given
        if isinstance(topic, str) and hasattr(number, "__index__"):
            return TopicPartition(topic, number)
    raise TypeError(f"a partition is a TopicPartition or (topic, number), not {given!r}")


def partitions_of(given: Iterable[Iterable[Any]]) -> list[TopicPartition]:
    if isinstance(given, str | TopicPartition):
        raise TypeError(f"a list of partitions, [(topic, number), ...], not {given!r}")
    return [partition_of(each) for each in given]


def offset_of(given: int, partition: TopicPartition) -> int:
    if given < 0:
        raise ValueError(f"{partition}: offset {given} is negative")
    return given


def times_of(given: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """In ms since 1970."""
    times = {partition_of(partition): time_ms for partition, time_ms in given.items()}
    for partition, time_ms in times.items():
        if time_ms < 0:
            raise ValueError(f"{partition}: time {time_ms} is negative")
    return times


def names_of(given: Iterable[str], what: str) -> list[str]:
    """Of a string every letter would be one of these `what`, and perhaps be deleted."""
    if isinstance(given, str):
        raise TypeError(f"a list of {what}, not the string {given!r}")
    return list(given)


def seconds(timeout: float) -> float:
    """How long to wait, infinity too."""
    if not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout must be seconds, as a number, not {timeout!r}")
    return min(timeout, LONGEST_WAIT_S)
