"""The consumer group protocol (KIP-848) of one group, as a state machine.

Values in, effects out, as in `group.py`: no clock, no thread, no log. A call computes a list of `Change`s but does not
apply them. `take_stores` hands them out, and `apply` applies them once they are in the log. At a start `apply` also
applies the changes that are read from the log, so a restart finds the same state.

There are three epochs. The group epoch grows when the members' subscriptions or the topics have changed. An assignor
makes the target assignment for a group epoch. Each member reaches the target's epoch on its own (`reconciliation.py`).
All of that happens in the members' heartbeats. A heartbeat that changes nothing costs a few comparisons.

    Empty ----> Assigning --target made--> Reconciling --all members in its epoch--> Stable
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kbroker.errors import ErrorCode, ProtocolError
from kbroker.rules import range_assignor, uniform_assignor
from kbroker.rules.consumer_assignment import Assignor, MemberSpec
from kbroker.rules.consumer_group_member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_STATIC_EPOCH,
    NO_PARTITIONS,
    NOTHING,
    UNCHANGED,
    Assignment,
    Beat,
    BeatAnswer,
    Change,
    Claimed,
    ConsumerMember,
    CurrentChange,
    EpochChange,
    MemberState,
    PartitionMetadataChange,
    RegexChange,
    ResolvedRegex,
    StoreChanges,
    Subscription,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
    TopicView,
)
from kbroker.rules.consumer_group_state import (
    ConsumerGroupState,
    ConsumerLimits,
    metadata_hash_of,
    subscribed_topics,
    tombstones_of,
    wanted_by,
)
from kbroker.rules.group_member import JoinAnswer, Token
from kbroker.rules.group_state import NEVER
from kbroker.rules.reconciliation import Reconciliation, is_within
from kbroker.rules.topic_regex import check_regex

ASSIGNORS: Mapping[str, Assignor] = {
    uniform_assignor.NAME: uniform_assignor.assign,
    range_assignor.NAME: range_assignor.assign,
}
REGEX_REFRESH_MIN_INTERVAL_MS = 10_000
"""The least time between two matchings of a group's patterns, unless no pattern of the group has been matched yet."""


class Step:
    """The changes that one call has computed so far, and the group's epoch after them."""

    __slots__ = ("changes", "group_epoch")

    def __init__(self, group_epoch: int):
        self.changes: list[Change] = []
        self.group_epoch = group_epoch


