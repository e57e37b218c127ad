"""The input and output of the server's assignors (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from kbroker.rules.consumer_group_member import Assignment


class MemberSpec(NamedTuple):
    """One member of a group whose partitions are to be assigned."""

    instance_id: str | None
    topics: frozenset[bytes]
    """The topics that it is subscribed to and that exist, by id."""
    assigned: Assignment
    """Its target assignment until now. No two members have the same partition."""


Members: TypeAlias = Mapping[str, MemberSpec]
PartitionCounts: TypeAlias = Mapping[bytes, int]
"""Number of partitions by topic id, for every topic that a member is subscribed to."""
Assignor: TypeAlias = Callable[[Members, PartitionCounts], dict[str, Assignment]]
"""Returns the partitions of every member. Each partition of a topic with subscribers is given to exactly one."""


def kept_of(spec: MemberSpec, counts: PartitionCounts) -> Assignment:
    """The partitions that a member may keep: those that exist, of topics that it is still subscribed to.

    Returns `spec.assigned` itself if the member may keep all.
    """
    if all(t in spec.topics and partitions and max(partitions) < counts[t] for t, partitions in spec.assigned.items()):
        return spec.assigned
    kept = {}
    for topic_id, partitions in spec.assigned.items():
        if topic_id in spec.topics:
            existing = frozenset(partition for partition in partitions if partition < counts[topic_id])
            if existing:
                kept[topic_id] = existing
    return kept


def thawed(assigned: Assignment) -> dict[bytes, set[int]]:
    """A copy of `assigned` that can be changed."""
    return {topic_id: set(partitions) for topic_id, partitions in assigned.items()}


def frozen(assigned: Mapping[bytes, set[int]], spec: MemberSpec) -> Assignment:
    """An immutable copy of `assigned`; it is `spec.assigned` itself if nothing has changed."""
    made = {topic_id: frozenset(partitions) for topic_id, partitions in assigned.items() if partitions}
    return spec.assigned if made == spec.assigned else made
