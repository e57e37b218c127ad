"""The classic consumer group protocol of one group, as a state machine (KIP-62, 345, 394, 559, 800, 814).

Values in, effects out: no clock, no thread, no log. Every call gets the time (`now_ms`, monotonic). A request comes
with a token; its answer comes out of `take_answers` with that token. State to be made durable comes out of
`take_stores`; the caller reports the outcome with `stored`. `advance` has nothing to do before `wake_ms`.

    Empty --join--> PreparingRebalance --all joined, or timeout--> CompletingRebalance --leader's sync stored--> Stable
      ^                  |      ^------------- join, leave, expiry -----------|-------------------------------------|
      '--nobody joined---'                                                 (any state) --unload, delete--> Dead
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbroker.errors import ErrorCode
from kbroker.rules.group_member import (
    JoinAnswer,
    Joining,
    Leaving,
    Member,
    Store,
    StoreAssignment,
    StoreEmpty,
    StoreReplacement,
    SyncAnswer,
    Token,
)
from kbroker.rules.group_state import NEVER, GroupState
from kbroker.rules.group_view import GroupView

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""How long the JoinGroup of a new member may wait: it does not know its id yet, so it cannot heartbeat."""

NOBODY_JOINED_RETRY_MS = 1000
"""The least wait before a rebalance that no member has joined is tried again, however short the members' timeouts."""


