"""Topics and assignments for tests of the consumer protocol, with topic ids that people can read."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.rules.consumer_group_member import EpochsByPartition


def topic_id(name: str) -> bytes:
    """The id that `Topics` gives a topic."""
    return name.encode().ljust(16, b"_")


class Topics:
    """The cluster's topics at one moment: names and numbers of partitions."""

    def __init__(self, **counts: int):
        self.counts = counts

    def find(self, name: str) -> tuple[bytes, int] | None:
        return (topic_id(name), self.counts[name]) if name in self.counts else None

    def name_of(self, identifier: bytes) -> str | None:
        name = identifier.decode().rstrip("_")
        return name if name in self.counts else None

    def names(self) -> Iterable[str]:
        return self.counts


def partitions_of(assignment: EpochsByPartition) -> dict[bytes, set[int]]:
    """An assignment without the epochs."""
    return {topic: set(partitions) for topic, partitions in assignment.items()}
