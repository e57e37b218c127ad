"""The plan of a move of offsets: each target is within the partition's offsets; a note says if it was cut to fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.cli.topic_facts import end_offsets, first_offsets, offsets_at
from kbroker.client.admin.admin_client import AdminClient
from kbroker.model import TopicPartition


class Target(NamedTuple):
    """An offset. `note`: why it is not the one that was asked for; empty if it is."""

    offset: int
    note: str = ""


class Bounds:
    """The start and end offsets of partitions."""

    def __init__(self, admin: AdminClient, partitions: Sequence[TopicPartition]):
        self._admin = admin
        self.starts = first_offsets(admin, partitions)
        self.ends = end_offsets(admin, partitions)

    def within(self, partition: TopicPartition, offset: int) -> Target:
        """Return the nearest offset to `offset` that the partition has."""
        start, end = self.starts[partition], self.ends[partition]
        if offset > end:
            return Target(end, f"cut: {offset} is past the end")
        if offset < start:
            return Target(start, f"cut: {offset} is before the beginning")
        return Target(offset)

    def at_time(self, at_ms: int) -> dict[TopicPartition, Target]:
        """Return each partition's first offset at that time or later; its end if there is none."""
        found = offsets_at(self._admin, self.ends, at_ms)
        return {
            partition: Target(offset) if offset >= 0 else Target(self.ends[partition], "the end: no message is so late")
            for partition, offset in found.items()
        }
