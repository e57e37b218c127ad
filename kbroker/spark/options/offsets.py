"""Parses where to begin and to end, as users write it (words, timestamps, JSON).

It also reads and writes the JSON that Spark keeps of offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.model import TopicPartition

EARLIEST, LATEST = -2, -1  #: in JSON they stand in place of an offset
INT64_MAX = (1 << 63) - 1

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True)
class Everywhere:
    """The place EARLIEST or LATEST in all partitions."""

    at: int


@dataclass(frozen=True)
class PerPartition:
    """A place given by an offset for each partition, which may be EARLIEST or LATEST."""

    offsets: Offsets


@dataclass(frozen=True)
class AtTimestamp:
    """The place of the first record whose timestamp is `timestamp_ms` or later, in all partitions."""

    timestamp_ms: int


@dataclass(frozen=True)
class AtTimestamps:
    """The place of the first record whose timestamp is the one given for its partition here, or later."""

    timestamps_ms: dict[TopicPartition, int]


Place = Everywhere | PerPartition | AtTimestamp | AtTimestamps


def offsets_of(found: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets in the JSON that Spark keeps in its checkpoints: `{"topic": {"0": 23, "1": 5}}`."""
    return {TopicPartition(topic, int(n)): offset for topic, per in found.items() for n, offset in per.items()}


def checkpointed(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as the JSON that `offsets_of` reads, sorted, so that equal offsets are equal text."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


# --- what users write -------------------------------------------------------------------------------------


def offsets_or_word(text: str) -> Place:
    """Parse `earliest`, `latest`, or JSON as in `offsets_of`. Raises ValueError with what is allowed."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Everywhere(EARLIEST if word == "earliest" else LATEST)
    return PerPartition(_per_partition(text, 'earliest, latest, or JSON like {"topic": {"0": 23, "1": -2}}', EARLIEST))


def timestamps(text: str) -> AtTimestamps:
    """Parse a timestamp (ms) for each partition, in JSON: `{"topic": {"0": 1700000000000}}`."""
    return AtTimestamps(_per_partition(text, 'JSON like {"topic": {"0": 1700000000000}}, in ms', 0))


def timestamp(text: str) -> AtTimestamp:
    """Parse one timestamp, in ms since 1970."""
    try:
        found = int(text)
    except ValueError:
        found = -1
    if not 0 <= found <= INT64_MAX:
        raise ValueError("a time in ms since 1970")
    return AtTimestamp(found)


def partitions(text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions in JSON: `{"topic": [0, 1]}`."""
    what = 'JSON like {"topic": [0, 1]}'
    found = _object(text, what)
    wanted = []
    for topic, numbers in found.items():
        if not isinstance(numbers, list):
            raise ValueError(f"{what}: {topic!r} has no list of partitions")
        for number in numbers:
            if not _is_integer(number, 0, (1 << 31) - 1):
                raise ValueError(f"{what}: {number!r} is no partition of {topic!r}")
            wanted.append(TopicPartition(topic, number))
    if not wanted:
        raise ValueError(f"{what}: there is no partition")
    return tuple(dict.fromkeys(wanted))


def _per_partition(text: str, what: str, least: int) -> dict[TopicPartition, int]:
    wanted = {}
    for topic, per in _object(text, what).items():
        if not isinstance(per, dict):
            raise ValueError(f"{what}: {topic!r} has no partitions")
        for number, value in per.items():
            if not (number.isascii() and number.isdigit() and int(number) < 1 << 31):
                raise ValueError(f"{what}: {number!r} is no partition of {topic!r}")
            if not _is_integer(value, least, INT64_MAX):
                raise ValueError(f"{what}: {value!r} of {topic}-{number}")
            wanted[TopicPartition(topic, int(number))] = value
    return wanted


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(what) from None
    if not isinstance(found, dict):
        raise ValueError(what)
    return found


def _is_integer(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def named(partitions: Iterable[TopicPartition] | Iterable[str]) -> str:
    """Return the first five names, and how many more there are, for messages."""
    wanted = sorted(partitions)
    more = f" and {len(wanted) - 5} more" if len(wanted) > 5 else ""
    return ", ".join(map(str, wanted[:5])) + more
