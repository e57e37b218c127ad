"""A consumer group (KIP-848) that also has members of the classic protocol, while it changes from one to the other.

A classic member joins, syncs and heartbeats as in a classic group; its target assignment is made like that of the other
members. JoinGroup takes the member one step further, and answers its epoch as the generation. SyncGroup answers the
partitions that the member has. Heartbeat answers whether to join again: because the group has a newer epoch, because
the member has to give up partitions, or because partitions that it waits for are free.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.rules.consumer_group import ConsumerGroup, Step
from kbroker.rules.consumer_group_member import (
    JOINING_EPOCH,
    NOTHING,
    Beat,
    Claimed,
    ClassicMetadata,
    ConsumerMember,
    MemberState,
    StoreChanges,
    Subscription,
    TopicView,
)
from kbroker.rules.group_member import JoinAnswer, Joining, Leaving, Token


class Wanted(NamedTuple):
    """The subscription in the metadata of a joining member."""

    topics: tuple[str, ...]
    """Sorted, each once."""
    owned: Claimed = NOTHING
    rack_id: str | None = None


class MixedGroup(ConsumerGroup):
    """A consumer group that also has members of the classic protocol."""

    # --- joining -----------------------------------------------------------------------------------------
    def join(
        self, token: Token, joining: Joining, wanted: Wanted, unique: str, topics: TopicView, now_ms: int, wall_ms: int
    ) -> None:
        """Handle the JoinGroup of a classic member. It is answered once its changes are stored.

        Raises ProtocolError, with nothing changed, if it is refused.
        """
        member_id = joining.member_id or unique
        is_unknown = not joining.member_id
        if member_id not in self.members and len(self.members) >= self.limits.max_size:
            raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not self._supports(joining):
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if is_unknown and joining.instance_id is None and joining.known_member_id_required:
            self._answers.append((token, JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, member_id)))
            return
        step = Step(self.epoch)
        beat = Beat(member_id, JOINING_EPOCH, joining.client_id, joining.client_host, joining.instance_id)
        if joining.instance_id is None:
            member = self.members.get(member_id) or ConsumerMember(member_id)
        elif is_unknown:
            member = self._static_member_of(beat, True, step, is_classic=True)
        else:
            known = self.static_member(joining.instance_id)
            self._check_instance(known, beat)
            assert known is not None
            member = known
        was = member.subscription
        subscription = Subscription(
            joining.instance_id if joining.instance_id is not None else was.instance_id,
            wanted.rack_id if wanted.rack_id is not None else was.rack_id,
            joining.client_id,
            joining.client_host,
            wanted.topics,
            "",
            joining.rebalance_timeout_ms,
            was.assignor,
            ClassicMetadata(joining.session_timeout_ms, tuple(joining.protocols.items())),
        )
        updated = member._replace(subscription=subscription)
        updated = self._take_step(member, updated, wanted.owned, topics, step, now_ms, wall_ms)
        self._rejoins.pop(member_id, None)
        self._expect(updated, now_ms)
        self._syncs[member_id] = self._due(now_ms + joining.rebalance_timeout_ms)
        name = next(iter(joining.protocols))
        epoch = updated.current.member_epoch
        self._finish(step, token, JoinAnswer(ErrorCode.NONE, member_id, epoch, self.protocol_type, name))

    def _supports(self, joining: Joining) -> bool:
        if joining.protocol_type != self.protocol_type or not joining.protocols:
            return False
        supported = [self._names_of(m) for m in self.members.values() if m.subscription.classic is not None]
        return not supported or any(all(name in names for names in supported) for name in joining.protocols)

    @staticmethod
    def _names_of(member: ConsumerMember) -> tuple[str, ...]:
        classic = member.subscription.classic
        return tuple(name for name, _ in classic.protocols) if classic is not None else ()

    # --- questions ---------------------------------------------------------------------------------------
    @property
    def is_all_classic(self) -> bool:
        """Whether the group has members, and all of them use the classic protocol."""
        return 0 < self.classic_count == len(self.members)

    def _classic_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is None:
            member = self.members.get(member_id)
            if member is None:
                raise self._unknown(member_id)
        else:
            member = self.static_member(instance_id)
            self._check_instance(member, Beat(member_id, JOINING_EPOCH, "", "", instance_id))
            assert member is not None
        if member.subscription.classic is None:
            message = f"Member {member_id} does not use the classic protocol."
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member

    # --- syncing and living ------------------------------------------------------------------------------
    def sync(
        self,
        generation: int,
        member_id: str,
        instance_id: str | None,
        protocol_type: str | None,
        protocol_name: str | None,
        now_ms: int,
    ) -> ConsumerMember:
        """Handle the SyncGroup of a classic member, and return the member. Raises ProtocolError if it is refused."""
        member = self._classic_member(member_id, instance_id)
        if generation != member.current.member_epoch:
            raise ProtocolError(ErrorCode.ILLEGAL_GENERATION)
        if protocol_type is not None and protocol_type != self.protocol_type:
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if protocol_name is not None and protocol_name != self._names_of(member)[0]:
            raise ProtocolError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_revoking = member.current.state is MemberState.UNREVOKED_PARTITIONS
        if self.epoch > member.current.member_epoch and not is_revoking:
            self._expect_rejoin(member, now_ms)
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._syncs.pop(member_id, None)
        self._expect(member, now_ms)
        return member

    def heartbeat(self, generation: int, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
        """Handle the Heartbeat of a classic member; REBALANCE_IN_PROGRESS tells it to join again."""
        try:
            member = self._classic_member(member_id, instance_id)
        except ProtocolError as error:
            return error.code
        current = member.current
        if generation != current.member_epoch:
            return ErrorCode.ILLEGAL_GENERATION
        self._expect(member, now_ms)
        may_go_on = current.state is MemberState.UNRELEASED_PARTITIONS and not self._waits_for_others(member)
        if current.member_epoch < self.epoch or current.state is MemberState.UNREVOKED_PARTITIONS or may_go_on:
            self._expect_rejoin(member, now_ms)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _waits_for_others(self, member: ConsumerMember) -> bool:
        for topic_id, partitions in self.targets.get(member.member_id, NOTHING).items():
            having = member.current.assigned.get(topic_id, {})
            if any(p not in having and self.is_owned(topic_id, p) for p in partitions):
                return True
        return False

    def _expect_rejoin(self, member: ConsumerMember, now_ms: int) -> None:
        if member.member_id not in self._rejoins:
            timeout_ms = member.subscription.rebalance_timeout_ms
            self._rejoins[member.member_id] = self._due(now_ms + timeout_ms)

    # --- leaving -----------------------------------------------------------------------------------------
    def leave(self, leaving: Iterable[Leaving], now_ms: int) -> list[ErrorCode]:
        """Handle a LeaveGroup: classic members leave, or an administrator removes members.

        Returns one error for each.
        """
        gone: dict[str, ConsumerMember] = {}
        errors = []
        for member_id, instance_id in leaving:
            try:
                member = self._leaving_member(member_id, instance_id)
                gone[member.member_id] = member
                errors.append(ErrorCode.NONE)
            except ProtocolError as error:
                errors.append(error.code)
        if gone:
            self._stores.append(StoreChanges(self._without(list(gone.values()), self._topics_seen)))
        return errors

    def _leaving_member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is not None and not member_id:
            member = self.static_member(instance_id)
            if member is None:
                raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID)
            return member
        if instance_id is not None:
            member = self.static_member(instance_id)
            self._check_instance(member, Beat(member_id, JOINING_EPOCH, "", "", instance_id))
            assert member is not None
            return member
        return self._classic_member(member_id, None)
