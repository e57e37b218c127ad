"""The group coordinator: finds a group, holds its lock, lets its state machine decide, carries out what it asks for.

A request that waits is given with a callable that is called with its answer, once, on whatever thread the answer
becomes due: the one that brought the last member's request, the log's, or that of `Deadlines`.

Locks. A shard's `lock` is held over a state machine's call and the appends it asks for; answers are given after it. No
two shards' locks are held at once. Order: shard, then the log's locks and those of connections.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, cast

from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KbrokerError, ProtocolError
from kbroker.groups import records
from kbroker.groups.answers import DescribedGroup, FetchedOffset, ListedGroup, described, fetched
from kbroker.groups.consumer_groups import ConsumerGroups, Home, NamedTopics, NoTopics
from kbroker.groups.given_ids import GivenId, GivenIds, id_given_by
from kbroker.groups.options import GroupOptions
from kbroker.groups.records import fits
from kbroker.groups.shard import GroupShard, ServedGroup, beat_error, commit_error, store_error
from kbroker.groups.subscription import subscribed_topics
from kbroker.model import GROUP_OFFSETS_TOPIC, TopicPartition
from kbroker.rules.consumer_group_member import StoreChanges
from kbroker.rules.group import Group
from kbroker.rules.group_member import JoinAnswer, Joining, Leaving, Store, SyncAnswer, Token
from kbroker.rules.group_offsets import CommittedOffset, GroupOffsets
from kbroker.rules.group_state import NEVER, GroupState
from kbroker.rules.mixed_group import MixedGroup
from kbroker.state_log.deadlines import Deadlines
from kbroker.state_log.partition import NO_PRODUCER, Phase, Producer, StatePartition
from kbroker.state_log.replica import NO_GUARD, Replica
from kbroker.state_log.room import Room
from kbroker.state_log.shards import Shards
from kbroker.state_log.topic import StateTopic

LOG = logging.getLogger(__name__)

CLASSIC, CONSUMER = "classic", "consumer"
NOTHING_BEHIND = 1 << 62
"""In the place of a marker's offset: it ends all that is there."""

MOST_LOOKED_UP_LOCKED = 1000
"""Offsets that are fetched with the shard's lock held; more are looked up in a copy, and other groups go on."""

MOST_LEAVING_LOCKED = 1000
"""Members that leave with the shard's lock held; other groups go on before the next of the same request."""

MOST_PROTOCOLS = 100
"""Protocols that a member may name: it keeps them for as long as it is there."""

MEMBERS_LOOKED_AT_PER_MS = 100
"""A large group is not looked at for each of its members' deadlines."""

_LONGEST_UNIQUE = str(uuid.UUID(int=0))

Answers: TypeAlias = list[tuple[Token, object]]


