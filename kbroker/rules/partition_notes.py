"""What the log is to say of partitions: one line says of all of them together what many lines would say of each."""

from __future__ import annotations

from kbroker.model import TopicPartition
from kbroker.rules.topic_names import listed

MOST_NAMED = 20


class PartitionNotes:
    """Notes that wait to become lines of the log. For one thread at a time."""

    def __init__(self) -> None:
        self._about: dict[str, list[str]] = {}

    def add(self, text: str, partition: TopicPartition | None = None) -> None:
        """Note a text, of a partition or of none."""
        about = self._about.setdefault(text, [])
        if partition is not None:
            about.append(str(partition))

    def take(self) -> list[str]:
        """Return a line for each text, with the partitions that it is about in front, and forget the notes."""
        taken, self._about = self._about, {}
        return [f"{listed(about, MOST_NAMED)}: {text}" if about else text for text, about in taken.items()]
