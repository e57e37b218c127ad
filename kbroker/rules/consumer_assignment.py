"""What the server's assignors are given and give (KIP-848)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from kbroker.rules.consumer_group_member import Assignment


class MemberSpec(NamedTuple):
    """One member of a group whose partitions are to be assigned."""

    instance_id: str | None
    topics: frozenset[bytes]
    """Ids of topics that exist."""
    assigned: Assignment
    """What it was to have until now; no two members the same partition."""


Members: TypeAlias = Mapping[str, MemberSpec]
PartitionCounts: TypeAlias = Mapping[bytes, int]
"""By topic id; every topic that somebody is subscribed to is in it."""
Assignor: TypeAlias = Callable[[Members, PartitionCounts], dict[str, Assignment]]
"""Gives every member its partitions; each partition of a topic that somebody is subscribed to has one owner."""


def kept_of(spec: MemberSpec, counts: PartitionCounts) -> Assignment:
    """What a member has and may keep: it is subscribed, and the partitions exist. Mostly the very one that it had."""
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
    """`assigned` as a value; the very one that the member had where nothing has changed."""
    made = {topic_id: frozenset(partitions) for topic_id, partitions in assigned.items() if partitions}
    return spec.assigned if made == spec.assigned else made
