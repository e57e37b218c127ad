"""The reassignments that a tool has asked for through the store: what is done or refused is taken out there."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.model import TopicPartition
from kbroker.rules.controller.commands import ReadReassignments, Rule, WriteReassignments


def drop_asked(is_dropped: Callable[[TopicPartition, tuple[int, ...]], bool]) -> Rule[None]:
    """Take partitions out of what a tool has asked for. `is_dropped` gets a partition and the replicas asked for."""
    asked: dict[TopicPartition, tuple[int, ...]] = yield ReadReassignments()
    left = {each: replicas for each, replicas in asked.items() if not is_dropped(each, replicas)}
    if asked and len(left) < len(asked):
        yield WriteReassignments(left)
