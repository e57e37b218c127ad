"""The group coordinator: finds a group, holds its lock, lets its state machine decide, carries out what it asks for.

A request that waits is given with a callable that is called with its answer, once, on whatever thread the answer
becomes due: the one that brought the last member's request, the log's, or that of `Deadlines`.

Locks. A shard's `lock` is held over a state machine's call and the appends it asks for; answers are given after it. No
two shards' locks are held at once. Order: shard, then the log's locks and those of connections.
"""

from __future__ import annotations

import functools
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KbrokerError
from kbroker.groups import records
from kbroker.groups.answers import DescribedGroup, DescribedMember, FetchedOffset, ListedGroup
from kbroker.groups.deadlines import Deadlines
from kbroker.groups.offsets_topic import OffsetsTopic
from kbroker.groups.options import GroupOptions
from kbroker.groups.records import fits
from kbroker.groups.shard import GroupShard, ServedGroup, commit_error, store_error
from kbroker.groups.subscription import subscribed_topics
from kbroker.model import GROUP_OFFSETS_TOPIC, TopicPartition
from kbroker.rules.group import NEVER, GroupState
from kbroker.rules.group_member import JoinAnswer, Joining, Leaving, Store, SyncAnswer, Token
from kbroker.rules.group_offsets import CommittedOffset, GroupOffsets
from kbroker.rules.java_hash import java_string_hash
from kbroker.state_log.loader import Loader
from kbroker.state_log.partition import Phase, StatePartition

LOG = logging.getLogger(__name__)

NO_OFFSET = -1
MOST_LOOKED_UP_LOCKED = 1000
"""Offsets that are fetched with the shard's lock held; more are looked up in a copy, and other groups go on."""

_LONGEST_UNIQUE = str(uuid.UUID(int=0))

Answers: TypeAlias = list[tuple[Token, JoinAnswer | SyncAnswer]]


