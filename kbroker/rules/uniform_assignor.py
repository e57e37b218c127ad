"""The assignor `uniform` (KIP-848): gives all members equal numbers of partitions, and lets them keep what they can.

If all members are subscribed to the same topics, their numbers of partitions differ by at most one, and no partition
moves without need. If not, the result is such that no single move would make it more even.
"""

from __future__ import annotations

import heapq

from kbroker.rules.consumer_assignment import Members, PartitionCounts, frozen, kept_of, thawed
from kbroker.rules.consumer_group_member import Assignment

NAME = "uniform"


def assign(members: Members, counts: PartitionCounts) -> dict[str, Assignment]:
    """Return the partitions of each member; the contract is that of `consumer_assignment.Assignor`."""
    subscriptions = {spec.topics for spec in members.values()}
    if len(subscriptions) <= 1:
        return _assign_same(members, counts, next(iter(subscriptions), frozenset()))
    return _assign_different(members, counts)


# --- all members are subscribed to the same topics -----------------------------------------------------------
def _assign_same(members: Members, counts: PartitionCounts, topics: frozenset[bytes]) -> dict[str, Assignment]:
    total = sum(counts[topic_id] for topic_id in topics)
    quota, extra = divmod(total, len(members)) if members else (0, 0)
    kept = {member_id: kept_of(spec, counts) for member_id, spec in members.items()}
    sizes = {member_id: sum(map(len, partitions.values())) for member_id, partitions in kept.items()}
    # Members that already have more than the quota are the first to get one partition more than others.
    having_extra = [member_id for member_id, size in sizes.items() if size > quota][:extra]
    room = dict.fromkeys(members, quota)
    for member_id in having_extra:
        room[member_id] += 1
    for member_id in (member_id for member_id in members if room[member_id] == quota):
        if len(having_extra) == extra:
            break
        having_extra.append(member_id)
        room[member_id] += 1
    changing = {member_id: thawed(of) for member_id, of in kept.items() if sizes[member_id] != room[member_id]}
    taken: dict[bytes, set[int]] = {topic_id: set() for topic_id in topics}
    for member_id, unchanged in kept.items():
        partitions = changing.get(member_id)
        if partitions is not None:
            _shed(partitions, sizes[member_id] - room[member_id])
        for topic_id, of_topic in (unchanged if partitions is None else partitions).items():
            taken[topic_id] |= of_topic
    free = iter([(t, p) for t in sorted(topics) for p in range(counts[t]) if p not in taken[t]])
    for member_id, partitions in changing.items():
        for _ in range(room[member_id] - sizes[member_id]):
            topic_id, partition = next(free)
            partitions.setdefault(topic_id, set()).add(partition)
        kept[member_id] = frozen(partitions, members[member_id])
    return kept


def _shed(partitions: dict[bytes, set[int]], count: int) -> None:
    """Take `count` partitions away from a member, each from the topic of which it has most partitions then."""
    while count > 0:
        most = max(partitions, key=lambda topic_id: len(partitions[topic_id]))
        partitions[most].remove(max(partitions[most]))
        count -= 1


# --- members are subscribed to different topics --------------------------------------------------------------
def _assign_different(members: Members, counts: PartitionCounts) -> dict[str, Assignment]:
    kept = {member_id: thawed(kept_of(spec, counts)) for member_id, spec in members.items()}
    sizes = {member_id: sum(map(len, partitions.values())) for member_id, partitions in kept.items()}
    subscribers: dict[bytes, list[str]] = {}
    owners: dict[bytes, dict[int, str]] = {}
    for member_id, spec in members.items():
        for topic_id in spec.topics:
            subscribers.setdefault(topic_id, []).append(member_id)
        for topic_id, partitions in kept[member_id].items():
            owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))
    # Topics with the fewest subscribers come first: topics with more subscribers can then even out the sizes.
    topics = sorted(subscribers, key=lambda t: (len(subscribers[t]), -counts[t], t))
    for topic_id in topics:
        owned = owners.setdefault(topic_id, {})
        heap = [(sizes[member_id], number) for number, member_id in enumerate(subscribers[topic_id])]
        heapq.heapify(heap)
        for partition in range(counts[topic_id]):
            if partition not in owned:
                size, number = heap[0]
                member_id = owned[partition] = subscribers[topic_id][number]
                kept[member_id].setdefault(topic_id, set()).add(partition)
                sizes[member_id] += 1
                heapq.heapreplace(heap, (size + 1, number))
    while sum(_level(topic_id, subscribers[topic_id], kept, sizes) for topic_id in topics):
        pass
    return {member_id: frozen(kept[member_id], spec) for member_id, spec in members.items()}


def _level(
    topic_id: bytes, subscribers: list[str], kept: dict[str, dict[bytes, set[int]]], sizes: dict[str, int]
) -> bool:
    """Move partitions of one topic from the largest to the smallest member until no move makes sizes more even.

    Returns whether there was a move. Each move lowers the sum of the squares of all sizes, so this ends.
    """
    least = [(sizes[member_id], number) for number, member_id in enumerate(subscribers)]
    most = [(-size, number) for size, number in least if kept[subscribers[number]].get(topic_id)]
    heapq.heapify(least)
    heapq.heapify(most)
    moved = False
    while most:
        size, giver = -most[0][0], most[0][1]
        giver_id = subscribers[giver]
        if size != sizes[giver_id] or not kept[giver_id].get(topic_id):
            heapq.heappop(most)
            if kept[giver_id].get(topic_id):
                heapq.heappush(most, (-sizes[giver_id], giver))
            continue
        low, taker = least[0]
        taker_id = subscribers[taker]
        if low != sizes[taker_id]:
            heapq.heapreplace(least, (sizes[taker_id], taker))
            continue
        if size - low < 2:
            break
        partition = max(kept[giver_id][topic_id])
        kept[giver_id][topic_id].remove(partition)
        had_some = bool(kept[taker_id].get(topic_id))
        kept[taker_id].setdefault(topic_id, set()).add(partition)
        sizes[giver_id] -= 1
        sizes[taker_id] += 1
        heapq.heapreplace(least, (sizes[taker_id], taker))
        heapq.heappush(least, (sizes[giver_id], giver))
        if not had_some:
            heapq.heappush(most, (-sizes[taker_id], taker))
        moved = True
    return moved
