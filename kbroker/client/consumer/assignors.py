"""The assignors that come with the client, by the names that all clients know them by."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import cycle

from kbroker.client.consumer.assignor import Assignor, Member, Topics
from kbroker.client.consumer.sticky import CooperativeStickyAssignor, StickyAssignor
from kbroker.model import TopicPartition


class RangeAssignor(Assignor):
    """Each topic in runs as even as can be: the first members have one more. Same numbers of topics go together."""

    name = "range"

    def assign(self, members: Collection[Member], topics: Topics) -> Mapping[str, Collection[TopicPartition]]:
        shares: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        wanting = defaultdict(list)
        for member in sorted(members, key=lambda member: member.place):
            for topic in member.topics:
                wanting[topic].append(member)
        for topic in sorted(wanting):
            partitions = topics.of([topic])
            share, extra = divmod(len(partitions), len(wanting[topic]))
            at = 0
            for number, member in enumerate(wanting[topic]):
                size = share + (number < extra)
                shares[member.member_id] += partitions[at : at + size]
                at += size
        return shares


class RoundRobinAssignor(Assignor):
    """All partitions of all topics dealt out in turn, to the next member that wants the topic."""

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
