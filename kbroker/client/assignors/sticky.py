"""The sticky assignors (KIP-54, KIP-429): shares are even first; within that, members keep what they have.

If all members want the same topics, the shares of two members differ by one partition at most, and no partition moves
without need. Otherwise no single move would make the shares more even. Where racks count (KIP-881), a partition without
a replica in its member's rack moves to a member that is in a replica's rack, as far as the shares stay even.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from kbroker.client.assignors import group_protocol
from kbroker.client.assignors.assignor import COOPERATIVE, EAGER, NO_GENERATION, Assignor, Member, Topics
from kbroker.client.assignors.racks import Racks
from kbroker.model import TopicPartition

Shares = dict[str, set[TopicPartition]]


class StickyAssignor(Assignor):
    """The eager sticky assignor. Members have given up their partitions; their user data say what they had."""

    name = "sticky"

    def assign(self, members: Collection[Member], topics: Topics) -> Mapping[str, Collection[TopicPartition]]:
        return share(members, topics)

    def user_data(self, topics: frozenset[str], previous: frozenset[TopicPartition], generation: int) -> bytes | None:
        return group_protocol.encode_previous(previous, generation) if previous else None

    def as_told(self, member: Member) -> Member:
        owned, generation = group_protocol.decode_previous(member.user_data)
        return replace(member, owned=owned, generation=generation)


class CooperativeStickyAssignor(Assignor):
    """The cooperative sticky assignor. A partition that moves is given to nobody until its owner has given it up."""

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
    """Return even shares of all partitions, in which members keep as many of their partitions as possible."""
    line = sorted(members, key=lambda member: member.place)
    owned = _kept(line, topics)
    racks = Racks(line, topics.of(frozenset().union(*(member.topics for member in line))), topics)
    kept = {
        member_id: {each for each in found if not racks.count or racks.match(member_id, each)}
        for member_id, found in owned.items()
    }
    if len({member.topics for member in line}) <= 1:
        return _share_same(line, kept, owned, topics, racks)
    return _share_different(line, kept, topics, racks)


def _kept(line: list[Member], topics: Topics) -> Shares:
    """Return what each member may keep.

    If several claim a partition, the claim of the latest generation counts; if that has several, none does.
    """
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


class _Same:
    """Shares partitions among members that all want the same topics.

    Each member gets a quota of partitions, and as many members as necessary get one more.
    """

    def __init__(self, line: list[Member], kept: Shares, total: int, racks: Racks):
        self.shares = kept
        self._quota, self._extra = divmod(total, len(line) or 1)
        # Members that have more than the quota already are the first that get one more.
        for owned in sorted(kept.values(), key=len, reverse=True):
            for partition in sorted(owned)[self._quota + (self._extra > 0) :]:
                owned.remove(partition)
            self._extra -= len(owned) > self._quota
        self._everywhere = [
            (len(kept[member.member_id]), number, member.member_id) for number, member in enumerate(line)
        ]
        self._by_rack: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        for row in self._everywhere:
            if rack := racks.of_member(row[2]):
                self._by_rack[rack].append(row)
        for rows in (self._everywhere, *self._by_rack.values()):
            heapq.heapify(rows)

    def has_room(self, member_id: str) -> bool:
        return len(self.shares[member_id]) < self._quota + (self._extra > 0)

    def assign(self, partition: TopicPartition, member_id: str) -> None:
        self.shares[member_id].add(partition)
        self._extra -= len(self.shares[member_id]) > self._quota

    def least(self) -> str:
        """Return the member with the fewest partitions, so that a topic's partitions spread."""
        found = self._first(self._everywhere)
        assert found is not None
        return found[2]

    def least_near(self, racks: Collection[str]) -> str | None:
        """Return the member with the fewest partitions of those in these racks that have room; None when none has."""
        found = [row for rack in racks if (row := self._first(self._by_rack[rack])) is not None]
        return min(found)[2] if found else None

    def _first(self, rows: list[tuple[int, int, str]]) -> tuple[int, int, str] | None:
        while rows:
            size, number, member_id = rows[0]
            now = len(self.shares[member_id])
            if size == now:
                return rows[0] if self.has_room(member_id) else None
            heapq.heapreplace(rows, (now, number, member_id))
        return None


def _share_same(line: list[Member], kept: Shares, owned: Shares, topics: Topics, racks: Racks) -> Shares:
    """Return the shares when all members want the same topics."""
    partitions = topics.of(line[0].topics) if line else []
    same = _Same(line, kept, len(partitions), racks)
    taken = set().union(*kept.values())
    free = [partition for partition in partitions if partition not in taken]
    if racks.count:
        # Partitions that fewest members are near to go first. One for which no member near has room stays with its
        # owner if that has room.
        left = []
        for partition in sorted(free, key=racks.choice):
            near = same.least_near(racks.of_partition(partition))
            if near is None:
                left.append(partition)
            else:
                same.assign(partition, near)
        owners = {partition: member_id for member_id, share in owned.items() for partition in share}
        free = []
        for partition in left:
            owner = owners.get(partition)
            if owner is not None and same.has_room(owner):
                same.assign(partition, owner)
            else:
                free.append(partition)
    for partition in free:
        same.assign(partition, same.least())
    return kept


def _share_different(line: list[Member], kept: Shares, topics: Topics, racks: Racks) -> Shares:
    wanting: dict[str, list[str]] = defaultdict(list)
    for member in line:
        for topic in member.topics:
            wanting[topic].append(member.member_id)
    before = {member_id: frozenset(owned) for member_id, owned in kept.items()}
    taken = set().union(*kept.values())
    # Partitions that fewest members want go first: the later ones, which more members want, then even out the shares.
    free = [partition for partition in topics.of(wanting) if partition not in taken]
    free.sort(key=lambda partition: (len(wanting[partition.topic]), partition))
    if racks.count:
        left = []
        for partition in free:
            if near := racks.near(partition, wanting[partition.topic]):
                _least(near, kept).add(partition)
            else:
                left.append(partition)
        free = left
    for partition in free:
        _least(wanting[partition.topic], kept).add(partition)
    moved = True
    while moved:
        moved = False
        for owner in sorted(kept, key=lambda member_id: -len(kept[member_id])):
            moved |= _relieve(owner, before[owner], wanting, kept, racks)
    return kept


def _least(members: Iterable[str], shares: Shares) -> set[TopicPartition]:
    return min((shares[member_id] for member_id in members), key=len)


def _relieve(
    owner: str,
    before: frozenset[TopicPartition],
    wanting: Mapping[str, list[str]],
    shares: Shares,
    racks: Racks,
) -> bool:
    """Give away partitions of `owner` where that makes the shares more even; those that it did not have before first.

    Returns whether a partition was given away.
    """
    share = shares[owner]
    given = False

    def reluctance(partition: TopicPartition) -> tuple[bool, bool, TopicPartition]:
        return racks.count and racks.match(owner, partition), partition in before, partition

    for partition in sorted(share, key=reluctance):
        near = racks.near(partition, wanting[partition.topic]) if racks.count else []
        for takers in (near, wanting[partition.topic]):
            if takers and len(lightest := _least(takers, shares)) + 1 < len(share):
                share.remove(partition)
                lightest.add(partition)
                given = True
                break
    return given