class GroupCoordinator:
    """Serves the groups whose records are in the partitions of `__consumer_offsets` that this broker leads."""

    def __init__(
        self,
        topic: StateTopic,
        options: GroupOptions,
        clock: Clock,
        deadlines: Deadlines | None = None,
        make_unique: Callable[[], str] = lambda: str(uuid.uuid4()),
        topics: Callable[[], NamedTopics] = NoTopics,
        expire_others: Callable[[], object] = lambda: None,
    ):
        """`expire_others` is called as often as offsets expire: for those that are kept elsewhere."""
        self.options = options
        self._clock = clock
        self._deadlines = deadlines or Deadlines("group-deadlines", clock)
        self._make_unique = make_unique
        self._expire_others = expire_others
        self._given_ids = GivenIds()
        self.shards = Shards("group", topic, make=self._make_shard, load=self._load, end=_end)
        """Where the groups are, partition by partition."""
        self._room = Room("kbroker.groups.max", options.most_groups, self._count_groups)
        home = Home(self._acquire, self._settle, _deliver, self._deadlines.now_ms, self._room.has_room)
        self.consumers = ConsumerGroups(home, options, clock, topics)
        """Groups of the consumer protocol (KIP-848)."""

    # --- life --------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Serves from now on; partitions that hold something are loaded in the background."""
        self.shards.start()
        self._deadlines.every(self.options.offsets_retention_check_interval_ms, self._expire)
        self._deadlines.every(self.options.offsets_retention_check_interval_ms, self._expire_others)

    def stop(self) -> None:
        """Serves nobody any more; members that wait for others hear COORDINATOR_NOT_AVAILABLE."""
        self.shards.stop()
        self.consumers.stop()
        self._deadlines.stop()

    def _make_shard(self, partition_id: int, replica: Replica) -> GroupShard:
        name = TopicPartition(GROUP_OFFSETS_TOPIC, partition_id)
        partition = StatePartition(name, replica, self._clock, self.options.offsets_topic_codec)
        return GroupShard(partition, self.options, self._clock)

    def _load(self, shard: GroupShard) -> None:
        for served in shard.load(self._deadlines.now_ms()):
            with shard.lock:
                answers = self._settle(shard, served)
            _deliver(answers)

    def _acquire(self, group_id: str, empty_id_allowed: bool = False) -> GroupShard | ErrorCode:
        """The group's shard with its lock held, for the caller to release; or why the group is not served here now."""
        if not group_id and not empty_id_allowed:
            return ErrorCode.INVALID_GROUP_ID
        return self.shards.acquire(group_id)

    def _count_groups(self) -> int:
        return sum(len(shard.groups) for shard in self.shards.active())

    # --- what a state machine asks for -------------------------------------------------------------------
    def _settle(self, shard: GroupShard, served: ServedGroup) -> Answers:
        """Stores what has to be stored and sets the next time to look. The caller holds the shard's lock.

        Returns the answers to be given once the lock is released.
        """
        machine = served.machine
        shard.settling = True
        try:
            while stores := machine.take_stores():
                for store in stores:
                    shard.store(served, store, functools.partial(self._stored, shard, served, machine, store))
        finally:
            shard.settling = False
        self._arm(shard, served)
        return list(machine.take_answers())

    def _stored(
        self,
        shard: GroupShard,
        served: ServedGroup,
        machine: Group | MixedGroup,
        store: Store | StoreChanges,
        error: ErrorCode,
        _: int,
    ) -> None:
        if error:
            LOG.warning("group %r could not be stored: %s", served.machine.group_id, error.name)
            error = beat_error(error) if isinstance(store, StoreChanges) else store_error(error)
        with shard.lock:
            machine.stored(cast("Any", store), error, self._deadlines.now_ms())
            if shard.settling:
                return  # committed at once: whoever asked for it goes on from here
            answers = self._settle(shard, served)
        _deliver(answers)

    def _arm(self, shard: GroupShard, served: ServedGroup) -> None:
        due_ms = max(served.machine.wake_ms, served.rests_until_ms)
        if due_ms < served.armed_ms:
            if served.alarm is not None:
                served.alarm.cancel()
            served.armed_ms = due_ms
            served.alarm = self._deadlines.schedule(due_ms, functools.partial(self._advance, shard, served, due_ms))

    def _advance(self, shard: GroupShard, served: ServedGroup, due_ms: int) -> None:
        with shard.lock:
            if served.armed_ms != due_ms:
                return  # something earlier was scheduled, and has scheduled what comes after it
            served.armed_ms = NEVER
            now_ms, machine = self._deadlines.now_ms(), served.machine
            if machine.wake_ms <= now_ms:
                before = list(machine.members)
                machine.advance(now_ms)
                gone = [member_id for member_id in before if member_id not in machine.members]
                if gone:
                    LOG.info("group %r loses members that were not heard of in time: %s", machine.group_id, gone)
                served.rests_until_ms = now_ms + len(before) // MEMBERS_LOOKED_AT_PER_MS
            answers = self._settle(shard, served) + self.consumers.maybe_downgrade(shard, served)
            shard.remove_if_never_used(served)
        _deliver(answers)

    # --- members -----------------------------------------------------------------------------------------
    def join(self, group_id: str, joining: Joining, answer: Callable[[JoinAnswer], None]) -> None:
        """JoinGroup. Answered when the generation begins."""
        shard = self._acquire(group_id)
        if isinstance(shard, ErrorCode):
            answer(JoinAnswer(shard, joining.member_id))
            return
        answers: Answers = []
        given: str | None = None
        try:
            low, high = self.options.min_session_timeout_ms, self.options.max_session_timeout_ms
            served = shard.groups.get(group_id)
            refused = ErrorCode.NONE if served is None else self._make_classic(shard, served)
            mixed = None if served is None else served.consumer
            if not low <= joining.session_timeout_ms <= high:
                answers.append((answer, JoinAnswer(ErrorCode.INVALID_SESSION_TIMEOUT, joining.member_id)))
            elif not _is_keepable(joining, self.options.member_metadata_max_bytes):
                answers.append((answer, JoinAnswer(ErrorCode.INVALID_REQUEST, joining.member_id)))
            elif served is None and joining.member_id:
                answers.append((answer, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, joining.member_id)))
            elif refused:
                answers.append((answer, JoinAnswer(refused, joining.member_id)))
            elif served is None and not self._room.has_room():
                answers.append((answer, JoinAnswer(ErrorCode.GROUP_MAX_SIZE_REACHED, "")))
            elif served is not None and mixed is not None:
                answers = self.consumers.join(shard, served, mixed, joining, answer, self._make_unique())
            else:
                served = served or shard.create(group_id)
                unique = "" if joining.member_id else self._make_unique()
                cast("Group", served.machine).join(answer, joining, unique, self._deadlines.now_ms())
                answers = self._settle(shard, served)
                given = next(filter(None, (id_given_by(told) for _, told in answers)), None)
                shard.remove_if_never_used(served)
        finally:
            shard.lock.release()
        _deliver(answers)
        if given is not None:
            oldest = self._given_ids.add(joining.client_host, GivenId(shard, group_id, given))
            if oldest is not None:
                self._forget_given(*oldest)

    def _forget_given(self, shard: GroupShard, group_id: str, member_id: str) -> None:
        answers: Answers = []
        with shard.lock:
            served = shard.groups.get(group_id)
            if served is not None and served.classic is not None:
                served.classic.forget_pending(member_id, self._deadlines.now_ms())
                answers = self._settle(shard, served)
                shard.remove_if_never_used(served)
        _deliver(answers)

    def _make_classic(self, shard: GroupShard, served: ServedGroup) -> ErrorCode:
        """A consumer group without members becomes a classic one when somebody joins who speaks that protocol."""
        if served.classic is None and shard.is_replaceable(served):
            return store_error(shard.make_classic(served))
        return ErrorCode.NONE

    def sync(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        protocol_type: str | None,
        protocol_name: str | None,
        assignments: Mapping[str, bytes],
        answer: Callable[[SyncAnswer], None],
    ) -> None:
        """SyncGroup. Answered when the leader's assignment is stored."""
        shard = self._acquire(group_id)
        if isinstance(shard, ErrorCode):
            # The rebalance was lost with the old coordinator's memory, so the member has to join again; old clients do
            # not expect COORDINATOR_LOAD_IN_PROGRESS here.
            loading = shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            answer(SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS if loading else shard))
            return
        answers: Answers = []
        try:
            served = shard.groups.get(group_id)
            classic = None if served is None else served.classic
            if served is not None and (mixed := served.consumer) is not None:
                who = (generation, member_id, instance_id)
                answers.append((answer, self.consumers.sync(mixed, *who, protocol_type, protocol_name)))
                self._arm(shard, served)
            elif served is None or classic is None:
                answers.append((answer, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)))
            else:
                named, now_ms = (protocol_type, protocol_name), self._deadlines.now_ms()
                classic.sync(answer, generation, member_id, instance_id, *named, assignments, now_ms)
                answers = self._settle(shard, served)
        finally:
            shard.lock.release()
        _deliver(answers)

    def heartbeat(self, group_id: str, generation: int, member_id: str, instance_id: str | None) -> ErrorCode:
        """Heartbeat."""
        shard = self._acquire(group_id)
        if isinstance(shard, ErrorCode):
            # While its group is loaded a member cannot be told anything better than to go on.
            return ErrorCode.NONE if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else shard
        try:
            served = shard.groups.get(group_id)
            if served is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            error = served.machine.heartbeat(generation, member_id, instance_id, self._deadlines.now_ms())
            self._arm(shard, served)
            return error
        finally:
            shard.lock.release()

    def leave(self, group_id: str, leaving: list[Leaving]) -> tuple[ErrorCode, list[ErrorCode]]:
        """LeaveGroup: the error of all of it, and of each member."""
        errors: list[ErrorCode] = []
        for first in range(0, max(len(leaving), 1), MOST_LEAVING_LOCKED):
            error, more = self._leave_some(group_id, leaving[first : first + MOST_LEAVING_LOCKED])
            if error:
                return error, []
            errors += more
        return ErrorCode.NONE, errors

    def _leave_some(self, group_id: str, leaving: list[Leaving]) -> tuple[ErrorCode, list[ErrorCode]]:
        shard = self._acquire(group_id)
        if isinstance(shard, ErrorCode):
            return shard, []
        try:
            served = shard.groups.get(group_id)
            if served is None:
                return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
            errors = served.machine.leave(leaving, self._deadlines.now_ms())
            answers = self._settle(shard, served) + self.consumers.maybe_downgrade(shard, served)
        finally:
            shard.lock.release()
        _deliver(answers)
        return ErrorCode.NONE, errors

    # --- offsets -----------------------------------------------------------------------------------------
    def commit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
        answer: Callable[[ErrorCode, frozenset[TopicPartition]], None],
        version: int = 9,
    ) -> None:
        """OffsetCommit, in that version. Answered when it is stored, with the partitions whose metadata is too long:
        they are not."""
        shard = self._acquire(group_id, empty_id_allowed=True)
        if isinstance(shard, ErrorCode):
            answer(shard, frozenset())
            return
        accepted, refused = self._split_too_long(offsets)
        try:
            served = shard.groups.get(group_id)
            if served is None and generation >= 0:
                error = ErrorCode.ILLEGAL_GENERATION
            elif served is None and not self._room.has_room():
                error = ErrorCode.GROUP_MAX_SIZE_REACHED
            else:
                served = served or shard.create(group_id)
                who = (generation, member_id, instance_id)
                if (consumer := served.consumer) is not None:
                    error = self.consumers.check_commit(consumer, *who, offsets, version=version)
                else:
                    error = served.machine.check_commit(*who)
            if served is not None and not error:
                served.machine.committed(member_id, self._deadlines.now_ms())
                self._arm(shard, served)
                if accepted:
                    outcome = self._append_commit(shard, served, accepted, lambda ended: answer(ended, refused))
                    if outcome is None:
                        return
                    error = outcome
            elif error:
                refused = frozenset()  # whoever may not commit hears of nothing else
            if served is not None:
                shard.remove_if_never_used(served)
        finally:
            shard.lock.release()
        answer(error, refused)

    def commit_transactional(
        self,
        group_id: str,
        producer: Producer,
        generation: int,
        member_id: str,
        instance_id: str | None,
        offsets: Mapping[TopicPartition, CommittedOffset],
        ask: Callable[[TopicPartition, Callable[[ErrorCode], None]], None],
        answer: Callable[[ErrorCode, frozenset[TopicPartition]], None],
        *,
        adds: bool = False,
    ) -> None:
        """TxnOffsetCommit: `offsets` count when the producer's transaction is committed. Answered as `commit` is.

        `ask` asks the transaction's coordinator whether the group's partition is in the transaction, or with `adds` to
        add it (KIP-890); it is called without a lock, and only where a transaction begins in that partition.
        """
        shard = self._acquire(group_id)
        if isinstance(shard, ErrorCode):
            answer(shard, frozenset())
            return
        is_nobody = min(producer) < 0  # of whom the log knows nothing
        try:
            if group_id not in shard.groups:
                if not self._room.has_room():
                    raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED)
                shard.create(group_id)
            guard = shard.partition.replica.verify(*producer, adds=adds)
            known = ErrorCode.NONE
        except KbrokerError as refused:
            guard, known = NO_GUARD, refused.code
        finally:
            shard.lock.release()
        who = (generation, member_id, instance_id)

        def asked(error: ErrorCode) -> None:
            self._commit_asked(shard, group_id, producer, guard, who, offsets, error, answer)

        if guard == NO_GUARD and (known or not is_nobody):
            asked(known)
        else:
            ask(shard.partition.name, asked)

    def _commit_asked(
        self,
        shard: GroupShard,
        group_id: str,
        producer: Producer,
        guard: int,
        who: tuple[int, str, str | None],
        offsets: Mapping[TopicPartition, CommittedOffset],
        error: ErrorCode,
        answer: Callable[[ErrorCode, frozenset[TopicPartition]], None],
    ) -> None:
        """The transaction's coordinator has said whether the producer may write here."""
        accepted, refused = self._split_too_long(offsets)
        with shard.lock:
            if not error and shard.partition.phase is not Phase.ACTIVE:
                error = ErrorCode.NOT_COORDINATOR
            outcome: ErrorCode | None = commit_error(error)
            if not outcome:
                served = shard.groups.get(group_id) or shard.create(group_id)
                if (consumer := served.consumer) is not None:
                    outcome = self.consumers.check_commit(consumer, *who, offsets, transactional=True)
                else:
                    outcome = served.machine.check_commit(*who, transactional=True)
            if outcome:
                refused = frozenset()  # whoever may not commit hears of nothing else
            elif accepted:
                outcome = self._append_commit(
                    shard, served, accepted, lambda ended: answer(ended, refused), producer, guard
                )
            if (made := shard.groups.get(group_id)) is not None:
                shard.remove_if_never_used(made)
        if outcome is not None:
            answer(outcome, refused)

    def end_transaction(
        self, partition_id: int, producer_id: int, commit: bool, marker_offset: int = NOTHING_BEHIND
    ) -> None:
        """A marker of the producer is in that partition of `__consumer_offsets`: what its transaction has committed
        there before is what the groups have committed, or is forgotten. Telling it twice changes nothing."""
        shard = self.shards.get(partition_id)
        if shard is not None:
            with shard.lock:
                shard.end_transaction(producer_id, commit, marker_offset)

    def _split_too_long(
        self, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> tuple[Mapping[TopicPartition, CommittedOffset], frozenset[TopicPartition]]:
        """What may be committed, and the partitions whose metadata is too long."""
        longest = self.options.offset_metadata_max_bytes
        refused = frozenset(p for p, committed in offsets.items() if not fits(committed.metadata, longest))
        return {p: one for p, one in offsets.items() if p not in refused} if refused else offsets, refused

    def _append_commit(
        self,
        shard: GroupShard,
        served: ServedGroup,
        offsets: Mapping[TopicPartition, CommittedOffset],
        later: Callable[[ErrorCode], None],
        producer: Producer = NO_PRODUCER,
        guard: int = NO_GUARD,
    ) -> ErrorCode | None:
        """How the commit ended; None: `later` is told. The caller holds the shard's lock."""
        outcome: ErrorCode | None = None

        def committed(error: ErrorCode, base_offset: int) -> None:
            nonlocal outcome
            with shard.lock:
                shard.end_commit(served, staged, error, base_offset)
                outcome = commit_error(error)
                if shard.settling:
                    return
            later(outcome)

        group_id = served.machine.group_id
        changed = [(records.offset_key(group_id, p), records.offset_value(c)) for p, c in offsets.items()]
        staged = shard.begin_commit(served, offsets, producer)
        shard.settling = True
        try:
            shard.partition.append(changed, committed, producer, guard)
        finally:
            shard.settling = False
        return outcome

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Sequence[TopicPartition] | None,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[ErrorCode, list[FetchedOffset]]:
        """OffsetFetch; `partitions` None: all that the group has committed."""
        shard = self._acquire(group_id, empty_id_allowed=True)
        if isinstance(shard, ErrorCode):
            return shard, []
        try:
            served = shard.groups.get(group_id)
            if served is not None and (consumer := served.consumer) is not None:
                error = consumer.check_fetch(member_id, member_epoch)
                if error:
                    return error, []
            if served is not None and (partitions is None or len(partitions) <= MOST_LOOKED_UP_LOCKED):
                return ErrorCode.NONE, fetched(served.offsets, partitions, require_stable)
            offsets = GroupOffsets() if served is None else served.offsets.copy()
        finally:
            shard.lock.release()
        return ErrorCode.NONE, fetched(offsets, partitions, require_stable)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """OffsetDelete: the error of all of it, or of each partition."""
        shard = self._acquire(group_id)
        if isinstance(shard, ErrorCode):
            return shard, {}
        try:
            served = shard.groups.get(group_id)
            if served is None:
                return ErrorCode.GROUP_ID_NOT_FOUND, {}
            machine = served.machine
            errors = dict.fromkeys(partitions, ErrorCode.NONE)
            if isinstance(machine, MixedGroup):
                for partition in errors:
                    if machine.is_subscribed(partition.topic):
                        errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif machine.state is not GroupState.EMPTY:
                if not machine.is_consumer_group:
                    return ErrorCode.NON_EMPTY_GROUP, {}
                topics = subscribed_topics(machine)
                for partition in errors:
                    if topics is None or partition.topic in topics:
                        errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            failed = shard.remove_offsets(served, [partition for partition, error in errors.items() if not error])
            shard.remove_if_nothing_left(served)
            return store_error(failed), {} if failed else errors
        finally:
            shard.lock.release()

    def forget_topics(self, topics: Iterable[str]) -> None:
        """The topics are deleted, so are the offsets of everybody in them."""
        for shard in self.shards.active():
            with shard.lock:
                for served in list(shard.groups.values()):
                    had_offsets = [shard.remove_topic(served, topic) for topic in topics]
                    if any(had_offsets):
                        shard.remove_if_nothing_left(served)

    # --- administration ----------------------------------------------------------------------------------
    def describe(self, group_id: str) -> DescribedGroup:
        """DescribeGroups for one group; one that is not known is Dead."""
        shard = self._acquire(group_id, empty_id_allowed=True)
        if isinstance(shard, ErrorCode):
            return DescribedGroup(shard)
        try:
            served = shard.groups.get(group_id)
            machine = None if served is None else served.classic
            if machine is None:
                return DescribedGroup(ErrorCode.NONE, GroupState.DEAD)
            return described(machine)
        finally:
            shard.lock.release()

    def list_groups(self, states: Iterable[str] = (), kinds: Iterable[str] = ()) -> tuple[ErrorCode, list[ListedGroup]]:
        """ListGroups: all groups, or those in one of `states` and `kinds` (upper or lower case does not matter)."""
        if not self.shards.is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        wanted, of_kinds = {state.lower() for state in states}, {kind.lower() for kind in kinds}
        listed = []
        for shard in self.shards.active():
            with shard.lock:
                for group_id, served in shard.groups.items():
                    machine, kind = served.machine, CLASSIC if served.consumer is None else CONSUMER
                    if (not wanted or machine.state.lower() in wanted) and (not of_kinds or kind in of_kinds):
                        listed.append(ListedGroup(group_id, machine.protocol_type or "", machine.state, kind))
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self.shards.is_loading else ErrorCode.NONE, listed

    def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups for one group: only one without members can be deleted."""
        shard = self._acquire(group_id, empty_id_allowed=True)
        if isinstance(shard, ErrorCode):
            return shard
        try:
            served = shard.groups.get(group_id)
            if served is None:
                return ErrorCode.GROUP_ID_NOT_FOUND
            if served.machine.state is not GroupState.EMPTY:
                return ErrorCode.NON_EMPTY_GROUP
            return store_error(shard.remove_group(served))
        finally:
            shard.lock.release()

    def group_counts(self) -> dict[str, int]:
        """How many groups are in each state, for metrics."""
        counts = dict.fromkeys((str(state) for state in GroupState), 0)
        for shard in self.shards.active():
            with shard.lock:
                for served in shard.groups.values():
                    counts[served.machine.state] += 1
        return counts

    def committed_offsets(self, most: int) -> tuple[list[tuple[str, TopicPartition, int]], int]:
        """Group, partition and offset, for metrics: at most so many, in the order of the groups' names. And how many
        more there are."""
        sizes: dict[str, tuple[GroupShard, int]] = {}
        for shard in self.shards.active():
            with shard.lock:
                sizes.update((name, (shard, len(served.offsets.committed))) for name, served in shard.groups.items())
        found: list[tuple[str, TopicPartition, int]] = []
        for group_id in sorted(sizes):
            if len(found) == most:
                break
            shard, _ = sizes[group_id]
            with shard.lock:
                served = shard.groups.get(group_id)
                offsets = {} if served is None else served.offsets.committed
                of_group = islice(offsets.items(), most - len(found))
                found += [(group_id, at, committed.offset) for at, committed in of_group]
        return found, max(0, sum(size for _, size in sizes.values()) - len(found))

    # --- expiry ------------------------------------------------------------------------------------------
    def _expire(self) -> None:
        removed = sum(shard.expire() for shard in self.shards.active())
        if removed:
            LOG.info("%d offsets expired", removed)


def _end(shard: GroupShard, error: ErrorCode) -> None:
    _deliver(shard.end(error))


def _deliver(answers: Answers) -> None:
    """Gives answers that have become due. The caller holds no lock."""
    for answer, what in answers:
        try:
            cast("Callable[[object], None]", answer)(what)
        except Exception:
            LOG.exception("an answer could not be given")


def _is_keepable(joining: Joining, most_metadata: int) -> bool:
    """Whether a member of that name, with so many protocols and so much metadata, can be stored."""
    name, protocols = joining.instance_id or joining.client_id, joining.protocols
    return (
        len(protocols) <= MOST_PROTOCOLS
        and sum(map(len, protocols.values())) <= most_metadata
        and fits(f"{name}-{_LONGEST_UNIQUE}")
    )
