"""The members of a classic group, their leader, and the protocols that they have in common."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.errors import ErrorCode
from kbroker.rules.group_member import Member


class GroupMembers:
    """The members of one group, in the order in which they joined. Not thread-safe."""

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """Member id by instance id (KIP-345)."""
        self.leader: str | None = None
        """The id of the member that makes the assignment; None only without members."""
        self._supporters: dict[str, int] = {}
        """How many members support a protocol, by its name."""

    def check(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if the member is in the group.

        FENCED_INSTANCE_ID if another member has the instance id now, UNKNOWN_MEMBER_ID if there is no such member.
        """
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.by_id else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: Member) -> None:
        """Add a new member; the first one becomes the leader."""
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count(member, 1)

    def remove(self, member: Member) -> None:
        """Remove a member. If it was the leader, the member that has been in the group longest becomes the leader."""
        del self.by_id[member.member_id]
        self._count(member, -1)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.by_id), None)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member another id; it moves to the end of the order."""
        assert member.instance_id is not None
        del self.by_id[member.member_id]
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        self.by_id[member_id] = member
        self.static[member.instance_id] = member_id

    def elect_joined_leader(self) -> bool:
        """Choose as leader a member that has joined the rebalance: the present leader if it has.

        False if none has joined.
        """
        if self.leader is not None and self.by_id[self.leader].join_token is not None:
            return True
        joined = next((m for m in self.by_id.values() if m.join_token is not None), None)
        if joined is None:
            return False
        self.leader = joined.member_id
        return True

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of all members, in ms; 0 without members."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    # --- protocols ---------------------------------------------------------------------------------------
    def update(
        self, member: Member, protocols: Mapping[str, bytes], rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Change a member's protocols and timeouts to those of its new JoinGroup."""
        if member.protocols.keys() == protocols.keys():
            member.protocols = protocols
        else:
            self._count(member, -1)
            member.protocols = protocols
            self._count(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def _count(self, member: Member, step: int) -> None:
        for name in member.protocols:
            count = self._supporters.get(name, 0) + step
            if count:
                self._supporters[name] = count
            else:
                del self._supporters[name]

    def all_support_one_of(self, protocols: Mapping[str, bytes]) -> bool:
        """Whether every member supports one and the same of these protocols."""
        count = len(self.by_id)
        return any(self._supporters.get(name, 0) == count for name in protocols)

    def vote(self) -> str:
        """The protocol that most members prefer among those that all support. In a tie, the one voted for first."""
        count = len(self.by_id)
        candidates = {name for name, supporters in self._supporters.items() if supporters == count}
        votes: dict[str, int] = {}
        for member in self.by_id.values():
            choice = next(name for name in member.protocols if name in candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)
