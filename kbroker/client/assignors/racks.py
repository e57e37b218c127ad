"""The racks of members and replicas, for assignors (KIP-881)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kbroker.client.assignors.assignor import Member, Topics
from kbroker.model import TopicPartition


class Racks:
    """The racks of members and of the replicas of some partitions.

    Racks matter (`count` is true) when a member is in the rack of a replica, and not all partitions have their replicas
    in the same racks.
    """

    def __init__(self, members: Collection[Member], partitions: Collection[TopicPartition], topics: Topics):
        self._of_members = {each.member_id: each.rack for each in members if each.rack}
        self._members_in = Counter(self._of_members.values())
        self._of_partitions = {each: topics.racks.get(each, frozenset()) for each in partitions}
        everywhere = frozenset[str]().union(*self._of_partitions.values())
        self.count = not everywhere.isdisjoint(self._members_in) and any(
            racks != everywhere for racks in self._of_partitions.values()
        )

    def of_member(self, member_id: str) -> str | None:
        return self._of_members.get(member_id)

    def of_partition(self, partition: TopicPartition) -> frozenset[str]:
        return self._of_partitions[partition]

    def match(self, member_id: str, partition: TopicPartition) -> bool:
        """Return whether the partition has a replica in the member's rack. A member without a rack always matches."""
        rack = self._of_members.get(member_id)
        return rack is None or rack in self._of_partitions[partition]

    def near(self, partition: TopicPartition, member_ids: Collection[str]) -> list[str]:
        """Return those of the members that are in a rack of the partition's replicas."""
        racks = self._of_partitions[partition]
        return [member_id for member_id in member_ids if self._of_members.get(member_id) in racks]

    def choice(self, partition: TopicPartition) -> int:
        """Return how many members are in a rack of the partition's replicas."""
        return sum(self._members_in[rack] for rack in self._of_partitions[partition])
