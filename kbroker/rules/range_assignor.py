"""The assignor `range` (KIP-848): shares the partitions of each topic evenly among its subscribers.

The numbers of partitions that two subscribers of a topic get differ by at most one. A member gets the same partition
numbers of all topics that have equal partition counts and the same subscribers, so that such topics can be joined.
Members keep the partitions they have where possible.
"""

from __future__ import annotations

from kbroker.rules.consumer_assignment import Members, PartitionCounts, frozen
from kbroker.rules.consumer_group_member import Assignment

NAME = "range"


def assign(members: Members, counts: PartitionCounts) -> dict[str, Assignment]:
    """Return the partitions of each member; the contract is that of `consumer_assignment.Assignor`."""
    # Static members come first, by their instance ids: these survive a restart, so the members keep their ranges.
    ordered = sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or "", m))
    subscribers: dict[bytes, list[str]] = {}
    for member_id in ordered:
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    alike: dict[tuple[int, tuple[str, ...]], list[bytes]] = {}
    for topic_id in sorted(subscribers):
        alike.setdefault((counts[topic_id], tuple(subscribers[topic_id])), []).append(topic_id)
    assigned: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in members}
    for (count, of_topic), topics in alike.items():
        for member_id, partitions in _ranges(count, of_topic, topics, members).items():
            for topic_id in topics:
                assigned[member_id][topic_id] = partitions
    return {member_id: frozen(assigned[member_id], spec) for member_id, spec in members.items()}


def _ranges(count: int, subscribers: tuple[str, ...], topics: list[bytes], members: Members) -> dict[str, set[int]]:
    """Return the partition numbers of each subscriber, the same in each of `topics`, which have `count` partitions."""
    quota, extra = divmod(count, len(subscribers))
    had = {member_id: _had(member_id, topics, members, count) for member_id in subscribers}
    free = set(range(count))
    kept: dict[str, set[int]] = {}
    for member_id in subscribers:
        wanted = sorted(had[member_id] & free)
        size = quota
        if len(wanted) > quota and extra > 0:
            extra -= 1
            size += 1
        kept[member_id] = set(wanted[:size])
        free -= kept[member_id]
    left = sorted(free)
    for member_id in subscribers:
        missing = max(quota - len(kept[member_id]), 0)
        if extra > 0 and len(kept[member_id]) + missing == quota:
            extra -= 1
            missing += 1
        kept[member_id].update(left[:missing])
        del left[:missing]
    return kept


def _had(member_id: str, topics: list[bytes], members: Members, count: int) -> set[int]:
    """The partitions that the member had until now in one topic: the first of `topics` in which it had any."""
    assigned = members[member_id].assigned
    for topic_id in topics:
        if assigned.get(topic_id):
            return {partition for partition in assigned[topic_id] if partition < count}
    return set()