class ConsumerGroup(ConsumerGroupState):
    """The state machine of one group.

    The caller holds one lock over a call and its effects. Before the next call it reports each item of `take_stores`,
    with `appended` or `stored`.
    """

    protocol_type = "consumer"
    protocol_name = None
    is_consumer_group = True

    def __init__(self, group_id: str, limits: ConsumerLimits, first_changes: Iterable[Change] = ()):
        """`first_changes` make this group from another one. They are applied here and stored with its first changes."""
        super().__init__(group_id, limits)
        self._first_changes = list(first_changes)
        self.apply(self._first_changes)
        self.pending_members = ()
        """Always empty: an id is not remembered before its member has joined. `Group` has the same attribute."""
        self.wake_ms = NEVER
        """No deadline is earlier than this."""
        self._topics_seen: TopicView | None = None
        """The topics for which `metadata_hash` was last computed."""
        self._sessions: dict[str, int] = {}
        """The session deadline, by member id."""
        self._revocations: dict[str, tuple[int, int]] = {}
        """Deadline and member epoch of members that have to give up partitions, by member id."""
        self._rejoins: dict[str, int] = {}
        """The deadline of classic members that were told to join again, by member id."""
        self._syncs: dict[str, int] = {}
        """The deadline of classic members that have joined and have not sent their SyncGroup, by member id."""
        self._topics_resolved: TopicView | None = None
        """The topics with which the patterns were last matched."""
        self._resolved_ms: int | None = None
        """When the patterns were last handed out for matching, monotonic (the log has wall clock times).

        None: not since the group was loaded."""
        self._target_ms: int | None = None
        """When the target assignment was made, monotonic. None: not since the group was loaded."""
        self._to_resolve: frozenset[str] | None = None
        self._is_resolving = False
        self._answers: list[tuple[Token, BeatAnswer | JoinAnswer]] = []
        self._stores: list[StoreChanges] = []

    # --- effects -----------------------------------------------------------------------------------------
    def take_answers(self) -> list[tuple[Token, BeatAnswer | JoinAnswer]]:
        """The answers that have become due since the last call, each with the token of its request."""
        answers, self._answers = self._answers, []
        return answers

    def take_stores(self) -> list[StoreChanges]:
        """The changes to be written since the last call, in this order."""
        stores, self._stores = self._stores, []
        return stores

    def take_patterns(self) -> frozenset[str] | None:
        """The patterns that the caller is to match with the topics, and hand to `resolved`; None: nothing to do."""
        patterns, self._to_resolve = self._to_resolve, None
        return patterns

    def appended(self, store: StoreChanges) -> None:
        """Apply the changes of `store`: the log has them, though they may not be durable yet."""
        if not store.is_done:
            store.is_done = True
            self.is_new, self._first_changes = False, []
            self.apply(store.changes)

    def stored(self, store: StoreChanges, error: ErrorCode, now_ms: int) -> None:
        """Take note that the log has made `store` durable, or with `error` that it has not. Answers its request."""
        if error:
            store.is_done = True
            self._topics_seen = None  # the change that these topics caused is not in the log: compute it again
        else:
            self.appended(store)
        if store.token is not None and store.answer is not None:
            self._answers.append((store.token, store.answer.failed(error) if error else store.answer))

    def committed(self, member_id: str, now_ms: int) -> None:
        """Do nothing: in this protocol a commit does not count as a heartbeat."""

    # --- heartbeats --------------------------------------------------------------------------------------
    def beat(self, token: Token, beat: Beat, topics: TopicView, now_ms: int, wall_ms: int) -> None:
        """Handle a ConsumerGroupHeartbeat: a member joins, stays or leaves.

        Raises ProtocolError, with nothing changed, if it is refused.
        """
        if beat.member_epoch in (LEAVING_EPOCH, LEAVING_STATIC_EPOCH):
            self._leave(token, beat, topics)
            return
        known = self.members.get(beat.member_id)
        if known is not None and self._changes_nothing(known, beat, topics, now_ms):
            self._expect(known, now_ms)
            self._answers.append((token, self._answer(known)))
            return
        step = Step(self.epoch)
        member = self._member_of(beat, step)
        updated = member if _says_no_more(beat, member.subscription) else self._updated(member, beat)
        updated = self._take_step(member, updated, beat.owned, topics, step, now_ms, wall_ms)
        self._expect(updated, now_ms)
        tells_all = beat.member_epoch == JOINING_EPOCH or beat.is_full
        moved = updated.current.assigned != member.current.assigned
        self._finish(step, token, self._answer(updated, with_assignment=tells_all or moved))

    def _take_step(
        self,
        member: ConsumerMember,
        updated: ConsumerMember,
        owned: Claimed | None,
        topics: TopicView,
        step: Step,
        now_ms: int,
        wall_ms: int,
    ) -> ConsumerMember:
        """Compute all changes that follow from `member` becoming `updated`: group epoch, target, its own next step.

        Returns the member after that step. `owned`: the partitions that the member says it has; None: it did not say.
        """
        names_changed = updated.subscription.topics != member.subscription.topics
        if updated.subscription != member.subscription:
            step.changes.append(SubscriptionChange(updated.member_id, updated.subscription))
        regex_changed, regex_resolved = self._change_regex(member, updated, step, now_ms, topics)
        if names_changed or regex_resolved or self._topics_seen is not topics:
            self._change_epoch(updated, topics, step, names_changed or regex_resolved)
        target_epoch, target = self._target(updated, topics, step, now_ms, wall_ms)
        changed = names_changed or regex_changed
        return self._reconciled(updated, target_epoch, target, owned, topics, step, now_ms, changed)

    def _finish(self, step: Step, token: Token, answer: BeatAnswer | JoinAnswer) -> None:
        """Answer once the changes of `step` are stored, or at once if there are none."""
        step.changes[:0] = self._first_changes
        if step.changes:
            self._stores.append(StoreChanges(step.changes, token, answer))
        else:
            self._answers.append((token, answer))

    def _changes_nothing(self, member: ConsumerMember, beat: Beat, topics: TopicView, now_ms: int) -> bool:
        """Whether the heartbeat changes nothing, the common case: the member is up to date and says nothing new."""
        return (
            beat.member_epoch == self.epoch == self.target_epoch
            and member.current.is_reconciled_to(self.target_epoch)
            and self._topics_seen is topics
            and _says_no_more(beat, member.subscription)
            and not self._is_refresh_due(self.pattern_counts().keys(), topics, now_ms)
        )

    def _answer(self, member: ConsumerMember, with_assignment: bool = False) -> BeatAnswer:
        assignment = member.current.assigned if with_assignment else None
        interval_ms = self.limits.heartbeat_interval_ms
        return BeatAnswer(ErrorCode.NONE, None, member.member_id, member.current.member_epoch, interval_ms, assignment)

    def _member_of(self, beat: Beat, step: Step) -> ConsumerMember:
        """The member before this heartbeat: a known one, a new one, or one that replaces a static member.

        Raises ProtocolError if the heartbeat is refused.
        """
        joins, member = beat.member_epoch == JOINING_EPOCH, self.members.get(beat.member_id)
        if member is None and len(self.members) >= self.limits.max_size:
            raise ProtocolError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self.limits.max_size} members.",
            )
        if beat.instance_id is not None:
            return self._static_member_of(beat, joins, step)
        if member is None:
            if joins:
                return ConsumerMember(beat.member_id)
            raise self._unknown(beat.member_id)
        self._check_epoch(member, beat)
        return member

    def _static_member_of(self, beat: Beat, joins: bool, step: Step, is_classic: bool = False) -> ConsumerMember:
        assert beat.instance_id is not None
        member = self.static_member(beat.instance_id)
        if not joins:
            self._check_instance(member, beat)
            assert member is not None
            self._check_epoch(member, beat)
            return member
        if member is None:
            return self.members.get(beat.member_id) or ConsumerMember(beat.member_id)
        both_new = member.subscription.classic is None and not is_classic
        if both_new and member.current.member_epoch != LEAVING_STATIC_EPOCH:
            raise ProtocolError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {beat.member_id} with instance id {beat.instance_id} cannot join the group because the "
                f"instance id is owned by {member.member_id} member.",
            )
        current = member.current._replace(member_epoch=JOINING_EPOCH, previous_epoch=0)
        replacing = ConsumerMember(beat.member_id, member.subscription, current)
        target = self.targets.get(member.member_id, NOTHING)
        step.changes += tombstones_of(member.member_id)
        step.changes.append(SubscriptionChange(beat.member_id, replacing.subscription))
        step.changes.append(TargetChange(beat.member_id, target))
        step.changes.append(CurrentChange(beat.member_id, current))
        return replacing

    def _check_instance(self, member: ConsumerMember | None, beat: Beat) -> None:
        if member is None:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {beat.instance_id} is unknown.")
        if member.member_id != beat.member_id:
            raise ProtocolError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {beat.member_id} with instance id {beat.instance_id} was fenced by member "
                f"{member.member_id}.",
            )

    def _unknown(self, member_id: str) -> ProtocolError:
        message = f"Member {member_id} is not a member of group {self.group_id}."
        return ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, message)

    @staticmethod
    def _check_epoch(member: ConsumerMember, beat: Beat) -> None:
        epoch, known = beat.member_epoch, member.current
        if epoch in (JOINING_EPOCH, known.member_epoch):
            return
        # The answer that had the newer epoch may have been lost.
        if epoch == known.previous_epoch and epoch < known.member_epoch and is_within(beat.owned, known.assigned):
            return
        kind = "greater" if epoch > known.member_epoch else "smaller"
        raise ProtocolError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {kind} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({known.member_epoch}). The member must abandon all its partitions and rejoin.",
        )

    @staticmethod
    def _updated(member: ConsumerMember, beat: Beat) -> ConsumerMember:
        was = member.subscription
        unchanged = beat.rebalance_timeout_ms == UNCHANGED
        subscription = Subscription(
            was.instance_id if beat.instance_id is None else beat.instance_id,
            was.rack_id if beat.rack_id is None else beat.rack_id,
            beat.client_id,
            beat.client_host,
            was.topics if beat.topics is None else beat.topics,
            was.regex if beat.regex is None else beat.regex,
            was.rebalance_timeout_ms if unchanged else beat.rebalance_timeout_ms,
            was.assignor if beat.assignor is None else beat.assignor,
            None,
        )
        return member._replace(subscription=subscription)

    # --- patterns ----------------------------------------------------------------------------------------
    def _change_regex(
        self, member: ConsumerMember, updated: ConsumerMember, step: Step, now_ms: int, topics: TopicView
    ) -> tuple[bool, bool]:
        """Whether the member's pattern has changed, and whether the topics of the new pattern are known already."""
        old, new = member.subscription.regex or "", updated.subscription.regex or ""
        counts = self.pattern_counts()
        if not (old or new or counts):
            return False, False
        is_resolved = False
        if old != new:
            if old and counts.get(old, 0) == 1:
                step.changes.append(RegexChange(old, None))
            if not new:
                is_resolved = True
            elif counts.get(new, 0) == 0:
                check_regex(new)
            else:
                is_resolved = new in self.regexes
        patterns = set(counts)
        if old and old != new and counts.get(old, 0) == 1:
            patterns.discard(old)
        if new:
            patterns.add(new)
        if self._is_refresh_due(patterns, topics, now_ms):
            self._is_resolving, self._resolved_ms = True, now_ms
            self._to_resolve = frozenset(patterns)
        return old != new, is_resolved

    def _is_refresh_due(self, patterns: Collection[str], topics: TopicView, now_ms: int) -> bool:
        """Whether the patterns have to be matched with the topics: some never were, or the topics may have changed."""
        if self._is_resolving or not patterns:
            return False
        if self._resolved_ms is None or not self.regexes:
            return True
        since_ms = now_ms - self._resolved_ms
        return since_ms > REGEX_REFRESH_MIN_INTERVAL_MS and (
            patterns != self.regexes.keys()
            or topics is not self._topics_resolved
            or since_ms > self.limits.regex_refresh_interval_ms
        )

    def resolved(self, found: Mapping[str, ResolvedRegex] | None, topics: TopicView) -> None:
        """Take the topics that the patterns of `take_patterns` match; None: matching has failed."""
        self._is_resolving = False
        self._topics_resolved = topics
        if found is None or self.is_dead:
            return
        counts = self.pattern_counts()
        changes: list[Change] = []
        regexes, bump = dict(self.regexes), False
        newest = max((known.version for known in regexes.values()), default=0)
        for regex, proposed in found.items():
            if counts.get(regex, 0) == 0:
                continue
            known = regexes.get(regex, ResolvedRegex())
            # The version is a wall clock's time, which may stand still or go back. Versions grow all the same.
            resolved = proposed._replace(version=max(proposed.version, newest + 1))
            bump = bump or known.topics != resolved.topics
            regexes[regex] = resolved
            changes.append(RegexChange(regex, resolved))
        new_hash = metadata_hash_of(subscribed_topics(self.subscriptions_wanted, regexes), topics)
        if bump or new_hash != self.metadata_hash:
            changes.append(EpochChange(self.epoch + 1, new_hash))
        if changes:
            self._stores.append(StoreChanges(changes))

    # --- epochs and targets ------------------------------------------------------------------------------
    def _change_epoch(self, updated: ConsumerMember, topics: TopicView, step: Step, bump: bool) -> None:
        subscriptions = self.subscriptions_with(updated)
        new_hash = metadata_hash_of(subscribed_topics(subscriptions, self.regexes), topics)
        if bump or new_hash != self.metadata_hash:
            step.group_epoch += 1
            step.changes.append(EpochChange(step.group_epoch, new_hash))
        self._topics_seen = topics
        if self.has_partition_metadata:
            step.changes.append(PartitionMetadataChange(False))

    def _target(
        self, updated: ConsumerMember, topics: TopicView, step: Step, now_ms: int, wall_ms: int
    ) -> tuple[int, Assignment]:
        """The epoch of the target assignment, and the member's part of it. Makes a new one if the group has changed."""
        is_soon = self._target_ms is not None and now_ms < self._target_ms + self.limits.assignment_interval_ms
        if step.group_epoch <= self.target_epoch or is_soon:
            return self.target_epoch, self.last_target(updated)
        members = dict(self.members)
        previous_id = self.static_members.get(updated.subscription.instance_id or "")
        if previous_id is not None and previous_id != updated.member_id:
            del members[previous_id]
        members[updated.member_id] = updated
        wanted: dict[tuple[tuple[str, ...], str], frozenset[bytes]] = {}
        counts: dict[bytes, int] = {}
        specs = {}
        for member_id, member in members.items():
            subscription = member.subscription
            key = wanted_by(subscription)
            if key not in wanted:
                wanted[key] = self.topic_ids(subscription, topics, counts)
            target = self.last_target(member)
            specs[member_id] = MemberSpec(subscription.instance_id, wanted[key], target)
        assigned = ASSIGNORS[self.assignor_of(members.values())](specs, counts)
        for member_id, target in assigned.items():
            known = self.targets.get(member_id)
            if target is not known and target != known:
                step.changes.append(TargetChange(member_id, target))
        step.changes.append(TargetEpochChange(step.group_epoch, wall_ms))
        self._target_ms = now_ms
        return step.group_epoch, assigned[updated.member_id]

    def _reconciled(
        self,
        member: ConsumerMember,
        target_epoch: int,
        target: Assignment,
        owned: Claimed | None,
        topics: TopicView,
        step: Step,
        now_ms: int,
        subscription_changed: bool,
    ) -> ConsumerMember:
        current = member.current
        if not subscription_changed and current.is_reconciled_to(target_epoch):
            return member
        subscribed = self.topic_ids(member.subscription, topics)
        reconciliation = Reconciliation(current, target_epoch, target, self.is_owned, owned, subscribed)
        after = reconciliation.next(subscription_changed)
        if after == current:
            return member
        step.changes.append(CurrentChange(member.member_id, after))
        if after.state is MemberState.UNREVOKED_PARTITIONS and member.subscription.classic is None:
            due_ms = self._due(now_ms + member.subscription.rebalance_timeout_ms)
            self._revocations[member.member_id] = (due_ms, after.member_epoch)
        else:
            self._revocations.pop(member.member_id, None)
        return member._replace(current=after)

    # --- leaving -----------------------------------------------------------------------------------------
    def _leave(self, token: Token, beat: Beat, topics: TopicView) -> None:
        if beat.instance_id is None:
            member = self.members.get(beat.member_id)
            if member is None:
                raise self._unknown(beat.member_id)
        else:
            member = self.static_member(beat.instance_id)
            self._check_instance(member, beat)
            assert member is not None
        answer = BeatAnswer(ErrorCode.NONE, None, beat.member_id, beat.member_epoch)
        if beat.instance_id is not None and beat.member_epoch == LEAVING_STATIC_EPOCH:
            # Epoch 0: the member that comes back may commit for the partitions it keeps, whatever epoch it joins in.
            kept = {topic_id: dict.fromkeys(of, 0) for topic_id, of in member.current.assigned.items()}
            away = member.current._replace(member_epoch=LEAVING_STATIC_EPOCH, assigned=kept, revoking=NO_PARTITIONS)
            self._stores.append(StoreChanges([CurrentChange(member.member_id, away)], token, answer))
        else:
            self._stores.append(StoreChanges(self._without([member], topics), token, answer))

    def _without(self, leaving: list[ConsumerMember], topics: TopicView | None) -> list[Change]:
        """The changes that remove these members and start the group's next epoch."""
        changes: list[Change] = []
        counts = dict(self.subscriptions_wanted)
        for member in leaving:
            changes += tombstones_of(member.member_id)
            key = wanted_by(member.subscription)
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
        patterns = {regex for _, regex in counts}
        regexes = dict(self.regexes)
        for regex in sorted({member.subscription.regex or "" for member in leaving} - patterns - {""}):
            changes.append(RegexChange(regex, None))
            regexes.pop(regex, None)
        new_hash = self.metadata_hash
        if topics is not None:
            new_hash = metadata_hash_of(subscribed_topics(counts, regexes), topics)
        changes.append(EpochChange(self.epoch + 1, new_hash))
        return changes

    # --- time --------------------------------------------------------------------------------------------
    def _due(self, deadline_ms: int) -> int:
        if deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms
        return deadline_ms

    def _expect(self, member: ConsumerMember, now_ms: int) -> None:
        """Restart the member's session timeout: it has been heard of now."""
        classic = member.subscription.classic
        timeout_ms = self.limits.session_timeout_ms if classic is None else classic.session_timeout_ms
        self._sessions[member.member_id] = self._due(now_ms + timeout_ms)

    def advance(self, now_ms: int) -> None:
        """Remove members whose deadline has passed (session, revocation, rejoin, sync), and set `wake_ms` anew."""
        if self.is_dead:
            return
        late = {member_id for member_id, due_ms in self._sessions.items() if due_ms <= now_ms}
        late |= {member_id for member_id, due_ms in self._rejoins.items() if due_ms <= now_ms}
        late |= {member_id for member_id, due_ms in self._syncs.items() if due_ms <= now_ms}
        for member_id, (due_ms, epoch) in self._revocations.items():
            member = self.members.get(member_id)
            if due_ms <= now_ms and member is not None and member.current.member_epoch == epoch:
                late.add(member_id)
        for member_id in late:
            for deadlines in (self._sessions, self._rejoins, self._syncs):
                deadlines.pop(member_id, None)
            self._revocations.pop(member_id, None)
        leaving = [self.members[member_id] for member_id in sorted(late) if member_id in self.members]
        if leaving:
            self._stores.append(StoreChanges(self._without(leaving, self._topics_seen)))
        self._revocations = {m: due for m, due in self._revocations.items() if due[0] > now_ms}
        due = [due_ms for due_ms, _ in self._revocations.values()]
        self.wake_ms = min([NEVER, *due, *self._sessions.values(), *self._rejoins.values(), *self._syncs.values()])

    def expel(self) -> list[str]:
        """Remove all members that use the consumer protocol, which is not served any more. Returns their ids."""
        leaving = [member for member in self.members.values() if member.subscription.classic is None]
        if leaving:
            self._stores.append(StoreChanges(self._without(leaving, self._topics_seen)))
        return [member.member_id for member in leaving]

    def start(self, now_ms: int) -> None:
        """Start the members' timeouts: the group was read from the log and is served from now on."""
        for member_id, member in self.members.items():
            self._expect(member, now_ms)
            if member.current.state is MemberState.UNREVOKED_PARTITIONS and member.subscription.classic is None:
                due_ms = self._due(now_ms + member.subscription.rebalance_timeout_ms)
                self._revocations[member_id] = (due_ms, member.current.member_epoch)

    def end(self, error: ErrorCode) -> None:
        """Make the group Dead: it is deleted, or another coordinator serves it.

        Only requests whose changes are being stored still wait; `stored` answers them.
        """
        self.is_dead = True
        self._stores = []
        self.wake_ms = NEVER


def _says_no_more(beat: Beat, subscription: Subscription) -> bool:
    """Whether a heartbeat says nothing new about the member's subscription."""
    return (
        (beat.instance_id is None or beat.instance_id == subscription.instance_id)
        and beat.topics is None
        and beat.regex is None
        and beat.rack_id is None
        and beat.assignor is None
        and beat.rebalance_timeout_ms == UNCHANGED
        and subscription.classic is None
        and beat.client_id == subscription.client_id
        and beat.client_host == subscription.client_host
    )
