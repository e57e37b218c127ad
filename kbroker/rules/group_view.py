"""A classic group's state, and the questions about it. `group.py` has what happens to it."""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.errors import ErrorCode
from kbroker.rules.group_member import GenerationMember, JoinAnswer, Member, Store, SyncAnswer, Token
from kbroker.rules.group_members import GroupMembers
from kbroker.rules.group_state import NEVER, GroupState
from kbroker.rules.pending_ids import PendingIds


class GroupView:
    """What is known of one group. Nothing here changes it, but for `take_answers` and `take_stores`."""

    def __init__(self, group_id: str, max_size: int = 2**31 - 1, initial_rebalance_delay_ms: int = 0):
        self.group_id = group_id
        self.max_size = max_size
        self.initial_rebalance_delay_ms = initial_rebalance_delay_ms
        self.state = GroupState.EMPTY
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self._members = GroupMembers()
        self.pending_members = PendingIds()
        self.wake_ms = NEVER
        """No deadline is earlier than this."""
        self._awaiting_join = 0
        self._unsynced: set[str] = set()
        """Members of this generation that have not sent their SyncGroup yet."""
        self._sync_deadline_ms = NEVER
        self._join_deadline_ms = NEVER
        self._initial_delay_left_ms: int | None = None
        """During the delay of an empty group's first rebalance: by how much the delay may still grow. Else None."""
        self._newcomer_during_delay = False
        self._answers: list[tuple[Token, JoinAnswer | SyncAnswer]] = []
        self._stores: list[Store] = []

    # --- effects -----------------------------------------------------------------------------------------
    def take_answers(self) -> list[tuple[Token, JoinAnswer | SyncAnswer]]:
        """The answers that have become due since the last call, each with the token of its request."""
        answers, self._answers = self._answers, []
        return answers

    def take_stores(self) -> list[Store]:
        """The states to be made durable since the last call, in this order."""
        stores, self._stores = self._stores, []
        return stores

    # --- questions ---------------------------------------------------------------------------------------
    @property
    def is_consumer_group(self) -> bool:
        """Whether the members are consumers, so that their metadata has the consumers' format."""
        return self.protocol_type == "consumer"

    def metadata_of(self, member: Member) -> bytes:
        """The member's metadata for the protocol of this generation."""
        return member.protocols.get(self.protocol_name or "", b"")

    @property
    def members(self) -> Mapping[str, Member]:
        """The members by id, in the order in which they joined."""
        return self._members.by_id

    @property
    def static_members(self) -> Mapping[str, str]:
        """Member id by instance id."""
        return self._members.static

    @property
    def leader(self) -> str | None:
        """The id of the member that makes the assignment; None without members."""
        return self._members.leader

    def check_commit(
        self, generation: int, member_id: str, instance_id: str | None, transactional: bool = False
    ) -> ErrorCode:
        """NONE if the member may commit offsets now, else why not."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE  # from an administrator, or a consumer that assigns partitions to itself
        if generation >= 0 or member_id or instance_id is not None:
            error = self._members.check(member_id, instance_id)
            if error:
                return error
            if generation != self.generation:
                return ErrorCode.ILLEGAL_GENERATION
        elif not transactional:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _has_room_for(self, member_id: str) -> bool:
        if self.state is GroupState.EMPTY:
            return True
        member = self.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            # Members that join again first stay, so a group above a lowered limit loses its slowest members.
            return (member is not None and member.join_token is not None) or self._awaiting_join < self.max_size
        return member is not None or len(self.members) < self.max_size

    def _supports(self, protocol_type: str, protocols: Mapping[str, bytes]) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return self.protocol_type == protocol_type and self._members.all_support_one_of(protocols)

    # --- what members are told ---------------------------------------------------------------------------
    def _generation_answer(self, member: Member, with_members: bool = False) -> JoinAnswer:
        members = self._generation_members() if with_members else ()
        return JoinAnswer(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader or "",
            False,
            members,
        )

    def _generation_members(self) -> tuple[GenerationMember, ...]:
        name = self.protocol_name or ""
        return tuple(GenerationMember(m.member_id, m.instance_id, m.protocols[name]) for m in self.members.values())

    def _assignment_answer(self, member: Member) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)
