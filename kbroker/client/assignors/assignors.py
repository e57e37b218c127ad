"""The assignors that come with the client, by the names that they have in all Kafka clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import cycle, islice

from kbroker.client.assignors.assignor import Assignor, Member, Topics
from kbroker.client.assignors.racks import Racks
from kbroker.client.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from kbroker.model import TopicPartition


class RangeAssignor(Assignor):
    """Gives each member a run of consecutive partitions of each topic; the first members have one more.

    Partitions of the same number in topics that have as many partitions, and the same members, go to the same member.
    Where racks count (KIP-881), each member first gets partitions that have a replica in its rack, then the rest.
    """

    name = "range"

    def assign(self, members: Collection[Member], topics: Topics) -> Mapping[str, Collection[TopicPartition]]:
        wanting: dict[str, list[Member]] = defaultdict(list)
        for member in sorted(members, key=lambda member: member.place):
            for topic in member.topics:
                wanting[topic].append(member)
        rows = [_Row(topic, wanting[topic], topics) for topic in sorted(wanting) if topics.counts.get(topic)]
        if any(row.racks.count for row in rows):
            together: dict[tuple[tuple[str, ...], int], list[_Row]] = defaultdict(list)
            for row in rows:
                together[tuple(row.taken), topics.counts[row.topic]].append(row)
            for alike in together.values():
                if len(alike) > 1:
                    _assign_alike(alike)
                elif alike[0].racks.count:
                    alike[0].assign_left(near=True)
        shares: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        for row in rows:
            row.assign_left()
            for member_id, taken in row.taken.items():
                shares[member_id] += sorted(taken)
        return shares


class _Row:
    """One topic while its partitions are given away."""

    def __init__(self, topic: str, members: Collection[Member], topics: Topics):
        partitions = topics.of([topic])
        self.topic = topic
        self.left = dict.fromkeys(partitions)
        self.taken: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        self.racks = Racks(members, partitions, topics)
        self._share, self._extra = divmod(len(partitions), len(members))

    def room(self, member_id: str) -> int:
        return max(0, self._share + (self._extra > 0) - len(self.taken[member_id]))

    def assign(self, member_id: str, partitions: Collection[TopicPartition]) -> None:
        self.taken[member_id] += partitions
        self._extra -= len(self.taken[member_id]) > self._share and len(partitions) > 0
        for partition in partitions:
            del self.left[partition]

    def assign_left(self, *, near: bool = False) -> None:
        """Give members as many of the partitions that are left as they have room for.

        `near`: only those in their rack.
        """
        for member_id in self.taken:
            fitting = (each for each in self.left if not near or self.racks.match(member_id, each))
            self.assign(member_id, list(islice(fitting, self.room(member_id))))


def _assign_alike(rows: list[_Row]) -> None:
    """Give the partitions with one number, in all topics, to the first member that has room for them.

    The member must have room in every topic, and all partitions must match its rack.
    """
    for number in range(len(rows[0].left)):
        found = [TopicPartition(row.topic, number) for row in rows]
        for member_id in rows[0].taken:
            if all(
                row.room(member_id) and row.racks.match(member_id, each) for row, each in zip(rows, found, strict=True)
            ):
                for row, each in zip(rows, found, strict=True):
                    row.assign(member_id, [each])
                break


class RoundRobinAssignor(Assignor):
    """Deals out the partitions of all topics in turn, each to the next member that wants the topic."""

    name = "roundrobin"

    def assign(self, members: Collection[Member], topics: Topics) -> Mapping[str, Collection[TopicPartition]]:
        shares: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        line = cycle(sorted(members, key=lambda member: member.place))
        for partition in topics.of({topic for member in members for topic in member.topics}):
            taker = next(member for member in line if partition.topic in member.topics)
            shares[taker.member_id].append(partition)
        return shares


ASSIGNORS: dict[str, Assignor] = {
    assignor.name: assignor
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor())
}
