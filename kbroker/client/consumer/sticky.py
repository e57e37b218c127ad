"""The sticky assignors (KIP-54, KIP-429): even shares first, then everybody keeps what he has.

Where all members want the same topics, no two differ by more than one partition, and no more moves than must. Where
they do not, no single move would make the shares more even.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from kbroker.client.consumer import group_protocol
from kbroker.client.consumer.assignor import COOPERATIVE, EAGER, NO_GENERATION, Assignor, Member, Topics
from kbroker.model import TopicPartition

Shares = dict[str, set[TopicPartition]]


class StickyAssignor(Assignor):
    """Eager: what members had is in their user data, for they have given it up."""

    name = "sticky"

    def assign(self, members: Collection[Member], topics: Topics) -> Mapping[str, Collection[TopicPartition]]:
        return share(members, topics)

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return group_protocol.encode_previous(previous, generation) if previous else None

    def as_told(self, member: Member) -> Member:
        owned, generation = group_protocol.decode_previous(member.user_data)
        return replace(member, owned=owned, generation=generation)


class CooperativeStickyAssignor(Assignor):
    """What one member has and another is to have is given to nobody, until it has been given up."""

    name = "cooperative-sticky"
    protocols = (COOPERATIVE, EAGER)

    def assign(self, members: Collection[Member], topics: Topics) -> Mapping[str, Collection[TopicPartition]]:
        shares = share(members, topics)
        owners: dict[TopicPartition, set[str]] = defaultdict(set)
        for member in members:
            for partition in member.owned:
                owners[partition].add(member.member_id)
        return {
            member_id: {each for each in share if not owners[each] - {member_id}} for member_id, share in shares.items()
        }

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return group_protocol.encode_generation(generation)

    def as_told(self, member: Member) -> Member:
        # Subscriptions before version 2 have no generation of their own.
        if member.generation != NO_GENERATION:
            return member
        return replace(member, generation=group_protocol.decode_generation(member.user_data))


def share(members: Collection[Member], topics: Topics) -> Shares:
    """Even shares of all partitions, as many as can be kept by who has them."""
    line = sorted(members, key=lambda member: member.place)
    kept = _kept(line, topics)
    if len({member.topics for member in line}) <= 1:
        return _share_same(line, kept, topics)
    return _share_different(line, kept, topics)


def _kept(line: list[Member], topics: Topics) -> Shares:
    """What each may keep: of several who say that they own a partition it is the one of the latest generation's."""
    claims: dict[TopicPartition, list[Member]] = defaultdict(list)
    for member in line:
        for partition in member.owned:
            if partition.topic in member.topics and 0 <= partition.partition_id < topics.counts.get(partition.topic, 0):
                claims[partition].append(member)
    kept: Shares = {member.member_id: set() for member in line}
    for partition, claimants in claims.items():
        latest = max(member.generation for member in claimants)
        believed = [member for member in claimants if member.generation == latest]
        if len(believed) == 1:
            kept[believed[0].member_id].add(partition)
    return kept


def _share_same(line: list[Member], kept: Shares, topics: Topics) -> Shares:
    """All want the same: a quota for each, and one more for as many as it takes."""
    partitions = topics.of(line[0].topics) if line else []
    quota, extra = divmod(len(partitions), len(line) or 1)
    # Whoever has more than the quota already is first to have one more.
    by_size = sorted(line, key=lambda member: -len(kept[member.member_id]))
    room = {member.member_id: quota + (number < extra) for number, member in enumerate(by_size)}
    for member_id, owned in kept.items():
        for partition in sorted(owned)[room[member_id] :]:
            owned.remove(partition)
    taken = set().union(*kept.values())
    free = iter([partition for partition in partitions if partition not in taken])
    # One at a time to who has least, so that a topic's partitions spread.
    least = [(len(kept[member.member_id]), number, member.member_id) for number, member in enumerate(line)]
    heapq.heapify(least)
    for partition in free:
        while True:
            size, number, member_id = heapq.heappop(least)
            if size < room[member_id]:
                break
        kept[member_id].add(partition)
        heapq.heappush(least, (size + 1, number, member_id))
    return kept


def _share_different(line: list[Member], kept: Shares, topics: Topics) -> Shares:
    wanting: dict[str, list[str]] = defaultdict(list)
    for member in line:
        for topic in member.topics:
            wanting[topic].append(member.member_id)
    before = {member_id: frozenset(owned) for member_id, owned in kept.items()}
    taken = set().union(*kept.values())
    # Those with the least choice go first, so that those with more can make up for them.
    free = [partition for partition in topics.of(wanting) if partition not in taken]
    for partition in sorted(free, key=lambda partition: (len(wanting[partition.topic]), partition)):
        _least(wanting[partition.topic], kept).add(partition)
    moved = True
    while moved:
        moved = False
        for owner in sorted(kept, key=lambda member_id: -len(kept[member_id])):
            moved |= _relieve(kept[owner], before[owner], wanting, kept)
    return kept


def _least(members: Iterable[str], shares: Shares) -> set[TopicPartition]:
    return min((shares[member_id] for member_id in members), key=len)


def _relieve(
    share: set[TopicPartition], before: frozenset[TopicPartition], wanting: Mapping[str, list[str]], shares: Shares
) -> bool:
    """Gives away what makes it more even, what was not there before first. True when something went."""
    given = False
    for partition in sorted(share, key=lambda partition: (partition in before, partition)):
        lightest = _least(wanting[partition.topic], shares)
        if len(lightest) + 1 < len(share):
            share.remove(partition)
            lightest.add(partition)
            given = True
    return given