class Group(GroupView):
    """The state machine of one group. Not thread-safe; the caller holds one lock over a call and its effects."""

    # --- joining -----------------------------------------------------------------------------------------
    def join(self, token: Token, joining: Joining, unique: str, now_ms: int) -> None:
        """Handle a JoinGroup request. `unique` becomes the end of the id of a new member."""
        if self.state is GroupState.DEAD:
            self._refuse_join(token, joining.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        if not self._has_room_for(joining.member_id):
            self._remove(joining.member_id)
            self._refuse_join(token, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not self._supports(joining.protocol_type, joining.protocols):
            self._refuse_join(token, joining.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif joining.member_id:
            self._join_known(token, joining, now_ms)
        else:
            self._join_new(token, joining, unique, now_ms)
        self._maybe_complete_join(now_ms)

    def _join_new(self, token: Token, joining: Joining, unique: str, now_ms: int) -> None:
        member_id = f"{joining.client_id if joining.instance_id is None else joining.instance_id}-{unique}"
        if joining.instance_id is not None:
            if joining.instance_id in self.static_members:
                self._replace_static(token, joining, member_id, now_ms)
            else:
                self._add(token, joining, member_id, now_ms)
        elif joining.known_member_id_required:
            self.pending_members.add(member_id, self._due(now_ms + joining.session_timeout_ms))
            self._refuse_join(token, member_id, ErrorCode.MEMBER_ID_REQUIRED)
        else:
            self._add(token, joining, member_id, now_ms)

    def _join_known(self, token: Token, joining: Joining, now_ms: int) -> None:
        if joining.member_id in self.pending_members:
            if joining.instance_id is not None:  # only dynamic members are given ids
                self._refuse_join(token, joining.member_id, ErrorCode.UNKNOWN_SERVER_ERROR)
            else:
                self._add(token, joining, joining.member_id, now_ms)
            return
        error = self._members.check(joining.member_id, joining.instance_id)
        if error:
            self._refuse_join(token, joining.member_id, error)
            return
        member = self.members[joining.member_id]
        unchanged = member.supports_exactly(joining.protocols)
        is_leader = self.leader == member.member_id
        if self.state is GroupState.COMPLETING_REBALANCE and unchanged:
            # The member has not got the answer to its last JoinGroup, so it gets the answer again.
            self._answers.append((token, self._generation_answer(member, with_members=is_leader)))
        elif self.state is GroupState.STABLE and unchanged and not is_leader:
            self._answers.append((token, self._generation_answer(member)))
        else:
            # A leader that joins a stable group wants a new assignment: it sees changes that are not in the metadata.
            self._update(member, joining, token)
            self._maybe_begin_rebalance(now_ms)

    def _refuse_join(self, token: Token, member_id: str, error: ErrorCode) -> None:
        self._answers.append((token, JoinAnswer(error, member_id)))

    def _add(self, token: Token, joining: Joining, member_id: str, now_ms: int) -> None:
        member = Member.from_joining(member_id, joining)
        member.join_token = token
        if self.state is GroupState.PREPARING_REBALANCE and self.generation == 0:
            self._newcomer_during_delay = True
        if not self.members:
            self.protocol_type = joining.protocol_type
        self._members.add(member)
        self.pending_members.discard(member_id)
        self._awaiting_join += 1
        member.deadline_ms = self._due(now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._maybe_begin_rebalance(now_ms)

    def _update(self, member: Member, joining: Joining, token: Token) -> None:
        if member.join_token is None:
            self._awaiting_join += 1
        else:
            # The member has sent two JoinGroups: only the newer one can be answered with the generation.
            self._refuse_join(member.join_token, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
        member.join_token = token
        self._members.update(member, joining.protocols, joining.rebalance_timeout_ms, joining.session_timeout_ms)

    # --- static members that come back (KIP-345) ---------------------------------------------------------
    def _replace_static(self, token: Token, joining: Joining, member_id: str, now_ms: int) -> None:
        assert joining.instance_id is not None
        replaced_id = self.static_members[joining.instance_id]
        replaced_leader = self.leader or ""
        member = self.members[replaced_id]
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._rename(member, member_id)
        self._update(member, joining, token)
        self._expect(member, now_ms)
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The leader may already know the old id, so its assignment would not reach the new one.
            self._begin_rebalance(now_ms)
        elif self.state is GroupState.STABLE:
            if self._members.vote() == self.protocol_name:
                skip = joining.can_skip_assignment
                store = StoreReplacement(
                    self.generation, joining.instance_id, member_id, replaced_id, replaced_leader, *before, skip
                )
                self._stores.append(store)
            else:
                self._begin_rebalance(now_ms)

    def _rename(self, member: Member, member_id: str) -> None:
        """Give `member` a new id, and fence requests that still wait under the old one."""
        old_id = member.member_id
        self._answer_join(member, JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, old_id))
        self._answer_sync(member, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID))
        self._members.rename(member, member_id)
        if old_id in self._unsynced:
            self._unsynced.remove(old_id)
            self._unsynced.add(member_id)

    def _replacement_stored(self, store: StoreReplacement, error: ErrorCode, now_ms: int) -> None:
        member = self.members.get(store.member_id)
        if member is None or member.join_token is None or self.state is not GroupState.STABLE:
            return  # the member has left, has been answered, or takes part in a rebalance meanwhile
        if error:
            token, member.join_token = member.join_token, None
            self._awaiting_join -= 1
            self._members.update(member, store.protocols, store.rebalance_timeout_ms, store.session_timeout_ms)
            self._rename(member, store.replaced_member_id)
            answer = JoinAnswer(
                error, "", self.generation, self.protocol_type, self.protocol_name, store.replaced_leader
            )
            self._answers.append((token, answer))
        elif store.can_skip_assignment:
            is_leader = self.leader == member.member_id
            answer = self._generation_answer(member, with_members=is_leader)
            self._answer_join(member, answer._replace(skip_assignment=is_leader))
        else:
            # Before v9 a returning leader is told the old leader's id, so that it makes no assignment: no member would
            # get it.
            self._answer_join(member, self._generation_answer(member)._replace(leader=store.replaced_leader))
        self._expect(member, now_ms)

    # --- rebalances --------------------------------------------------------------------------------------
    def _maybe_begin_rebalance(self, now_ms: int) -> None:
        if self.state in (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            self._begin_rebalance(now_ms)

    def rebalance(self, now_ms: int) -> None:
        """Begin a rebalance: all members have to join again."""
        self._maybe_begin_rebalance(now_ms)

    def _begin_rebalance(self, now_ms: int) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._set_assignments({}, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._unsynced.clear()
        self._sync_deadline_ms = NEVER
        timeout_ms = self._members.rebalance_timeout_ms
        was_empty, self.state = self.state is GroupState.EMPTY, GroupState.PREPARING_REBALANCE
        if was_empty:
            delay_ms = self.initial_rebalance_delay_ms
            self._initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
            self._join_deadline_ms = self._due(now_ms + delay_ms)
            if delay_ms <= 0:
                self._end_of_join_wait(now_ms)
        else:
            self._initial_delay_left_ms = None
            self._join_deadline_ms = self._due(now_ms + timeout_ms)
            self._maybe_complete_join(now_ms)

    def _maybe_complete_join(self, now_ms: int) -> None:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial_delay_left_ms is None
            and self._awaiting_join == len(self.members)
            and not self.pending_members
        ):
            self._complete_join(now_ms)

    def _end_of_join_wait(self, now_ms: int) -> None:
        left_ms = self._initial_delay_left_ms
        if left_ms and self._newcomer_during_delay:
            # New members still arrive: the first generation waits longer, up to the rebalance timeout.
            self._newcomer_during_delay = False
            delay_ms = min(self.initial_rebalance_delay_ms, left_ms)
            self._initial_delay_left_ms = max(left_ms - delay_ms, 0)
            self._join_deadline_ms = self._due(now_ms + delay_ms)
        else:
            self._initial_delay_left_ms = None
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Begin the next generation with the members that have joined."""
        if self._awaiting_join != len(self.members):
            # Static members stay until their session ends: they may come back under the same instance id.
            late = [m for m in self.members.values() if m.join_token is None and m.instance_id is None]
            for member in late:
                self._remove(member.member_id)
        if self.members and not self._members.elect_joined_leader():
            self._join_deadline_ms = self._due(now_ms + max(self._members.rebalance_timeout_ms, NOBODY_JOINED_RETRY_MS))
            return
        self._join_deadline_ms = NEVER
        self._initial_delay_left_ms = None
        self.generation += 1
        self._unsynced.clear()
        if not self.members:
            self.protocol_name = None
            self.state = GroupState.EMPTY
            self._stores.append(StoreEmpty(self.generation))
            return
        self.protocol_name = self._members.vote()
        self.state = GroupState.COMPLETING_REBALANCE
        for member in self.members.values():
            if member.join_token is not None:
                self._answer_join(member, self._generation_answer(member, self.leader == member.member_id))
            member.is_new = False
            self._expect(member, now_ms)
        self._unsynced.update(self.members)
        self._sync_deadline_ms = self._due(now_ms + self._members.rebalance_timeout_ms)

    # --- syncing -----------------------------------------------------------------------------------------
    def sync(
        self,
        token: Token,
        generation: int,
        member_id: str,
        instance_id: str | None,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Mapping[str, bytes],
        now_ms: int,
    ) -> None:
        """Handle a SyncGroup: a member asks for its assignment; the leader brings the assignments of all."""
        error = self._check_sync(generation, member_id, instance_id, protocol_type, protocol_name)
        if error:
            self._answers.append((token, SyncAnswer(error)))
            return
        member = self.members[member_id]
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._sync_deadline_ms = NEVER
        if self.state is GroupState.STABLE:
            self._answers.append((token, self._assignment_answer(member)))
            self._expect(member, now_ms)
            return
        if member.sync_token is not None:
            self._answers.append((member.sync_token, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)))
        member.sync_token = token
        if self.leader == member_id:
            assigned = {known_id: assignments.get(known_id, b"") for known_id in self.members}
            self._stores.append(StoreAssignment(generation, assigned))

    def _check_sync(
        self, generation: int, member_id: str, instance_id: str | None, protocol_type: str | None, name: str | None
    ) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._members.check(member_id, instance_id)
        if error:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if protocol_type is not None and protocol_type != self.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if name is not None and name != self.protocol_name:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _set_assignments(self, assignments: Mapping[str, bytes], error: ErrorCode, now_ms: int) -> None:
        """Set all members' assignments and answer the SyncGroups that wait: with the assignment, or with `error`."""
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
            if member.sync_token is not None:
                self._answer_sync(member, SyncAnswer(error) if error else self._assignment_answer(member))
                self._expect(member, now_ms)

    def stored(self, store: Store, error: ErrorCode, now_ms: int) -> None:
        """Take note that the log has made `store` durable, or with `error` that it has not."""
        if isinstance(store, StoreReplacement):
            self._replacement_stored(store, error, now_ms)
        elif (
            isinstance(store, StoreAssignment)
            and self.state is GroupState.COMPLETING_REBALANCE
            and self.generation == store.generation
        ):
            if error:
                self._set_assignments({}, error, now_ms)
                self._begin_rebalance(now_ms)
            else:
                self._set_assignments(store.assignments, ErrorCode.NONE, now_ms)
                self.state = GroupState.STABLE

    # --- living and leaving ------------------------------------------------------------------------------
    def heartbeat(self, generation: int, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        """Handle a Heartbeat: a member says that it is alive. REBALANCE_IN_PROGRESS tells it to join again."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._members.check(member_id, instance_id)
        if error:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self._expect(self.members[member_id], now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def committed(self, member_id: str, now_ms: int) -> None:
        """Take note of a member's commit, which counts as a heartbeat."""
        member = self.members.get(member_id)
        if member is not None:
            self._expect(member, now_ms)

    def leave(self, leaving: Iterable[Leaving], now_ms: int) -> list[ErrorCode]:
        """Handle a LeaveGroup: members leave, or an administrator removes them. Returns one error for each."""
        return [self._leave(member_id, instance_id, now_ms) for member_id, instance_id in leaving]

    def _leave(self, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        if not member_id:
            current = None if instance_id is None else self.static_members.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = current
        elif member_id in self.pending_members:
            self._remove(member_id)
            self._maybe_complete_join(now_ms)
            return ErrorCode.NONE
        else:
            error = self._members.check(member_id, instance_id)
            if error:
                return error
        self._remove_and_rebalance(self.members[member_id], now_ms)
        return ErrorCode.NONE

    def forget_pending(self, member_id: str, now_ms: int) -> None:
        """Stop waiting for a client to join with an id that it was given; if it still does, it has to get a new id."""
        if self.pending_members.discard(member_id):
            self._maybe_complete_join(now_ms)

    def _remove_and_rebalance(self, member: Member, now_ms: int) -> None:
        self._remove(member.member_id)
        self._maybe_begin_rebalance(now_ms)
        self._maybe_complete_join(now_ms)

    def _remove(self, member_id: str) -> None:
        self.pending_members.discard(member_id)
        self._unsynced.discard(member_id)
        member = self.members.get(member_id)
        if member is None:
            return
        # A new member may have waited too long. UNKNOWN_MEMBER_ID makes it join again if it is still alive.
        self._answer_join(member, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, ""))
        self._answer_sync(member, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        self._members.remove(member)

    def _answer_join(self, member: Member, answer: JoinAnswer) -> None:
        if member.join_token is not None:
            self._answers.append((member.join_token, answer))
            member.join_token = None
            self._awaiting_join -= 1

    def _answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        if member.sync_token is not None:
            self._answers.append((member.sync_token, answer))
            member.sync_token = None

    # --- time --------------------------------------------------------------------------------------------
    def _due(self, deadline_ms: int) -> int:
        if deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms
        return deadline_ms

    def _expect(self, member: Member, now_ms: int) -> None:
        """Restart the member's session timeout: it has been heard of now."""
        deadline_ms = now_ms + member.session_timeout_ms
        member.deadline_ms = deadline_ms
        if deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def advance(self, now_ms: int) -> None:
        """Do everything that is due, and set `wake_ms` anew."""
        if self.state is GroupState.DEAD:
            return
        if self._join_deadline_ms <= now_ms and self.state is GroupState.PREPARING_REBALANCE:
            self._join_deadline_ms = NEVER
            self._end_of_join_wait(now_ms)
        if self._sync_deadline_ms <= now_ms:
            self._sync_deadline_ms = NEVER
            self._drop_unsynced(now_ms)
        if self.pending_members.take_due(now_ms):
            self._maybe_complete_join(now_ms)
        for member in [m for m in self.members.values() if m.deadline_ms is not None and m.deadline_ms <= now_ms]:
            if member.deadline_ms is None or member.deadline_ms > now_ms or member.member_id not in self.members:
                continue  # answered or removed because of an earlier member in this loop
            if not member.is_new and (member.join_token is not None or member.sync_token is not None):
                member.deadline_ms = None  # it waits for our answer; its session timeout restarts with the answer
            else:
                self._remove_and_rebalance(member, now_ms)
        self.wake_ms = min(
            (deadline for m in self.members.values() if (deadline := m.deadline_ms) is not None), default=NEVER
        )
        self.wake_ms = min(self.wake_ms, self._join_deadline_ms, self._sync_deadline_ms, self.pending_members.next_ms)

    def _drop_unsynced(self, now_ms: int) -> None:
        if not self._unsynced or self.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        for member_id in list(self._unsynced):
            self._remove(member_id)
        self._begin_rebalance(now_ms)

    # --- the log -----------------------------------------------------------------------------------------
    @classmethod
    def restore(
        cls,
        group_id: str,
        protocol_type: str,
        protocol_name: str | None,
        generation: int,
        leader: str | None,
        members: Iterable[Member],
        max_size: int = 2**31 - 1,
        initial_rebalance_delay_ms: int = 0,
    ) -> Group:
        """Make the group from its newest record: Stable, or Empty without members."""
        group = cls(group_id, max_size, initial_rebalance_delay_ms)
        group.protocol_type = protocol_type or None
        group.protocol_name = protocol_name
        group.generation = generation
        for member in members:
            group._members.add(member)
        if leader in group.members:
            group._members.leader = leader
        if group.members:
            group.state = GroupState.STABLE
        return group

    def start(self, now_ms: int) -> None:
        """Start the members' session timeouts: the restored group is served from now on.

        If it has more members than `max_size`, a rebalance begins.
        """
        if len(self.members) > self.max_size:
            self._begin_rebalance(now_ms)
        for member in self.members.values():
            self._expect(member, now_ms)

    def end(self, error: ErrorCode) -> None:
        """Make the group Dead: it is deleted, or another coordinator serves it. Waiting requests get `error`."""
        self.state = GroupState.DEAD
        for member in self.members.values():
            self._answer_join(member, JoinAnswer(error, member.member_id))
            self._answer_sync(member, SyncAnswer(error))
        self.wake_ms = self._join_deadline_ms = self._sync_deadline_ms = NEVER