class GroupCoordinator:
    """Serves the groups whose records are in the partitions of `__consumer_offsets` that this broker leads."""

    def __init__(
        self,
        topic: OffsetsTopic,
        options: GroupOptions,
        clock: Clock,
        deadlines: Deadlines | None = None,
        make_unique: Callable[[], str] = lambda: str(uuid.uuid4()),
    ):
        self._topic = topic
        self.options = options
        self._clock = clock
        self._deadlines = deadlines or Deadlines("group-deadlines", clock)
        self._make_unique = make_unique
        self._loader = Loader("group-loader")
        self._lock = threading.Lock()
        """Guards what `_shards` holds; never held together with a shard's lock."""
        self._shards: dict[int, GroupShard] = {}
        self._running = False
        self._said = ""

    # --- life --------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Serves from now on; partitions that hold something are loaded in the background."""
        self._running = True
        for partition_id in self._topic.led_partitions():
            self._open(partition_id)
        self._schedule_expiry()

    def stop(self) -> None:
        """Serves nobody any more; members that wait for others hear COORDINATOR_NOT_AVAILABLE."""
        self._running = False
        with self._lock:
            shards = list(self._shards.values())
        for shard in shards:
            _deliver(shard.end(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        self._loader.stop()
        self._deadlines.stop()

    def lead(self, partition_id: int) -> None:
        """This broker leads the partition, perhaps in a new epoch."""
        with self._lock:
            shard = self._shards.get(partition_id)
        replica = self._topic.replica(partition_id)
        if shard is not None and replica is not None and shard.partition.leader_epoch != replica.leader_epoch:
            self.resign(partition_id)
        self._open(partition_id)

    def resign(self, partition_id: int) -> None:
        """This broker does not lead the partition any more."""
        with self._lock:
            shard = self._shards.pop(partition_id, None)
        if shard is None:
            return
        _deliver(shard.end(ErrorCode.NOT_COORDINATOR))

    def await_loaded(self, timeout_s: float) -> bool:
        """Waits until what this broker leads is loaded; false when it is not in time."""
        with self._lock:
            shards = list(self._shards.values())
        return all(shard.partition.active.wait(timeout_s) for shard in shards)

    def prepare(self, group_id: str) -> ErrorCode:
        """Makes sure that the group can be served: the topic exists, the partition is loaded or being so. May block.

        NOT_COORDINATOR when another broker leads the partition, COORDINATOR_NOT_AVAILABLE when nobody can serve now.
        """
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        is_new = self._topic.partition_count() is None
        try:
            self._topic.ensure()
        except KbrokerError as error:
            if str(error) != self._said:  # clients ask again and again
                self._said = str(error)
                LOG.warning("%s cannot be created: %s", GROUP_OFFSETS_TOPIC, error)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._said = ""
        partition_id = self.partition_for(group_id)
        # All of a new topic: what is empty is loaded at once, and nobody who asks is told to wait for it.
        for wanted in self._topic.led_partitions() if is_new else (partition_id,):
            self._open(wanted, run=lambda load: load())
        if partition_id not in self._topic.led_partitions():
            return ErrorCode.NOT_COORDINATOR
        # A partition that could not be loaded is not among them any more.
        return ErrorCode.NONE if partition_id in self._shards else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def is_prepared(self, group_id: str) -> bool:
        """Whether `prepare` has nothing to do for the group."""
        return self._running and self.partition_for(group_id) in self._shards

    def _open(self, partition_id: int, run: Callable[[Callable[[], None]], None] | None = None) -> GroupShard | None:
        """The partition's shard; one that is new is loaded by `run`, without it in the background."""
        with self._lock:
            shard = self._shards.get(partition_id)
            if shard is not None:
                return shard
            replica = self._topic.replica(partition_id)
            if replica is None or not self._running:
                return None
            name = TopicPartition(GROUP_OFFSETS_TOPIC, partition_id)
            partition = StatePartition(name, replica, self._clock, self.options.offsets_topic_codec)
            shard = self._shards[partition_id] = GroupShard(partition, self.options, self._clock)
        (run or self._loader.submit)(functools.partial(self._load, partition_id, shard))
        return shard

    def _load(self, partition_id: int, shard: GroupShard) -> None:
        try:
            served_groups = shard.load(self._deadlines.now_ms())
        except KbrokerError as error:
            LOG.error("%s: cannot be loaded: %s", shard.partition.name, error)
            with self._lock:  # whoever asks next tries again
                if self._shards.get(partition_id) is shard:
                    del self._shards[partition_id]
            shard.end(ErrorCode.NOT_COORDINATOR)
            return
        for served in served_groups:
            with shard.lock:
                answers = self._settle(shard, served)
            _deliver(answers)

    # --- finding -----------------------------------------------------------------------------------------
    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that the group's records are in."""
        count = self._topic.partition_count() or self._topic.default_partition_count()
        return java_string_hash(group_id) % count

    def _acquire(self, group_id: str, empty_id_allowed: bool = False) -> GroupShard | ErrorCode:
        """The group's shard with its lock held, for the caller to release; or why the group is not served here now."""
        if not group_id and not empty_id_allowed:
            return ErrorCode.INVALID_GROUP_ID
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        partition_id = self.partition_for(group_id)
        shard = self._shards.get(partition_id) or self._open(partition_id)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        if shard.partition.phase is Phase.LOADING:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        shard.lock.acquire()
        if shard.partition.phase is not Phase.ACTIVE:
            shard.lock.release()
            return ErrorCode.NOT_COORDINATOR
        return shard

    def _active_shards(self) -> Iterator[GroupShard]:
        with self._lock:
            shards = [self._shards[partition_id] for partition_id in sorted(self._shards)]
        return (shard for shard in shards if shard.partition.phase is Phase.ACTIVE)

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
                    shard.store(served, store, functools.partial(self._stored, shard, served, store))
        finally:
            shard.settling = False
        self._arm(shard, served)
        return machine.take_answers()

    def _stored(self, shard: GroupShard, served: ServedGroup, store: Store, error: ErrorCode, _: int) -> None:
        if error:
            LOG.warning("group %r could not be stored: %s", served.machine.group_id, error.name)
        with shard.lock:
            served.machine.stored(store, store_error(error), self._deadlines.now_ms())
            if shard.settling:
                return  # committed at once: whoever asked for it goes on from here
            answers = self._settle(shard, served)
        _deliver(answers)

    def _arm(self, shard: GroupShard, served: ServedGroup) -> None:
        if served.machine.wake_ms < served.armed_ms:
            due_ms = served.armed_ms = served.machine.wake_ms
            self._deadlines.schedule(due_ms, functools.partial(self._advance, shard, served, due_ms))

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
            answers = self._settle(shard, served)
        _deliver(answers)

    # --- members -----------------------------------------------------------------------------------------
    def join(self, group_id: str, joining: Joining, answer: Callable[[JoinAnswer], None]) -> None:
        """JoinGroup. Answered when the generation begins."""
        shard = self._acquire(group_id)
        if isinstance(shard, ErrorCode):
            answer(JoinAnswer(shard, joining.member_id))
            return
        answers: Answers = []
        try:
            low, high = self.options.min_session_timeout_ms, self.options.max_session_timeout_ms
            served = shard.groups.get(group_id)
            if not low <= joining.session_timeout_ms <= high:
                answers.append((answer, JoinAnswer(ErrorCode.INVALID_SESSION_TIMEOUT, joining.member_id)))
            elif not fits(f"{joining.instance_id or joining.client_id}-{_LONGEST_UNIQUE}"):
                answers.append((answer, JoinAnswer(ErrorCode.INVALID_REQUEST, joining.member_id)))
            elif served is None and joining.member_id:
                answers.append((answer, JoinAnswer(ErrorCode.UNKNOWN_MEMBER_ID, joining.member_id)))
            else:
                served = served or shard.create(group_id)
                unique = "" if joining.member_id else self._make_unique()
                served.machine.join(answer, joining, unique, self._deadlines.now_ms())
                answers = self._settle(shard, served)
        finally:
            shard.lock.release()
        _deliver(answers)

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
            if served is None:
                answers.append((answer, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)))
            else:
                named, now_ms = (protocol_type, protocol_name), self._deadlines.now_ms()
                served.machine.sync(answer, generation, member_id, instance_id, *named, assignments, now_ms)
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
        shard = self._acquire(group_id)
        if isinstance(shard, ErrorCode):
            return shard, []
        try:
            served = shard.groups.get(group_id)
            if served is None:
                return ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
            errors = served.machine.leave(leaving, self._deadlines.now_ms())
            answers = self._settle(shard, served)
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
    ) -> None:
        """OffsetCommit. Answered when it is stored, with the partitions whose metadata is too long: they are not."""
        shard = self._acquire(group_id, empty_id_allowed=True)
        if isinstance(shard, ErrorCode):
            answer(shard, frozenset())
            return
        longest = self.options.offset_metadata_max_length
        refused = frozenset(p for p, committed in offsets.items() if len(committed.metadata) > longest)
        accepted = {p: committed for p, committed in offsets.items() if p not in refused} if refused else offsets
        try:
            served = shard.groups.get(group_id)
            if served is None and generation >= 0:
                error = ErrorCode.ILLEGAL_GENERATION
            else:
                served = served or shard.create(group_id)
                error = served.machine.check_commit(generation, member_id, instance_id)
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
        finally:
            shard.lock.release()
        answer(error, refused)

    def _append_commit(
        self,
        shard: GroupShard,
        served: ServedGroup,
        offsets: Mapping[TopicPartition, CommittedOffset],
        later: Callable[[ErrorCode], None],
    ) -> ErrorCode | None:
        """How the commit ended; None: `later` is told. The caller holds the shard's lock."""
        outcome: ErrorCode | None = None

        def committed(error: ErrorCode, base_offset: int) -> None:
            nonlocal outcome
            with shard.lock:
                if error:
                    served.offsets.fail(offsets)
                else:
                    served.offsets.finish(offsets, base_offset)
                outcome = commit_error(error)
                if shard.settling:
                    return
            later(outcome)

        group_id = served.machine.group_id
        changed = [(records.offset_key(group_id, p), records.offset_value(c)) for p, c in offsets.items()]
        served.offsets.begin(offsets)
        shard.settling = True
        try:
            shard.partition.append(changed, committed)
        finally:
            shard.settling = False
        return outcome

    def fetch_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, require_stable: bool
    ) -> tuple[ErrorCode, list[FetchedOffset]]:
        """OffsetFetch; `partitions` None: all that the group has committed."""
        shard = self._acquire(group_id, empty_id_allowed=True)
        if isinstance(shard, ErrorCode):
            return shard, []
        try:
            served = shard.groups.get(group_id)
            if served is not None and (partitions is None or len(partitions) <= MOST_LOOKED_UP_LOCKED):
                return ErrorCode.NONE, _fetched(served.offsets, partitions, require_stable)
            offsets = GroupOffsets() if served is None else served.offsets.copy()
        finally:
            shard.lock.release()
        return ErrorCode.NONE, _fetched(offsets, partitions, require_stable)

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
            if machine.state is not GroupState.EMPTY:
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
        for shard in self._active_shards():
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
            if served is None:
                return DescribedGroup(ErrorCode.NONE, GroupState.DEAD)
            machine = served.machine
            stable = machine.state is GroupState.STABLE
            members = tuple(
                DescribedMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    machine.metadata_of(member) if stable else b"",
                    member.assignment if stable else b"",
                )
                for member in machine.members.values()
            )
            name = (machine.protocol_name or "") if stable else ""
            return DescribedGroup(ErrorCode.NONE, machine.state, machine.protocol_type or "", name, members)
        finally:
            shard.lock.release()

    def list_groups(self, states: Iterable[str] = ()) -> tuple[ErrorCode, list[ListedGroup]]:
        """ListGroups: all groups, or those in one of `states` (upper or lower case does not matter)."""
        if not self._running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE, []
        wanted = {state.lower() for state in states}
        listed = []
        for shard in self._active_shards():
            with shard.lock:
                for group_id, served in shard.groups.items():
                    machine = served.machine
                    if not wanted or machine.state.lower() in wanted:
                        listed.append(ListedGroup(group_id, machine.protocol_type or "", machine.state))
        with self._lock:
            loading = any(shard.partition.phase is Phase.LOADING for shard in self._shards.values())
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE, listed

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
        for shard in self._active_shards():
            with shard.lock:
                for served in shard.groups.values():
                    counts[served.machine.state] += 1
        return counts

    # --- expiry ------------------------------------------------------------------------------------------
    def _schedule_expiry(self) -> None:
        due_ms = self._deadlines.now_ms() + self.options.offsets_retention_check_interval_ms
        self._deadlines.schedule(due_ms, self._expire)

    def _expire(self) -> None:
        try:
            removed = 0
            for shard in self._active_shards():
                removed += shard.expire()
            if removed:
                LOG.info("%d offsets expired", removed)
        finally:
            self._schedule_expiry()


def _fetched(
    offsets: GroupOffsets, partitions: Iterable[TopicPartition] | None, require_stable: bool
) -> list[FetchedOffset]:
    fetched = []
    for partition in sorted(offsets.committed) if partitions is None else partitions:
        committed = offsets.committed.get(partition)
        if require_stable and offsets.is_unstable(partition):
            fetched.append(_no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT))
        elif committed is None:
            fetched.append(_no_offset(partition, ErrorCode.NONE))
        else:
            stored = (committed.offset, committed.leader_epoch, committed.metadata)
            fetched.append(FetchedOffset(partition, *stored, ErrorCode.NONE))
    return fetched


def _no_offset(partition: TopicPartition, error: ErrorCode) -> FetchedOffset:
    return FetchedOffset(partition, NO_OFFSET, -1, "", error)


def _deliver(answers: Answers) -> None:
    """Gives answers that have become due. The caller holds no lock."""
    for answer, what in answers:
        try:
            cast("Callable[[object], None]", answer)(what)
        except Exception:
            LOG.exception("an answer could not be given")
